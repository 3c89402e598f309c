"""Responses that are due together leave in few calls, in order, and count as sent when they are."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Iterator, Sequence

import pytest
from server_kit import SegmentFile

from penstock.api.exchange import ResponsePart
from penstock.server import output as output_module
from penstock.server.output import MAX_COPIED_SLICE_BYTES, MAX_JOINED_BYTES, NOMINAL_SLICE_BYTES, SocketOutput


class Account:
    """The connection, as its output sees it."""

    def __init__(self) -> None:
        self.sent = self.released = 0

    def on_sent(self, size: int, released: int) -> None:
        self.sent += size
        self.released += released

    def on_send_failed(self, error: OSError, reading: bool) -> None:
        raise error


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def output_to(end: socket.socket, account: Account) -> SocketOutput:
    return SocketOutput(account, asyncio.get_running_loop(), None, end.fileno(), lambda: False)


def narrow_output(ends: tuple[socket.socket, socket.socket], account: Account) -> SocketOutput:
    """Return an output to a socket with a small buffer; the event loop reads the other end."""
    ours, theirs = ends
    theirs.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return output_to(ours, account)


async def all_sent(output: SocketOutput) -> None:
    for _ in range(100):
        if output.idle:
            break
        await asyncio.sleep(0)


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
    account = Account()
    output_to(ends[0], account).send([b"first", bytearray(b"second"), b"", memoryview(b"third")])
    assert writes == [16]
    assert (account.sent, account.released) == (16, 16)
    assert ends[1].recv(100) == b"firstsecondthird"


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 999, MAX_JOINED_BYTES // 4, MAX_JOINED_BYTES])
async def test_what_a_full_socket_does_not_take_follows_in_order(
    ends: tuple[socket.socket, socket.socket], size: int
) -> None:
    theirs = ends[1]
    account = Account()
    output = narrow_output(ends, account)
    answers: list[Sequence[ResponsePart]] = [
        [bytes([number]) * size, b"", bytes([number + 100]) * 7] for number in range(60)
    ]
    expected = b"".join(bytes(part) for parts in answers for part in parts)  # type: ignore[arg-type]
    for parts in answers:
        output.send(parts)
    whole = len(expected)
    assert account.released <= account.sent <= whole
    assert output.idle == (account.sent == whole)
    assert await received(theirs, whole) == expected
    await all_sent(output)
    assert (account.sent, account.released, output.idle) == (whole, whole, True)
    output.close()


@pytest.mark.parametrize("size", [1, 4000, 200_000])
async def test_what_stands_before_records_may_go_out_in_pieces(
    ends: tuple[socket.socket, socket.socket], segment: SegmentFile, size: int
) -> None:
    theirs = ends[1]
    account = Account()
    output = narrow_output(ends, account)
    prefix, records = random.Random(size).randbytes(size), 50_000
    assert records > MAX_COPIED_SLICE_BYTES, "it goes out by sendfile"
    output.send([prefix, segment.slice(0, records), b"", segment.slice(7, records), b"tail"])
    expected = prefix + segment.content[:records] + segment.content[7 : 7 + records] + b"tail"
    assert await received(theirs, len(expected)) == expected
    await all_sent(output)
    assert (account.sent, account.released) == (len(expected), size + 2 * NOMINAL_SLICE_BYTES + 4)
    assert segment.lent == 0
    output.close()
