"""Sends answers: bytes from memory, and runs of a log file that the kernel copies straight to the socket.

A connection gives its answers here in order and is told of progress. `SocketOutput` writes to the descriptor itself
(uvloop has no sendfile of its own, and each answer saved from the transport's queue is a copy saved); it never sends
through the transport, so the two cannot mix. `TransportOutput` does the same by any transport, such as that of a
simulation or of TLS.

What may wait for the disk runs in a thread: a slice that is not in the page cache is read ahead there first.
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
from typing import Protocol

from penstock.api.exchange import Part
from penstock.log.types import LogSlice
from penstock.wire.primitives import Buffer

COPIED_SLICE_BYTES = 32 << 10
"""A slice up to this size is read and sent together with its neighbours: cheaper than a call of its own."""
TURN_BYTES = 4 << 20
"""What one connection may send before the others get their turn: one to two milliseconds."""
READ_AHEAD_BYTES = 1 << 20
JOINED_BYTES = 128 << 10
MAX_VECTORS = 512
MORE = getattr(socket, "MSG_MORE", 0)
HAS_SENDFILE = sys.platform == "linux"


NOMINAL_SLICE = 1024
"""What a slice counts for while it waits: its bytes are in a file, not in memory."""


class OutputSender(Protocol):
    """The connection, for its output."""

    def on_sent(self, size: int, released: int) -> None:
        """`size` bytes have gone out; `released` of what was given need no memory any more."""

    def on_send_failed(self, error: OSError, reading: bool) -> None:
        """Nothing more can be sent: the peer is gone or, where `reading`, the file cannot be read."""


class NoOutputSender:
    """Stands for a connection that is gone."""

    __slots__ = ()

    def on_sent(self, size: int, released: int) -> None:
        """Nobody counts it."""

    def on_send_failed(self, error: OSError, reading: bool) -> None:
        """Nobody waits."""


NO_SENDER = NoOutputSender()


class Output(ABC):
    """The queue that both kinds share. `position` is how much of the queue's head has been sent."""

    __slots__ = ("executor", "loop", "lost", "position", "queue", "reading", "released", "sender", "sent", "waiting")

    def __init__(self, sender: OutputSender, loop: asyncio.AbstractEventLoop, executor: Executor | None) -> None:
        self.sender, self.loop, self.executor = sender, loop, executor
        self.queue: deque[Part] | None = None
        self.position = 0
        self.sent = self.released = 0
        """What the connection has not been told of yet: it is told once for all that a turn has sent."""
        self.waiting = False
        """For the peer to take bytes, or for its turn."""
        self.reading = False
        """For a thread that reads ahead."""
        self.lost = False

    @property
    def idle(self) -> bool:
        return not self.queue

    def send(self, parts: Sequence[Part]) -> None:
        """Takes parts over, slices included, and sends what can be sent at once."""
        if self.queue is None:
            self.queue = deque(parts)
        else:
            self.queue.extend(parts)
        if not self.waiting and not self.reading:
            self.pump()

    @abstractmethod
    def pump(self) -> None:
        """Sends until there is nothing more, or something has to be waited for."""

    def drop_head(self) -> None:
        """The head of the queue is done."""
        queue = self.queue
        assert queue, "there is a head"
        part = queue.popleft()
        self.position = 0
        if isinstance(part, LogSlice):
            self.released += NOMINAL_SLICE
            part.release()
        else:
            self.released += len(part)
        if not queue:
            self.queue = None

    def tell(self) -> None:
        """Tells the connection what has gone out since it was told last."""
        sent, released = self.sent, self.released
        self.sent = self.released = 0
        if sent or released:
            self.sender.on_sent(sent, released)

    def read_ahead(self, part: LogSlice) -> None:
        """Brings the next stretch of a slice into the page cache; then goes on."""
        self.reading = True
        size = min(part.size - self.position, READ_AHEAD_BYTES)
        future = self.loop.run_in_executor(self.executor, part.file.read_at, part.position + self.position, size)
        future.add_done_callback(self.on_read)

    def on_read(self, future: asyncio.Future[bytes]) -> None:
        self.reading = False
        if self.lost:
            self.release_all()
            if not future.cancelled():
                future.exception()  # nobody is left to be told
            return
        try:
            self.take(future.result())
        except OSError as e:
            self.sender.on_send_failed(e, reading=True)
            return
        self.pump()

    @abstractmethod
    def take(self, data: bytes) -> None:
        """What was read ahead of the slice at the queue's head."""

    def close(self) -> None:
        """The connection is gone: releases what was not sent, as soon as no thread reads it any more."""
        self.lost = True
        self.sender = NO_SENDER  # a connection and its output would keep each other alive
        if not self.reading:
            self.release_all()

    def release_all(self) -> None:
        queue, self.queue = self.queue, None
        for part in queue or ():
            if isinstance(part, LogSlice):
                part.release()


class SocketOutput(Output):
    """Writes to the connection's own descriptor; waits for it by a duplicate, as the loop shares none."""

    __slots__ = ("after_read", "fd", "is_closing", "second")

    def __init__(
        self,
        sender: OutputSender,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        fd: int,
        is_closing: Callable[[], bool],
    ) -> None:
        super().__init__(sender, loop, executor)
        self.fd, self.is_closing = fd, is_closing
        self.second: socket.socket | None = None
        self.after_read = False

    def send(self, parts: Sequence[Part]) -> None:
        """Most answers are small buffers that go out at once, in one call where several are due together."""
        whole = None if self.queue is not None or self.waiting else joined(parts)
        if whole is None:
            super().send(parts)
            return
        if self.lost or self.is_closing():
            return
        try:
            sent = os.write(self.fd, whole)
        except BlockingIOError:
            sent = 0
        except OSError as e:
            self.sender.on_send_failed(e, reading=False)
            return
        if sent == len(whole):
            self.sender.on_sent(sent, sent)
            return
        self.queue = deque(parts)
        self.advance(sent)
        self.pump()

    def pump(self) -> None:
        budget = TURN_BYTES
        try:
            while (queue := self.queue) and not self.reading:
                if self.lost or self.is_closing():
                    return
                if budget <= 0:
                    self.yield_turn()
                    return
                head = queue[0]
                if isinstance(head, LogSlice):
                    if head.size > COPIED_SLICE_BYTES or self.position:
                        budget -= self.send_slice(head, min(budget, head.size - self.position))
                    else:
                        budget -= self.send_buffers()
                elif len(queue) > 1 and isinstance(after := queue[1], LogSlice) and after.size > COPIED_SLICE_BYTES:
                    budget -= self.send_prefix(head)
                else:
                    budget -= self.send_buffers()
        except BlockingIOError:
            self.wait()
        except OSError as e:
            self.sender.on_send_failed(e, reading=e.errno in (None, errno.EIO))
        finally:
            self.tell()

    def send_prefix(self, head: Buffer) -> int:
        """Sends what stands before a large slice."""
        data = memoryview(head)[self.position :] if self.position else head
        sent = (self.second or self.duplicate()).send(data, MORE)
        self.sent += sent
        if sent == len(data):
            self.drop_head()
        else:
            self.position += sent
        return sent

    def send_buffers(self) -> int:
        """Sends from the head of the queue up to the next large slice."""
        assert self.queue, "there is something to send"
        buffers: list[Buffer] = []
        total = 0
        more = 0
        for part in self.queue:
            if isinstance(part, LogSlice):
                if part.size > COPIED_SLICE_BYTES or (buffers and not part.file.cached(part.position, part.size)):
                    more = MORE
                    break
                if not buffers and not self.ready(part):
                    return 0
                data: Buffer = self.read(part)
            else:
                data = part
            if self.position and not buffers:
                data = memoryview(data)[self.position :]
            buffers.append(data)
            total += len(data)
            if total >= JOINED_BYTES or len(buffers) == MAX_VECTORS:
                break
        sent = self.write(buffers, total, more)
        self.advance(sent)
        return sent

    def write(self, buffers: list[Buffer], total: int, more: int) -> int:
        if total == 0:
            return 0
        if len(buffers) == 1:
            joined = buffers[0]
        elif total <= JOINED_BYTES:
            joined = b"".join(buffers)
        else:
            return os.writev(self.fd, buffers)
        if more:
            return self.duplicate().send(joined, more)
        return os.write(self.fd, joined)

    def advance(self, sent: int) -> None:
        """Takes `sent` bytes, and parts of no bytes at all, off the queue's head."""
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

    def ready(self, part: LogSlice) -> bool:
        """Whether the head can be read without waiting for the disk; if not, a thread is on its way."""
        if self.after_read or part.file.cached(part.position + self.position, part.size - self.position):
            self.after_read = False
            return True
        self.after_read = True  # sent next, whatever the cache says then: it must not be read ahead for ever
        self.read_ahead(part)
        return False

    def read(self, part: LogSlice) -> bytes:
        data = part.file.read_at(part.position, part.size)
        if len(data) != part.size:
            raise OSError(f"{part.file.path} ends inside the {part.size} bytes at {part.position}")
        return data

    def send_slice(self, part: LogSlice, most: int) -> int:
        """Lets the kernel send up to `most` bytes of the slice at the head of the queue."""
        start = part.position + self.position
        most = min(most, READ_AHEAD_BYTES)
        file = part.file
        if self.after_read:
            self.after_read = False
        elif not file.cached(start, most):
            self.after_read = True
            self.read_ahead(part)
            return 0
        sent = os.sendfile(self.fd, file.fileno(), start, most)
        if sent == 0:
            raise OSError(f"{file.path} ends before byte {start}, inside a run of {part.size} bytes")
        self.position += sent
        self.sent += sent
        if self.position == part.size:
            self.drop_head()
        return sent

    def take(self, data: bytes) -> None:
        """The kernel has it now, which is all that sendfile needs."""

    def duplicate(self) -> socket.socket:
        if self.second is None:
            self.second = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=os.dup(self.fd))
            self.second.setblocking(False)
        return self.second

    def wait(self) -> None:
        try:
            descriptor = self.duplicate().fileno()
        except OSError as e:  # none is left: this connection ends, the others go on
            self.sender.on_send_failed(e, reading=False)
            return
        self.waiting = True
        self.loop.add_writer(descriptor, self.on_writable)

    def yield_turn(self) -> None:
        """Goes on behind what else is ready by now."""
        self.waiting = True
        self.loop.call_soon(self.on_turn)

    def on_turn(self) -> None:
        self.waiting = False
        if not self.lost:
            self.pump()

    def on_writable(self) -> None:
        self.loop.remove_writer(self.duplicate().fileno())
        self.waiting = False
        self.pump()

    def close(self) -> None:
        if self.second is not None:
            if self.waiting:
                self.loop.remove_writer(self.second.fileno())
                self.waiting = False
            self.second.close()
            self.second = None
        super().close()


def joined(parts: Sequence[Part]) -> Buffer | None:
    """The parts as one buffer; None where there are slices among them, or too much to copy."""
    if len(parts) == 1:
        part = parts[0]
        return None if isinstance(part, LogSlice) else part
    buffers = [part for part in parts if not isinstance(part, LogSlice)]
    few = len(buffers) == len(parts) and sum(map(len, buffers)) <= JOINED_BYTES
    return b"".join(buffers) if few else None


class TransportOutput(Output):
    """Sends by the transport. Slices are read in a thread where they are not cached, and pass through memory."""

    __slots__ = ("transport",)

    def __init__(
        self,
        sender: OutputSender,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        transport: asyncio.WriteTransport,
    ) -> None:
        super().__init__(sender, loop, executor)
        self.transport = transport

    def pause(self) -> None:
        """The transport's buffer is full (`pause_writing`)."""
        self.waiting = True

    def resume(self) -> None:
        self.waiting = False
        if not self.reading:
            self.pump()

    def pump(self) -> None:
        try:
            self.write_queue()
        finally:
            self.tell()

    def write_queue(self) -> None:
        while self.queue and not self.waiting and not self.reading and not self.lost:
            head = self.queue[0]
            if not isinstance(head, LogSlice):
                self.write(head)
                self.drop_head()
                continue
            size = min(head.size - self.position, READ_AHEAD_BYTES)
            if not head.file.cached(head.position + self.position, size):
                self.read_ahead(head)
                return
            try:
                self.write_slice(head, head.file.read_at(head.position + self.position, size))
            except OSError as e:
                self.sender.on_send_failed(e, reading=True)
                return

    def take(self, data: bytes) -> None:
        assert self.queue, "what was read is the head of the queue"
        head = self.queue[0]
        assert isinstance(head, LogSlice), head
        self.write_slice(head, data)

    def write_slice(self, head: LogSlice, data: bytes) -> None:
        if not data:
            raise OSError(f"{head.file.path} ends inside a run of {head.size} bytes at {head.position}")
        self.write(data)
        self.position += len(data)
        if self.position == head.size:
            self.drop_head()

    def write(self, data: Buffer) -> None:
        if len(data):
            self.transport.write(data)
            self.sent += len(data)
