"""Transactions in the data path: read_committed fetches and transactional batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_kit import batch_of, until
from wire_in_memory import opened_wire

from penstock.api.transactions import simple_pattern
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.control_batch import Marker
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic


def committed_fetch(wait_ms: int = 0, offset: int = 0) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[asked])]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=1, topics=topics)


@pytest.mark.parametrize(
    ("transactional_id", "error"),
    [(None, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), ("x", ErrorCode.INVALID_PRODUCER_ID_MAPPING)],
)
async def test_a_batch_of_a_transaction_that_was_not_begun_is_refused(
    tmp_path: Path, transactional_id: str | None, error: ErrorCode
) -> None:
    async with opened_wire(tmp_path) as wire:
        await wire.path.create()
        batch = batch_of(1, producer=(1, 0, 0), attributes=TRANSACTIONAL)
        answer = await wire.produced(9, {("t", 0): batch}, transactional_id=transactional_id)
        assert answer.responses[0].partition_responses[0].error_code == error


async def test_a_reader_of_committed_data_waits_on_while_what_came_is_undecided(tmp_path: Path) -> None:
    async with opened_wire(tmp_path) as wire:
        partition = await wire.path.partition()
        exchange = wire.send(committed_fetch(wait_ms=30_000), 11)
        assert exchange is not None
        batch = batch_of(1, producer=(1, 0, 0), attributes=TRANSACTIONAL)
        assert partition.append(batch, verified=True).error == 0
        await wire.path.flushed()
        assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
        assert not exchange.completed
        assert partition.write_marker(Marker(1, 0, False, 0)).error == 0
        await until(lambda: exchange.completed)
        found = wire.decoded(exchange, FetchResponse, 11).responses[0].partitions[0]
        assert found.last_stable_offset == 2
        assert found.aborted_transactions is not None
        assert [(a.producer_id, a.first_offset) for a in found.aborted_transactions] == [(1, 0)]


async def test_only_aborted_transactions_with_data_in_the_answer_are_named(tmp_path: Path) -> None:
    async with opened_wire(tmp_path) as wire:
        partition = await wire.path.partition()
        for i in range(5):
            batch = batch_of(1, producer=(i, 0, 0), attributes=TRANSACTIONAL)
            assert partition.append(batch, verified=True).error == 0
            assert partition.write_marker(Marker(i, 0, i % 2 == 0, 0)).error == 0
        await wire.path.flushed()
        answer = await wire.fetched(committed_fetch(offset=4), 11)
        named = answer.responses[0].partitions[0].aborted_transactions
        assert named is not None
        assert [a.producer_id for a in named] == [3]
        plain = committed_fetch()
        plain.isolation_level = 0
        answer = await wire.fetched(plain, 11)
        assert answer.responses[0].partitions[0].aborted_transactions is None


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("pay.*", "pay-1", True),
        ("pay.*", "repay", False),
        (".*pay.*", "repaying", True),
        ("p.y", "pay", True),
        ("p.y", "pway", False),
        ("pay", "pay", True),
    ],
)
def test_simple_patterns_match_whole_names(pattern: str, name: str, matches: bool) -> None:
    assert bool(simple_pattern(pattern).fullmatch(name)) == matches


@pytest.mark.parametrize("pattern", ["(a+)+$", "[a-z]", "a|b", "a*", "a.*b.*c.*d.*e", "x" * 300])
def test_patterns_that_could_take_for_ever_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="not supported; use"):
        simple_pattern(pattern)
