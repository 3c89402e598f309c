"""Responses that are due together are sent in order in few calls, and count as sent only afterwards."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Iterator, Sequence

import pytest
from core_kit import CoreBench
from server_kit import SegmentFile

from penstock.api.exchange import ResponsePart
from penstock.server import output as output_module
from penstock.server.output import MAX_COPIED_SLICE_BYTES, MAX_JOINED_BYTES, SocketOutput


class Sender(CoreBench):
    """A connection whose output writes to one end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(lambda connection, frame: None)
        self.core.output = SocketOutput(
            self.core, asyncio.get_running_loop(), None, end.fileno(), lambda: self.ending is not None
        )

    def reply(self, parts: Sequence[ResponsePart]) -> None:
        self.core.open_exchange().reply(parts)
        self.turn()

    async def finish(self) -> None:
        """Wait until all responses are sent; check that they count as sent."""
        for _ in range(100):
            if self.core.output.idle:
                break
            await asyncio.sleep(0)
        assert (self.core.unsent_bytes, self.core.output.idle, self.ending) == (0, True, None)
        self.core.on_lost()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield two connected sockets; the first has a small send buffer."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with ours, theirs:
        yield ours, theirs


async def received(end: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        content += await asyncio.get_running_loop().sock_recv(end, 1 << 16)
    return content


async def test_answers_that_are_due_together_are_one_write(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write = os.write

    def counted(fd: int, data: bytes) -> int:
        writes.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(output_module.os, "write", counted)
    sender = Sender(ends[0])
    sender.reply([b"first", bytearray(b"second"), b"", memoryview(b"third")])
    assert (writes, sender.stats.bytes_out) == ([16], 16)
    assert ends[1].recv(100) == b"firstsecondthird"
    await sender.finish()


async def test_few_records_in_the_page_cache_leave_with_their_response_in_one_write(
    ends: tuple[socket.socket, socket.socket], segment: SegmentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write = os.write
    monkeypatch.setattr(output_module.os, "write", lambda fd, data: (writes.append(len(data)), write(fd, data))[1])
    sender = Sender(ends[0])
    sender.reply([b"head", segment.slice(5, 300), b"", segment.slice(1000, 200), b"tail"])
    assert (writes, sender.stats.bytes_out) == ([508], 508)
    assert (segment.reads, segment.probes) == (2, 0), "each slice costs one call"
    assert (sender.core.unsent_bytes, segment.lent, segment.loads) == (0, 0, [])
    assert ends[1].recv(1000) == b"head" + segment.content[5:305] + segment.content[1000:1200] + b"tail"
    await sender.finish()


async def test_few_records_that_the_socket_does_not_take_follow_in_order(
    ends: tuple[socket.socket, socket.socket], segment: SegmentFile
) -> None:
    ours, theirs = ends
    sender = Sender(ours)
    for start in range(40):
        sender.reply([b"head", segment.slice(start, 3000), b"tail"])
    assert segment.lent > 0, "the socket is full"
    expected = b"".join(b"head" + segment.content[start : start + 3000] + b"tail" for start in range(40))
    assert await received(theirs, len(expected)) == expected
    await sender.finish()
    assert (sender.stats.bytes_out, segment.lent) == (len(expected), 0)


async def test_records_behind_a_lost_connection_are_released(
    ends: tuple[socket.socket, socket.socket], segment: SegmentFile
) -> None:
    ours, theirs = ends
    sender = Sender(ours)
    theirs.close()
    sender.reply([b"head", segment.slice(0, 300), b"tail"])
    sender.core.on_lost()
    assert (segment.lent, sender.stats.bytes_out) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 999, MAX_JOINED_BYTES // 4, MAX_JOINED_BYTES])
async def test_what_a_full_socket_does_not_take_follows_in_order(
    ends: tuple[socket.socket, socket.socket], size: int
) -> None:
    ours, theirs = ends
    sender = Sender(ours)
    answers: list[Sequence[ResponsePart]] = [
        [bytes([number]) * size, b"", bytes([number + 100]) * 7] for number in range(60)
    ]
    expected = b"".join(bytes(part) for parts in answers for part in parts)  # type: ignore[arg-type]
    for parts in answers:
        sender.reply(parts)
    whole = len(expected)
    assert whole - sender.core.unsent_bytes <= sender.stats.bytes_out <= whole
    assert sender.core.output.idle == (sender.stats.bytes_out == whole)
    assert await received(theirs, whole) == expected
    await sender.finish()
    assert sender.stats.bytes_out == whole


@pytest.mark.parametrize("size", [1, 4000, 200_000])
async def test_what_stands_before_records_may_go_out_in_pieces(
    ends: tuple[socket.socket, socket.socket], segment: SegmentFile, size: int
) -> None:
    ours, theirs = ends
    sender = Sender(ours)
    prefix, records = random.Random(size).randbytes(size), 50_000
    assert records > MAX_COPIED_SLICE_BYTES, "it goes out by sendfile"
    sender.reply([prefix, segment.slice(0, records), b"", segment.slice(7, records), b"tail"])
    expected = prefix + segment.content[:records] + segment.content[7 : 7 + records] + b"tail"
    assert await received(theirs, len(expected)) == expected
    await sender.finish()
    assert (sender.stats.bytes_out, segment.lent) == (len(expected), 0)
