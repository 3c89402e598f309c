"""Sends responses: buffers from memory, and slices of log files that the kernel copies to the socket (sendfile).

A connection passes its responses in order and gets progress callbacks. `SocketOutput` writes to the file descriptor
itself, because uvloop has no sendfile and the transport's queue would copy each response; it never sends through the
transport. `TransportOutput` sends through any transport, such as that of TLS or of a simulation.

Reads that may wait for the disk run in a thread: slices that are not in the page cache are loaded there first. From
then on the connection streams from disk: for each slice that was sent, its file reads ahead.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from penstock.api.exchange import ResponsePart
from penstock.log.types import LogSlice
from penstock.runtime.files import File
from penstock.server.core import NOMINAL_SLICE_BYTES, ConnectionCore
from penstock.wire.primitives import Buffer

MAX_COPIED_SLICE_BYTES = 32 << 10
"""Slices up to this size are read and sent together with their neighbours, which costs less than sendfile."""
MAX_BYTES_PER_TURN = 4 << 20
"""Bytes that one connection may send before it yields to others: one to two milliseconds."""
MAX_RANGE_BYTES = 1 << 20
"""Bytes of a slice that are checked and sent at once."""
MAX_LOADED_BYTES = 8 << 20
"""Bytes of waiting slices that a thread loads into the page cache at once."""
MAX_JOINED_BYTES = 128 << 10
MAX_VECTORS = 512
MSG_MORE = getattr(socket, "MSG_MORE", 0)
HAS_SENDFILE = sys.platform == "linux"


class Output(ABC):
    """Implements `core.ResponseOutput`. `position` is the number of bytes sent of the first part."""

    __slots__ = (
        "executor",
        "is_streaming",
        "loaded_bytes",
        "loop",
        "lost",
        "position",
        "queue",
        "reading",
        "released",
        "sender",
        "sent",
        "waiting",
    )

    def __init__(self, sender: ConnectionCore, loop: asyncio.AbstractEventLoop, executor: Executor | None) -> None:
        self.sender, self.loop, self.executor = sender, loop, executor
        self.queue: deque[ResponsePart] | None = None
        self.position = 0
        self.sent = self.released = 0
        """Progress since the last `on_sent`, which is called once per turn."""
        self.waiting = False
        """Whether the output waits for the peer to read, or for its next turn."""
        self.reading = False
        """Whether a thread is loading slices."""
        self.loaded_bytes = 0
        """Bytes of the waiting slices, from the beginning of the first one, that were loaded: they are sent next even
        if the kernel has evicted them, which bounds the loads."""
        self.is_streaming = False
        """Whether the last slices came from disk."""
        self.lost = False

    @property
    def idle(self) -> bool:
        """Whether the queue is empty."""
        return not self.queue

    def send(self, parts: Sequence[ResponsePart]) -> None:
        """Queue `parts`, taking ownership of their slices, and send as much as possible at once."""
        if self.queue is None:
            self.queue = deque(parts)
        else:
            self.queue.extend(parts)
        if not self.waiting and not self.reading:
            self.pump()

    def pause(self) -> None:
        """Stop sending: the transport's buffer is full."""
        self.waiting = True

    def resume(self) -> None:
        """Continue: the transport's buffer has drained."""
        self.waiting = False
        if not self.reading:
            self.pump()

    @abstractmethod
    def pump(self) -> None:
        """Send until the queue is empty or the output must wait."""

    def drop_head(self) -> None:
        """Remove the first part, which was sent completely."""
        queue = self.queue
        assert queue, "the queue has a first part"
        part = queue.popleft()
        self.position = 0
        if isinstance(part, LogSlice):
            self.released += NOMINAL_SLICE_BYTES
            if self.loaded_bytes:
                self.loaded_bytes = max(self.loaded_bytes - part.size, 0)
            if self.is_streaming:
                self.is_streaming = part.file.stream(part.position, part.size) or self.loaded_bytes > 0
            part.release()
        else:
            self.released += len(part)
        if not queue:
            self.queue = None

    def report_progress(self) -> None:
        """Report the progress since the last report to the connection."""
        sent, released = self.sent, self.released
        self.sent = self.released = 0
        if (sent or released) and not self.lost:
            self.sender.on_sent(sent, released, self.loop.time())

    def is_readable(self, part: LogSlice, size: int) -> bool:
        """Return whether the next `size` bytes of the first slice can be read without waiting for the disk.

        If not, a thread loads the waiting slices; then the output continues.
        """
        if self.position + size <= self.loaded_bytes or part.file.is_cached(part.position + self.position, size):
            return True
        self.load()
        return False

    def load(self) -> None:
        """Load the waiting slices up to MAX_LOADED_BYTES into the page cache, in a thread; then continue."""
        self.reading = self.is_streaming = True
        ranges: list[tuple[File, int, int]] = []
        start, end, limit = self.position, 0, self.position + MAX_LOADED_BYTES
        for part in self.queue or ():
            if isinstance(part, LogSlice):
                size = min(part.size - start, limit - end - start)
                ranges.append((part.file, part.position + start, size))
                end, start = end + start + size, 0
                if end == limit:
                    break
        self.loaded_bytes = end
        self.loop.run_in_executor(self.executor, load_ranges, ranges).add_done_callback(self.on_loaded)

    def on_loaded(self, future: asyncio.Future[None]) -> None:
        """Continue after a load; release everything if the connection was lost meanwhile."""
        self.reading = False
        if self.lost:
            self.release_all()
            if not future.cancelled():
                future.exception()  # marks the exception as retrieved
            return
        try:
            future.result()
        except OSError as e:
            self.sender.on_send_failed(e, reading=True)
            return
        self.pump()

    def discard(self) -> None:
        """Release the unsent parts once no thread reads from them. Called when the connection is lost."""
        self.lost = True
        del self.sender  # breaks the reference cycle of a connection and its output
        if not self.reading:
            self.release_all()

    def release_all(self) -> None:
        """Release the slices in the queue."""
        queue, self.queue = self.queue, None
        for part in queue or ():
            if isinstance(part, LogSlice):
                part.release()


def load_ranges(ranges: Sequence[tuple[File, int, int]]) -> None:
    """Load ranges of files, each with offset and size, into the page cache. Called in a thread."""
    for file, offset, size in ranges:
        file.load(offset, size)


class SocketOutput(Output):
    """Writes to the connection's own descriptor and waits on a duplicate, because the loop owns the original."""

    __slots__ = ("duplicate_socket", "fd", "is_closing")

    def __init__(
        self,
        sender: ConnectionCore,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        fd: int,
        is_closing: Callable[[], bool],
    ) -> None:
        super().__init__(sender, loop, executor)
        self.fd, self.is_closing = fd, is_closing
        self.duplicate_socket: socket.socket | None = None

    def send(self, parts: Sequence[ResponsePart]) -> None:
        """Write small responses at once, joined into one call; queue the rest."""
        is_busy = self.queue is not None or self.waiting or self.is_streaming
        whole = None if is_busy or self.lost or self.is_closing() else join_small(parts)
        if whole is None:
            super().send(parts)
            return
        try:
            sent = os.write(self.fd, whole)
        except BlockingIOError:
            sent = 0
        except OSError as e:
            self.queue = deque(parts)  # `discard` releases the slices
            self.sender.on_send_failed(e, reading=False)
            return
        if sent == len(whole):
            self.sender.on_sent(sent, release_sent(parts), self.loop.time())
            return
        self.queue = deque(parts)
        self.advance(sent)
        self.pump()

    def pump(self) -> None:
        """Send in order; yield after MAX_BYTES_PER_TURN."""
        budget = MAX_BYTES_PER_TURN
        try:
            while (queue := self.queue) and not self.reading:
                if self.lost or self.is_closing():
                    return
                if budget <= 0:
                    self.yield_to_loop()
                    return
                head = queue[0]
                if isinstance(head, LogSlice):
                    if head.size > MAX_COPIED_SLICE_BYTES or self.position:
                        budget -= self.send_slice(head, min(budget, head.size - self.position))
                    else:
                        budget -= self.send_buffers()
                elif len(queue) > 1 and isinstance(after := queue[1], LogSlice) and after.size > MAX_COPIED_SLICE_BYTES:
                    budget -= self.send_prefix(head)
                else:
                    budget -= self.send_buffers()
        except BlockingIOError:
            self.wait()
        except OSError as e:
            self.sender.on_send_failed(e, reading=e.errno in (None, errno.EIO))
        finally:
            self.report_progress()

    def send_prefix(self, head: Buffer) -> int:
        """Send the buffer before a large slice; return the number of bytes."""
        data = memoryview(head)[self.position :] if self.position else head
        sent = (self.duplicate_socket or self.open_duplicate()).send(data, MSG_MORE)
        self.sent += sent
        if sent == len(data):
            self.drop_head()
        else:
            self.position += sent
        return sent

    def send_buffers(self) -> int:
        """Send buffers and small slices up to the next large slice; return the number of bytes."""
        assert self.queue, "the queue is not empty"
        buffers: list[Buffer] = []
        total = 0
        flags = 0
        for part in self.queue:
            if isinstance(part, LogSlice):
                if part.size > MAX_COPIED_SLICE_BYTES or (
                    buffers and not part.file.is_cached(part.position, part.size)
                ):
                    flags = MSG_MORE
                    break
                if not buffers and not self.is_readable(part, part.size - self.position):
                    return 0
                data: Buffer = self.read(part)
            else:
                data = part
            if self.position and not buffers:
                data = memoryview(data)[self.position :]
            buffers.append(data)
            total += len(data)
            if total >= MAX_JOINED_BYTES or len(buffers) == MAX_VECTORS:
                break
        sent = self.write(buffers, total, flags)
        self.advance(sent)
        return sent

    def write(self, buffers: list[Buffer], total: int, flags: int) -> int:
        """Write the buffers with as few copies and system calls as possible; return the number of bytes."""
        if total == 0:
            return 0
        if len(buffers) == 1:
            joined = buffers[0]
        elif total <= MAX_JOINED_BYTES:
            joined = b"".join(buffers)
        else:
            return os.writev(self.fd, buffers)
        if flags:
            return self.open_duplicate().send(joined, flags)
        return os.write(self.fd, joined)

    def advance(self, sent: int) -> None:
        """Remove `sent` bytes and empty parts from the start of the queue."""
        left = sent
        self.sent += sent
        while self.queue:
            head = self.queue[0]
            size = (head.size if isinstance(head, LogSlice) else len(head)) - self.position
            if size > left:
                self.position += left
                return
            left -= size
            self.drop_head()

    def read(self, part: LogSlice) -> bytes:
        """Read a whole slice. Raises OSError if the file is too short."""
        data = part.file.read_at(part.position, part.size)
        if len(data) != part.size:
            raise OSError(f'"{part.file.path}" ends inside the {part.size} bytes at {part.position}')
        return data

    def send_slice(self, part: LogSlice, max_bytes: int) -> int:
        """Send up to `max_bytes` of the first slice with sendfile; return the number of bytes."""
        start = part.position + self.position
        max_bytes = min(max_bytes, MAX_RANGE_BYTES)
        file = part.file
        if not self.is_readable(part, max_bytes):
            return 0
        sent = os.sendfile(self.fd, file.fileno(), start, max_bytes)
        if sent == 0:
            raise OSError(f'"{file.path}" ends before byte {start}, inside a slice of {part.size} bytes')
        self.position += sent
        self.sent += sent
        if self.position == part.size:
            self.drop_head()
        return sent

    def open_duplicate(self) -> socket.socket:
        """Return the duplicate of the descriptor; open it on first use."""
        if self.duplicate_socket is None:
            self.duplicate_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=os.dup(self.fd))
            self.duplicate_socket.setblocking(False)
        return self.duplicate_socket

    def wait(self) -> None:
        """Wait until the socket is writable."""
        try:
            descriptor = self.open_duplicate().fileno()
        except OSError as e:  # no descriptor is left: only this connection fails
            self.sender.on_send_failed(e, reading=False)
            return
        self.waiting = True
        self.loop.add_writer(descriptor, self.on_writable)

    def yield_to_loop(self) -> None:
        """Continue behind the other callbacks that are ready."""
        self.waiting = True
        self.loop.call_soon(self.on_resumed)

    def on_resumed(self) -> None:
        """Continue after a yield."""
        self.waiting = False
        if not self.lost:
            self.pump()

    def on_writable(self) -> None:
        """Continue when the peer has read."""
        self.loop.remove_writer(self.open_duplicate().fileno())
        self.waiting = False
        self.pump()

    def discard(self) -> None:
        """Stop waiting and close the duplicate descriptor."""
        if self.duplicate_socket is not None:
            if self.waiting:
                self.loop.remove_writer(self.duplicate_socket.fileno())
                self.waiting = False
            self.duplicate_socket.close()
            self.duplicate_socket = None
        super().discard()


def join_small(parts: Sequence[ResponsePart]) -> Buffer | None:
    """Return the parts as one buffer; None if they are large, or contain slices that are not in the page cache."""
    if len(parts) == 1:
        part = parts[0]
        return None if isinstance(part, LogSlice) else part
    buffers: list[Buffer] = []
    total = 0
    for part in parts:
        if isinstance(part, LogSlice):
            total += part.size
            if part.size > MAX_COPIED_SLICE_BYTES or total > MAX_JOINED_BYTES:
                return None
            data = part.file.read_cached(part.position, part.size)
            if data is None:
                return None
            buffers.append(data)
        else:
            total += len(part)
            buffers.append(part)
    return b"".join(buffers) if total <= MAX_JOINED_BYTES else None


def release_sent(parts: Sequence[ResponsePart]) -> int:
    """Release the slices of parts that were sent; return the bytes that no longer count as unsent."""
    released = 0
    for part in parts:
        if isinstance(part, LogSlice):
            released += NOMINAL_SLICE_BYTES
            part.release()
        else:
            released += len(part)
    return released


class TransportOutput(Output):
    """Sends through a transport. Slices pass through memory."""

    __slots__ = ("transport",)

    def __init__(
        self,
        sender: ConnectionCore,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        transport: asyncio.WriteTransport,
    ) -> None:
        super().__init__(sender, loop, executor)
        self.transport = transport

    def pump(self) -> None:
        """Write the queue and report the progress."""
        try:
            self.write_queue()
        finally:
            self.report_progress()

    def write_queue(self) -> None:
        """Write parts until the transport pauses or a slice must be read ahead."""
        while self.queue and not self.waiting and not self.reading and not self.lost:
            head = self.queue[0]
            if not isinstance(head, LogSlice):
                self.write(head)
                self.drop_head()
                continue
            size = min(head.size - self.position, MAX_RANGE_BYTES)
            if not self.is_readable(head, size):
                return
            try:
                self.write_slice(head, head.file.read_at(head.position + self.position, size))
            except OSError as e:
                self.sender.on_send_failed(e, reading=True)
                return

    def write_slice(self, head: LogSlice, data: bytes) -> None:
        """Write `data`, the next bytes of the first slice. Raises OSError if the file is too short."""
        if not data:
            raise OSError(f'"{head.file.path}" ends inside a slice of {head.size} bytes at {head.position}')
        self.write(data)
        self.position += len(data)
        if self.position == head.size:
            self.drop_head()

    def write(self, data: Buffer) -> None:
        """Write to the transport and count the bytes."""
        if len(data):
            self.transport.write(data)
            self.sent += len(data)
