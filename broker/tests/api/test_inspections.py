"""Large batches are inspected in a thread and keep their order within the connection."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from replica_kit import batch_of, patched, stored_headers, until
from wire_in_memory import RecordedConnection, Wire, opened_wire

from penstock.api import produce_backlog
from penstock.api.inspections import MAX_INLINE_BYTES
from penstock.replica.leader import Leader
from penstock.wire.compression import Codec
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.produce import ProduceResponse
from penstock.wire.record import Record
from penstock.wire.records import build_batch

DEADLINE_S = 60.0


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with opened_wire(tmp_path) as opened:
        await opened.path.create("t", 2)
        for index in range(2):
            await opened.produced(9, {("t", index): batch_of(1)})
            await opened.produced(9, {("t", index): batch_of(1)})
        yield opened
        assert (opened.produce.backlog.queues, opened.produce.backlog.held_bytes) == ({}, 0), "nothing is kept"


@pytest.fixture
def busy(wire: Wire) -> Iterator[threading.Event]:
    """Keep the only inspection thread busy until the event is set."""
    gate, began = threading.Event(), threading.Event()
    executor = wire.produce.inspections.executor = ThreadPoolExecutor(1)

    def work() -> None:
        began.set()
        assert gate.wait(DEADLINE_S), "the thread was held up for good"

    executor.submit(work)
    assert began.wait(DEADLINE_S)
    yield gate
    gate.set()
    executor.shutdown()


def leader(wire: Wire, index: int = 0) -> Leader:
    found = wire.path.replicas.find("t", index)
    assert found is not None
    return found


def large(codec: Codec, sequence: int = -1) -> memoryview:
    """Return a compressed batch that is too large for the event loop."""
    values = random.Random(1).randbytes(2 * MAX_INLINE_BYTES)
    producer = (5, 0, sequence) if sequence >= 0 else (-1, -1, -1)
    return batch_of(1, value=values, codec=codec, producer=producer)


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_what_comes_behind_a_large_batch_is_written_behind_it(
    wire: Wire, busy: threading.Event, acks: int
) -> None:
    before = leader(wire).log.end_offset
    exchanges = [
        wire.send(wire.produce_request(9, {("t", 0): batch}, acks=acks), 9)
        for batch in (large(Codec.ZSTD, 0), batch_of(2, producer=(5, 0, 1)), large(Codec.GZIP, 3), batch_of(1))
    ]
    assert leader(wire).log.end_offset == before
    assert not any(exchange.completed for exchange in exchanges if exchange is not None)
    busy.set()
    await until(lambda: all(exchange.completed for exchange in exchanges if exchange is not None))
    added = [header for header in stored_headers(leader(wire).log) if header.base_offset >= before]
    assert [(h.base_offset - before, h.codec, h.base_sequence) for h in added] == [
        (0, Codec.ZSTD, 0), (1, 0, 1), (3, Codec.GZIP, 3), (4, 0, -1),
    ]  # fmt: skip
    if acks:
        assert exchanges[-1] is not None
        (topic,) = wire.decoded(exchanges[-1], ProduceResponse, 9).responses
        assert topic.partition_responses[0].base_offset == before + 4


@pytest.mark.slow
async def test_other_connections_do_not_wait(wire: Wire, busy: threading.Event) -> None:
    first = wire.send(wire.produce_request(9, {("t", 0): large(Codec.LZ4)}), 9)
    own, wire.connection = wire.connection, RecordedConnection()
    await wire.produced(9, {("t", 0): batch_of(1, codec=Codec.LZ4)})
    wire.connection = own
    assert first is not None
    assert not first.completed
    busy.set()
    await until(lambda: first.completed)


async def test_a_small_batch_that_decompresses_to_much_goes_to_a_thread(wire: Wire, busy: threading.Event) -> None:
    batch = batch_of(1, value=bytes(1 << 20), codec=Codec.ZSTD)
    assert len(batch) < MAX_INLINE_BYTES
    before = leader(wire).log.end_offset
    exchange = wire.send(wire.produce_request(9, {("t", 0): batch}), 9)
    assert exchange is not None
    assert leader(wire).log.end_offset == before
    busy.set()
    await until(lambda: exchange.completed)
    (topic,) = wire.decoded(exchange, ProduceResponse, 9).responses
    assert topic.partition_responses[0].error_code == 0


async def test_small_batches_are_compressed_anew_in_a_thread_and_keep_their_order(
    wire: Wire, busy: threading.Event
) -> None:
    await wire.path.alter("t", "compression.type", "zstd")
    before = leader(wire).log.end_offset
    batches = [
        batch_of(2, codec=Codec.ZSTD if sequence % 4 else Codec.NONE, producer=(5, 0, sequence))
        for sequence in range(0, 20, 2)
    ]
    exchanges = [wire.send(wire.produce_request(9, {("t", 0): batch}), 9) for batch in batches]
    assert leader(wire).log.end_offset == before
    busy.set()
    await until(lambda: all(exchange is not None and exchange.completed for exchange in exchanges))
    added = [header for header in stored_headers(leader(wire).log) if header.base_offset >= before]
    assert [(h.base_sequence, h.codec) for h in added] == [(sequence, Codec.ZSTD) for sequence in range(0, 20, 2)]


async def test_beyond_the_bound_of_copies_batches_are_inspected_at_once_and_keep_their_order(
    wire: Wire, busy: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_backlog, "MAX_HELD_BYTES", 5 * MAX_INLINE_BYTES)
    before = leader(wire).log.end_offset
    for sequence in range(3):
        wire.send(wire.produce_request(9, {("t", 0): large(Codec.GZIP, sequence)}), 9)
    assert leader(wire).log.end_offset == before + 3
    added = [header for header in stored_headers(leader(wire).log) if header.base_offset >= before]
    assert [header.base_sequence for header in added] == [0, 1, 2]


@pytest.mark.parametrize("size", [10, 4 * MAX_INLINE_BYTES])
async def test_a_damaged_batch_is_refused_alone_in_its_request(wire: Wire, size: int) -> None:
    damaged = patched(batch_of(1, value=random.Random(2).randbytes(size)), ">h", 21, Codec.GZIP)
    response = await wire.produced(9, {("t", 0): damaged, ("t", 1): batch_of(1)})
    (topic,) = response.responses
    assert [p.error_code for p in topic.partition_responses] == [ErrorCode.INVALID_RECORD, 0]
    assert "damaged" in (topic.partition_responses[0].error_message or "")
    again = await wire.produced(9, {("t", 0): batch_of(1)})
    assert again.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("version", [3, 7, 8, 9, 13])
async def test_an_answer_names_the_rejected_records_from_version_8_on(wire: Wire, version: int) -> None:
    await wire.path.create("compacted", cleanup_policy="compact")
    records = [Record(key=None if index in (2, 5) else b"k", value=b"v") for index in range(8)]
    response = await wire.produced(version, {("compacted", 0): memoryview(bytearray(build_batch(records)))})
    (answer,) = response.responses[0].partition_responses
    assert answer.error_code == ErrorCode.INVALID_RECORD
    named = [(error.batch_index, error.batch_index_error_message) for error in answer.record_errors]
    assert named == ([(2, "the record has no key"), (5, "the record has no key")] if version >= 8 else [])


@pytest.mark.parametrize(("version", "error"), [(3, 76), (6, 76), (7, 0), (9, 0)])
async def test_zstd_is_taken_from_version_7_on(wire: Wire, version: int, error: int) -> None:
    response = await wire.produced(version, {("t", 0): batch_of(1, codec=Codec.ZSTD), ("t", 1): batch_of(1)})
    (topic,) = response.responses
    assert [p.error_code for p in topic.partition_responses] == [error, 0]
