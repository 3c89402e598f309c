"""Lines from a file or standard input, as they come, without holding up the event loop where the source may wait."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from typing import BinaryIO

CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024


async def read_lines(source: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Lists of lines without their ends, as soon as they are there; the last one may lack its end.

    Raises ValueError for a line of more than 64 MiB.
    """
    rest = b""
    async for chunk in read_chunks(source.fileno()):
        parts = (rest + chunk).split(b"\n")
        rest = parts.pop()
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")
        if parts:
            yield [part.removesuffix(b"\r") for part in parts]
    if rest:
        yield [rest.removesuffix(b"\r")]


async def read_chunks(descriptor: int) -> AsyncIterator[bytes]:
    """What a descriptor gives until its end. A regular file is read directly; a pipe or a terminal is waited for."""
    waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    while True:
        if waits:
            try:
                await readable(descriptor)
            except OSError:
                waits = False  # such as /dev/null, which cannot be waited for and never has to be
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def readable(descriptor: int) -> None:
    """Returns when a read would not block. One event, one read: the descriptor stays blocking, as others share it."""
    loop = asyncio.get_running_loop()
    event: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, resolve, event)
    try:
        await event
    finally:
        loop.remove_reader(descriptor)


def resolve(event: asyncio.Future[None]) -> None:
    if not event.done():
        event.set_result(None)
