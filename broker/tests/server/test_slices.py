"""Slices are sent from file to socket completely and in order, and released exactly once."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading

import pytest
from server_kit import Desk, Run, SegmentFile, framed, serving, until

from penstock.api.exchange import RequestExchange, ResponsePart
from penstock.log.types import LogSlice
from penstock.server.limits import ServerLimits
from penstock.server.output import MAX_COPIED_SLICE_BYTES, MAX_LOADED_BYTES
from penstock.server.stats import CloseReason

pytestmark = pytest.mark.integration


def answer_of(segment: SegmentFile, rng: random.Random, largest: int) -> tuple[list[ResponsePart], bytes]:
    """Return a frame of buffers and slices in random order, and its bytes."""
    parts: list[ResponsePart] = [b""]
    content = b""
    for _ in range(rng.randrange(1, 9)):
        if rng.random() < 0.5:
            head = rng.randbytes(rng.choice([0, 1, 60, 3000]))
            parts.append(head)
            content += head
        size = rng.choice([1, 700, MAX_COPIED_SLICE_BYTES, MAX_COPIED_SLICE_BYTES + 1, rng.randrange(1, largest)])
        position = rng.randrange(len(segment.content) - size)
        parts.append(segment.slice(position, size))
        content += segment.content[position : position + size]
    tail = rng.randbytes(rng.choice([0, 2]))
    parts.append(bytearray(tail))
    content += tail
    parts[0] = len(content).to_bytes(4, "big")
    return parts, content


@pytest.mark.parametrize("cached", [True, False])
def test_answers_of_buffers_and_slices_arrive_whole_and_in_order(run: Run, segment: SegmentFile, cached: bool) -> None:
    async def scenario() -> None:
        rng = random.Random(11)
        segment.cached = cached
        expected = []

        def answer(exchange: RequestExchange, content: bytes) -> None:
            parts, whole = answer_of(segment, rng, 300_000)
            expected.append(whole)
            exchange.reply(parts)

        async with serving(Desk(answer)) as service:
            client = await service.connect()
            client.send(*[b"fetch"] * 60)
            for number in range(60):
                got = await client.receive()
                assert got == expected[number], f"answer {number}"
            await until(lambda: segment.lent == 0)
            assert service.server.stats.bytes_out == sum(len(e) + 4 for e in expected)

    run(scenario())


def test_a_large_slice_reaches_a_slow_reader_while_others_are_served(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        size = len(segment.content)
        desk = Desk(lambda e, _: e.reply([size.to_bytes(4, "big"), segment.slice(0, size)]))
        async with serving(desk) as service:
            slow, other = await service.connect(), await service.connect()
            slow.send(b"fetch")
            await desk.received(1)
            desk.answer = lambda e, content: e.reply([framed(content)])
            assert await other.ask(b"hello") == b"hello"
            assert segment.lent == 1
            assert await slow.receive() == segment.content
            await until(lambda: segment.lent == 0)

    run(scenario())


def test_slices_that_are_not_in_the_page_cache_are_loaded_by_a_thread_first(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        segment.cached = False
        threads: list[int] = []
        load = segment.load

        def recording(offset: int, size: int) -> None:
            threads.append(threading.get_ident())
            load(offset, size)

        segment.load = recording  # type: ignore[method-assign]
        desk = Desk(lambda e, _: e.reply([(3 << 20).to_bytes(4, "big"), segment.slice(5, 3 << 20)]))
        async with serving(desk) as service:
            client = await service.connect()
            assert await client.ask(b"fetch") == segment.content[5 : 5 + (3 << 20)]
        assert threads
        assert threading.get_ident() not in threads, "the event loop must not wait for the disk"

    run(scenario())


def test_the_slices_of_a_response_are_loaded_together_up_to_a_bound(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        segment.cached = False
        size, count = 3 << 20, 4
        spans = [(i * 1000, size) for i in range(count)]
        desk = Desk(
            lambda e, _: e.reply([(count * size).to_bytes(4, "big"), *(segment.slice(at, n) for at, n in spans)])
        )
        async with serving(desk) as service:
            client = await service.connect()
            assert await client.ask(b"fetch") == b"".join(segment.content[at : at + n] for at, n in spans)
        first_load = segment.loads[:3]
        assert first_load == [*spans[:2], (spans[2][0], MAX_LOADED_BYTES - 2 * size)]
        loaded = sorted(segment.loads)
        for at, n in spans:  # completely, although the next load begins where the socket's buffer was full
            assert any(start == at for start, _ in loaded)
            assert any(start + got == at + n for start, got in loaded)

    run(scenario())


@pytest.mark.parametrize("size", [MAX_COPIED_SLICE_BYTES, 1 << 20])
def test_from_a_load_on_files_read_ahead_until_the_reader_is_at_recent_data(
    run: Run, segment: SegmentFile, size: int
) -> None:
    async def scenario() -> None:
        segment.kept_from = 2 * size
        turns = iter([False, True, True, True, True])
        starts = iter(range(0, 5 * size, size))

        def answer(exchange: RequestExchange, _: bytes) -> None:
            segment.cached = next(turns)
            exchange.reply([size.to_bytes(4, "big"), segment.slice(next(starts), size)])

        async with serving(Desk(answer)) as service:
            client = await service.connect()
            for number in range(5):
                assert await client.ask(b"fetch") == segment.content[number * size : (number + 1) * size]
                await until(lambda: segment.lent == 0)
        assert segment.loads == [(0, size)]
        assert segment.streamed == [(0, size), (size, size), (2 * size, size)]

    run(scenario())


def test_a_reader_of_cached_data_causes_no_read_ahead(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        desk = Desk(lambda e, _: e.reply([(1 << 20).to_bytes(4, "big"), segment.slice(0, 1 << 20)]))
        async with serving(desk) as service:
            client = await service.connect()
            await client.ask(b"fetch")
        assert (segment.loads, segment.streamed) == ([], [])

    run(scenario())


def test_a_connection_lost_in_the_middle_gives_its_slices_back(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        size = len(segment.content)
        desk = Desk(lambda e, _: e.reply([size.to_bytes(4, "big"), segment.slice(0, size), segment.slice(9, 9)]))
        async with serving(desk) as service:
            client = await service.connect()
            client.send(b"fetch", b"fetch", b"fetch")
            await desk.received(3)
            await client.reader.readexactly(100_000)
            assert segment.lent
            client.hang_up()
            await until(lambda: segment.lent == 0)

    run(scenario())


def test_a_slice_is_given_back_only_after_the_thread_that_reads_it(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        segment.cached = False
        started, go_on = threading.Event(), threading.Event()

        def blocked(offset: int, size: int) -> None:
            started.set()
            assert go_on.wait(60)
            assert segment.lent == 1, "the slice is in use"

        segment.load = blocked  # type: ignore[method-assign]
        desk = Desk(lambda e, _: e.reply([(1 << 20).to_bytes(4, "big"), segment.slice(0, 1 << 20)]))
        async with serving(desk) as service:
            client = await service.connect()
            client.send(b"fetch")
            await until(started.is_set)
            client.hang_up()
            await until(lambda: service.server.stats.connections == 0)
            assert segment.lent == 1
            go_on.set()
            await until(lambda: segment.lent == 0)

    run(scenario())


def test_an_answer_to_nobody_is_given_back_at_once(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        desk = Desk()
        async with serving(desk) as service:
            client = await service.connect()
            client.send(b"first", b"second")
            await desk.received(2)
            desk.open[1].reply([segment.slice(0, 100)])  # waits behind the first
            client.hang_up()
            await until(lambda: desk.open[0].is_disconnected)
            assert segment.lent == 0
            desk.open[0].reply([b"head", segment.slice(0, 100)])
            assert segment.lent == 0

    run(scenario())


def test_records_that_cannot_be_read_close_the_connection(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        segment.cached = False
        segment.error = OSError(errno.EIO, os.strerror(errno.EIO))
        desk = Desk(lambda e, _: e.reply([(1 << 20).to_bytes(4, "big"), segment.slice(0, 1 << 20)]))
        async with serving(desk) as service:
            client = await service.connect()
            client.send(b"fetch")
            await client.closed()
            await until(lambda: segment.lent == 0)
            assert service.server.stats.closed[CloseReason.FAILED] == 1

    run(scenario())


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_a_file_that_ends_too_early_closes_the_connection(run: Run, segment: SegmentFile, size: int) -> None:
    async def scenario() -> None:
        position = len(segment.content) - 50
        desk = Desk(lambda e, _: e.reply([size.to_bytes(4, "big"), segment.slice(position, size)]))
        async with serving(desk) as service:
            client = await service.connect()
            client.send(b"fetch")
            assert len(await client.closed()) < size
            await until(lambda: segment.lent == 0)
            assert service.server.stats.closed[CloseReason.FAILED] == 1

    run(scenario())


def test_waiting_answers_with_slices_count_little_but_not_nothing(run: Run, segment: SegmentFile) -> None:
    async def scenario() -> None:
        size = 4 << 20
        lent_most = 0

        def answer(exchange: RequestExchange, content: bytes) -> None:
            nonlocal lent_most
            exchange.reply([size.to_bytes(4, "big"), segment.slice(0, size)])
            lent_most = max(lent_most, segment.lent)

        async with serving(Desk(answer), ServerLimits(max_unsent_bytes=20_000)) as service:
            client = await service.connect()
            client.send(*[b"fetch"] * 200)
            await until(lambda: service.server.stats.paused == 1)
            assert lent_most < 25
            for _ in range(200):
                assert len(await client.receive()) == size
                await asyncio.sleep(0)
        assert segment.lent == 0

    run(scenario())


def test_slices_are_of_the_logs_kind(segment: SegmentFile) -> None:
    held = segment.slice(0, 5)
    assert isinstance(held, LogSlice)
    held.release()
    with pytest.raises(AssertionError, match="once"):
        held.release()
