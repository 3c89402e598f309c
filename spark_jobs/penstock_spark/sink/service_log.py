"""Writes the transaction service's log to the driver's log, as long as the driver reads it.

The service inherits the standard error of the process that started it, which is a pipe to the JVM. The service outlives
that process and may outlive the pipe's reader: writes then fail or, if the pipe is full, block forever. Neither may
stop a commit or keep a transaction open, so output that cannot be written immediately is dropped.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_WRITE_BYTES = 4096
"""A writable pipe has room for a page."""


class NonBlockingStream(io.RawIOBase):
    """Accepts all data, never blocks and never raises."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Write what fits now; drop the rest."""
        view = memoryview(data).cast("B")
        with contextlib.suppress(OSError):
            for start in range(0, len(view), MAX_WRITE_BYTES):
                if not self._poll.poll(0):
                    break
                os.write(self._descriptor, view[start : start + MAX_WRITE_BYTES])
        return len(view)


def non_blocking_stream(descriptor: int) -> TextIO:
    """Return a text stream to a file descriptor, which stays open."""
    binary = cast("BinaryIO", NonBlockingStream(descriptor))
    return io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", write_through=True)
