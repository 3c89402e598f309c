"""Reads lines from a file or standard input without blocking the event loop on pipes and terminals."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from typing import BinaryIO

CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024


async def read_lines(source: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Yield lists of lines without line ends, as soon as they are read. The last line may lack its end.

    Raises ValueError for a line longer than 64 MiB.
    """
    rest = b""
    async for chunk in read_chunks(source.fileno()):
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError(f"line is longer than {MAX_LINE_BYTES} bytes")
        if parts:
            yield [part.removesuffix(b"\r") for part in parts]
    if rest:
        yield [rest.removesuffix(b"\r")]


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yield the descriptor's bytes until its end. Regular files are read directly; pipes and terminals are polled."""
    waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if waits:
            try:
                await wait_readable(descriptor)
            except OSError:
                waits = False  # epoll refuses /dev/null and the like, which never block
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def wait_readable(descriptor: int) -> None:
    """Wait until a read would not block. The descriptor stays in blocking mode, as other processes share it."""
    loop = asyncio.get_running_loop()
    event: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, set_ready, event)
    try:
        await event
    finally:
        loop.remove_reader(descriptor)


def set_ready(event: asyncio.Future[None]) -> None:
    """Complete the future unless it is done."""
    if not event.done():
        event.set_result(None)
