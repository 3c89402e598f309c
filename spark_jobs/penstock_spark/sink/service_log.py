"""Where the transaction service's log goes: into the driver's log, for as long as somebody reads that.

The service inherits the standard error of the process that started it, which is a pipe to the JVM. It outlives that
process, and may outlive whoever reads the pipe: then writing fails, or, where the pipe is full, waits for ever. Neither
may stop a commit or keep a transaction open, so what cannot be written at once is dropped.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

AT_ONCE_BYTES = 4096
"""A pipe that can be written to has room for a page."""


class Careful(io.RawIOBase):
    """Takes everything, raises nothing, and does not wait."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        with contextlib.suppress(OSError):
            for start in range(0, len(view), AT_ONCE_BYTES):
                if not self._poll.poll(0):
                    break
                os.write(self._descriptor, view[start : start + AT_ONCE_BYTES])
        return len(view)


def careful_stream(descriptor: int) -> TextIO:
    """A text stream to a file descriptor, which stays open."""
    binary = cast("BinaryIO", Careful(descriptor))
    return io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", write_through=True)
