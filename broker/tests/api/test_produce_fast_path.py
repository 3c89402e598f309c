"""Produce requests that match the connection's template: same log and responses as with the general parser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from replica_kit import batch_of, patched, stored_headers, until
from wire_in_memory import RecordedConnection, RecordedExchange, Wire, opened_wire

from penstock.wire.errors import ErrorCode
from penstock.wire.messages.produce import ProduceRequest, ProduceResponse
from penstock.wire.produce_template import ProduceTemplate

Batches = dict[tuple[str, int], memoryview | bytes | None]


class Forgetful(RecordedConnection):
    """A connection without a produce template."""

    @property  # type: ignore[override]
    def produce_template(self) -> ProduceTemplate | None:
        return None

    @produce_template.setter
    def produce_template(self, value: ProduceTemplate | None) -> None:
        del value


@pytest.fixture(params=["template", "each for itself"])
async def wire(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        if request.param == "each for itself":
            opened.connection = Forgetful()
        await opened.path.create("t", 3)
        for index in range(3):
            await opened.produced(9, {("t", index): batch_of(1)})
            await opened.produced(9, {("t", index): batch_of(1)}, acks=1)
        assert (opened.connection.produce_template is not None) == (request.param == "template")
        yield opened


def results(wire: Wire, exchange: RecordedExchange) -> list[tuple[int, int, int, int]]:
    response = wire.decoded(exchange, ProduceResponse, 9)
    (topic,) = response.responses
    assert topic.name == "t"
    return [(p.index, p.error_code, p.base_offset, p.log_start_offset) for p in topic.partition_responses]


async def send(wire: Wire, batches: Batches, acks: int) -> RecordedExchange:
    """Send two requests with these acks and return the second, which matches the template if `wire` uses one."""
    await wire.produced(9, {("t", 2): batch_of(1)}, acks=acks or 1)
    if not acks:
        wire.send(wire.produce_request(9, {("t", 2): batch_of(1)}, acks=0), 9)
    exchange = wire.send(wire.produce_request(9, batches, acks=acks), 9)
    assert exchange is not None
    await until(lambda: exchange.completed)
    return exchange


def damaged() -> memoryview | bytes:
    return patched(batch_of(), ">B", 70, 255, sealed=False)


CASES: dict[str, tuple[Callable[[], Batches], list[tuple[int, int, int, int]]]] = {
    "one batch": (lambda: {("t", 0): batch_of(5)}, [(0, 0, 2, 0)]),
    "several": (lambda: {("t", 0): batch_of(5), ("t", 1): batch_of(7)}, [(0, 0, 2, 0), (1, 0, 2, 0)]),
    "a damaged one": (lambda: {("t", 0): damaged()}, [(0, ErrorCode.CORRUPT_MESSAGE, -1, -1)]),
    "a damaged one and a sound one": (
        lambda: {("t", 0): damaged(), ("t", 1): batch_of(7)},
        [(0, ErrorCode.CORRUPT_MESSAGE, -1, -1), (1, 0, 2, 0)],
    ),
    "a partition that is not there": (
        lambda: {("t", 9): batch_of(5)},
        [(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)],
    ),
    "too short for a batch": (lambda: {("t", 0): b"short"}, [(0, ErrorCode.INVALID_RECORD, -1, -1)]),
    "nothing": (lambda: {("t", 0): b""}, [(0, ErrorCode.INVALID_RECORD, -1, -1)]),
}


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("case", CASES)
async def test_each_batch_is_answered(wire: Wire, case: str, acks: int) -> None:
    batches, answer = CASES[case]
    assert results(wire, await send(wire, batches(), acks)) == answer


@pytest.mark.parametrize("case", CASES)
async def test_acks_0_is_not_answered_and_a_refusal_closes_the_connection(wire: Wire, case: str) -> None:
    batches, answer = CASES[case]
    exchange = await send(wire, batches(), 0)
    assert exchange.frame is None
    assert bool(exchange.aborted) == any(error for _, error, *_ in answer)
    for (topic, index), (_, error, *_) in zip(batches(), answer, strict=True):
        partition = wire.path.replicas.find(topic, index)
        if partition is not None:
            assert len(stored_headers(partition.log)) == (2 if error else 3)


async def test_what_no_request_may_ask_for_is_refused_however_often_it_comes(wire: Wire) -> None:
    partition = wire.path.replicas.find("t", 0)
    assert partition is not None
    written = partition.log.end_offset
    for _ in range(12):
        response = await wire.produced(9, {("t", 0): batch_of(1)}, acks=7)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert partition.log.end_offset == written


async def test_acks_all_waits_for_the_flush_of_its_batch(wire: Wire) -> None:
    wire.path.files.hold()
    exchange = wire.send(wire.produce_request(9, {("t", 1): batch_of(5)}), 9)
    assert exchange is not None
    assert not exchange.completed
    wire.path.files.let_go()
    await until(lambda: exchange.completed)
    assert results(wire, exchange) == [(1, 0, 2, 0)]


async def test_a_batch_is_stored_with_its_offset_and_epoch(wire: Wire) -> None:
    await wire.produced(9, {("t", 0): batch_of(5)})
    await wire.produced(9, {("t", 0): batch_of(3)})
    partition = wire.path.replicas.find("t", 0)
    assert partition is not None
    stored = [(h.base_offset, h.record_count, h.leader_epoch) for h in stored_headers(partition.log)]
    epoch = partition.leader_epoch
    assert stored == [(0, 1, epoch), (1, 1, epoch), (2, 5, epoch), (7, 3, epoch)]


async def test_the_first_batch_of_a_partition_waits_for_its_files_and_those_behind_it_for_that(wire: Wire) -> None:
    """A matching request must not overtake an earlier one that waits."""
    await wire.path.create("u", 2)
    for _ in range(2):
        await wire.produced(9, {("u", 0): batch_of(1)}, acks=1)
    assert wire.path.replicas.find("u", 1) is not None, "it is led here, and has no file yet"
    first = wire.send(wire.produce_request(9, {("u", 1): batch_of(2)}, acks=1), 9)
    second = wire.send(wire.produce_request(9, {("u", 0): batch_of(3)}, acks=1), 9)
    assert first is not None
    assert second is not None
    assert not first.completed, "its file is made off the event loop"
    assert not second.completed, "it is behind one that waits"
    await until(lambda: first.completed and second.completed)


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_who_has_lost_its_lease_takes_nothing_but_acks_all(wire: Wire, acks: int) -> None:
    if not acks:
        wire.send(wire.produce_request(9, {("t", 0): batch_of(1)}, acks=0), 9)
    await wire.produced(9, {("t", 0): batch_of(1)}, acks=acks or 1)
    partition = wire.path.replicas.find("t", 0)
    assert partition is not None
    written = partition.log.end_offset
    wire.path.replicas.may_serve = lambda: False  # type: ignore[method-assign]
    wire.send(wire.produce_request(9, {("t", 0): batch_of(1)}, acks=acks), 9)
    assert partition.log.end_offset - written == (1 if acks == -1 else 0)
    await until(lambda: partition.high_watermark == partition.log.end_offset)


async def test_a_topic_that_was_deleted_is_unknown(wire: Wire) -> None:
    request: ProduceRequest = wire.produce_request(9, {("t", 0): batch_of(1)})
    await wire.ask(request, ProduceResponse, 9)
    await wire.path.delete("t")
    exchange = wire.send(wire.produce_request(9, {("t", 0): batch_of(1)}), 9)
    assert exchange is not None
    await until(lambda: exchange.completed)
    assert results(wire, exchange) == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)]
