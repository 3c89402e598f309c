"""Batches behind a temporarily rejected batch of an idempotent producer are rejected with the same error."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest
from replica_kit import DataPath, accepted, batch_of

from penstock.replica import blocked_producers
from penstock.replica.blocked_producers import (
    BLOCK_DURATION_MS,
    MAX_BLOCKED_PRODUCERS,
    MAX_NAME_CHARS,
    BlockedProducers,
    RejectedBatches,
)
from penstock.replica.leader import Leader
from penstock.wire.batch import BatchHeader, read_header
from penstock.wire.errors import ErrorCode

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_what_follows_a_batch_for_which_there_was_no_space_is_no_gap(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(3, producer=(1, 0, 0)))
    path.files.fail("append", errno.ENOSPC)
    assert partition.append(batch_of(3, producer=(1, 0, 3))).error == ErrorCode.KAFKA_STORAGE_ERROR
    path.files.heal()
    assert partition.append(batch_of(3, producer=(1, 0, 6))).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.append(batch_of(3, producer=(1, 0, 9))).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert [accepted(partition, batch_of(3, producer=(1, 0, n))).base_offset for n in (3, 6, 9)] == [3, 6, 9]


async def test_a_gap_after_a_batch_that_was_taken_and_another_producer_s_gap_are_gaps(path: DataPath) -> None:
    partition = await path.partition()
    for producer in (1, 2):
        accepted(partition, batch_of(3, producer=(producer, 0, 0)))
    path.files.fail("append", errno.ENOSPC)
    assert partition.append(batch_of(3, producer=(1, 0, 3))).error == ErrorCode.KAFKA_STORAGE_ERROR
    path.files.heal()
    assert partition.append(batch_of(3, producer=(2, 0, 6))).error == OUT_OF_ORDER
    accepted(partition, batch_of(3, producer=(1, 0, 3)))
    assert partition.append(batch_of(3, producer=(1, 0, 9))).error == OUT_OF_ORDER


async def test_a_gap_that_stays_is_one_after_a_while(path: DataPath) -> None:
    partition = await path.partition()
    accepted(partition, batch_of(3, producer=(1, 0, 0)))
    path.files.fail("append", errno.ENOSPC)
    partition.append(batch_of(3, producer=(1, 0, 3)))
    path.files.heal()
    path.clock.advance(BLOCK_DURATION_MS)
    assert partition.append(batch_of(3, producer=(1, 0, 6))).error == ErrorCode.KAFKA_STORAGE_ERROR
    path.clock.advance(1)
    assert partition.append(batch_of(3, producer=(1, 0, 6))).error == OUT_OF_ORDER


async def refused_once(path: DataPath, producer: tuple[int, int, int]) -> Leader:
    """Return a partition that rejected a batch of a new producer because of a full disk; the disk now has space."""
    partition = await path.partition()
    path.files.fail("append", errno.ENOSPC)
    assert partition.append(batch_of(3, producer=producer)).error == ErrorCode.KAFKA_STORAGE_ERROR
    path.files.heal()
    return partition


async def test_what_a_new_producer_sent_behind_its_first_batch_is_not_taken_before_it(path: DataPath) -> None:
    partition = await refused_once(path, (1, 0, 0))
    for _ in range(2):
        assert partition.append(batch_of(3, producer=(1, 0, 3))).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert [accepted(partition, batch_of(3, producer=(1, 0, n))).base_offset for n in (0, 3)] == [0, 3]


@pytest.mark.parametrize("other", [(2, 0, 3), (1, 1, 3)], ids=["another producer", "another epoch"])
async def test_a_producer_that_is_new_starts_anywhere_as_ever(path: DataPath, other: tuple[int, int, int]) -> None:
    partition = await refused_once(path, (1, 0, 0))
    accepted(partition, batch_of(3, producer=other))


async def test_a_first_batch_that_stays_away_is_waited_for_no_longer_than_a_gap(path: DataPath) -> None:
    partition = await refused_once(path, (1, 0, 0))
    path.clock.advance(BLOCK_DURATION_MS)
    assert partition.append(batch_of(3, producer=(1, 0, 3))).error == ErrorCode.KAFKA_STORAGE_ERROR
    path.clock.advance(1)
    accepted(partition, batch_of(3, producer=(1, 0, 3)))


def header(producer_id: int, sequence: int = 0) -> BatchHeader:
    return read_header(batch_of(1, producer=(producer_id, 0, sequence)))


@pytest.mark.parametrize("first", [6, 2**31 - 3], ids=["plain", "around the end of the numbers"])
def test_of_several_that_were_refused_the_first_comes_first(first: int) -> None:
    later = (first + 3) % 2**31
    blocked_producers = BlockedProducers()
    for sequence in (first, later):
        blocked_producers.record(header(1, sequence), ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    assert blocked_producers.code_before(header(1, later), 0) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert blocked_producers.code_before(header(1, first), 0) is None


def test_the_memory_is_bounded_and_forgets_who_was_refused_first() -> None:
    blocked_producers = BlockedProducers()
    for producer_id in range(MAX_BLOCKED_PRODUCERS):
        blocked_producers.record(header(producer_id), ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    blocked_producers.record(header(0), ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    blocked_producers.record(header(MAX_BLOCKED_PRODUCERS), ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    assert blocked_producers.code_for(1, 0) is None
    assert [blocked_producers.code_for(n, 0) for n in (0, 2, MAX_BLOCKED_PRODUCERS)] == [
        ErrorCode.NOT_ENOUGH_REPLICAS
    ] * 3


# Partitions that this broker does not lead

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
TOPIC_ID = UUID(int=7)


def test_a_leader_begins_with_those_who_were_turned_away_by_name_or_by_id() -> None:
    rejected_batches = RejectedBatches()
    rejected_batches.record("t", 0, batch_of(1, producer=(1, 0, 0)), UNKNOWN, 0)
    rejected_batches.record(TOPIC_ID, 0, batch_of(1, producer=(2, 0, 0)), UNKNOWN, 0)
    rejected_batches.record("t", 1, batch_of(1, producer=(3, 0, 0)), UNKNOWN, 0)
    assert set(rejected_batches.pop_partition("t", TOPIC_ID, 0).refused) == {1, 2}
    assert not rejected_batches.pop_partition("t", TOPIC_ID, 0).refused
    assert set(rejected_batches.pop_partition("t", TOPIC_ID, 1).refused) == {3}
    assert (rejected_batches.partitions, rejected_batches.producers) == ({}, 0)


def test_what_is_no_producer_s_batch_or_no_topic_s_name_is_not_remembered() -> None:
    rejected_batches = RejectedBatches()
    rejected_batches.record("t", 0, batch_of(1), UNKNOWN, 0)
    rejected_batches.record("t", 0, batch_of(1, producer=(1, 0, 0))[:60], UNKNOWN, 0)
    rejected_batches.record("x" * (MAX_NAME_CHARS + 1), 0, batch_of(1, producer=(1, 0, 0)), UNKNOWN, 0)
    assert (rejected_batches.partitions, rejected_batches.producers) == ({}, 0)


def test_partitions_and_producers_that_were_turned_away_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_producers, "MAX_PARTITIONS", 3)
    monkeypatch.setattr(blocked_producers, "MAX_REJECTED_PRODUCERS", 5)
    rejected_batches = RejectedBatches()
    for index in range(4):
        rejected_batches.record("t", index, batch_of(1, producer=(1, 0, 0)), UNKNOWN, 0)
    assert [index for _, index in rejected_batches.partitions] == [1, 2, 3]
    for producer_id in (2, 3, 4):
        rejected_batches.record("t", 3, batch_of(1, producer=(producer_id, 0, 0)), UNKNOWN, 0)
    assert [index for _, index in rejected_batches.partitions] == [2, 3]
    assert rejected_batches.producers == 5
