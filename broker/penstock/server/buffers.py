"""Receive buffers and request framing, used by `connection`.

All connections receive into one shared buffer, and complete requests are served from it, so an idle connection holds no
memory. Only an incomplete frame moves out of it: a small fragment is copied, a large frame goes to a buffer that grows
as bytes arrive. A declared frame size never allocates memory by itself; the size of earlier frames does only up to
`BufferPool.trusted_bytes`.
"""

from __future__ import annotations

import struct

from penstock.api.exchange import ProtocolViolation
from penstock.wire.foreign import ForeignProtocol, foreign_protocol

SHARED_BUFFER_BYTES = 1 << 20
MAX_COPIED_FRAGMENT_BYTES = 64 << 10
"""A frame that needs no larger buffer is kept as a copy of its start, which is prepended to the next read."""
EXACT_READ_BYTES = 64 << 10
"""If a frame misses more than this, the read ends with that frame, so that the next one starts a buffer."""
GROWTH_FACTOR = 4
MAX_RETAINED_BYTES = 8 << 20
MAX_RETAINED_BUFFER_BYTES = 4 << 20
DEFAULT_TRUSTED_BYTES = 64 << 20
FRAME_SIZE = struct.Struct(">i")
MAX_FRAME_SETTING = "socket.request.max.bytes"
"""The setting of the usual limit."""
HTTP_VIOLATION = "the client speaks HTTP; this port is for Kafka clients, the HTTP port is 8080 by default"
HTTP_BODY = b"This is a port for Kafka clients. Health and metrics are on the HTTP port (8080 by default).\n"
HTTP_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(HTTP_BODY), HTTP_BODY)
)


def frame_size_violation(size: int, max_frame_bytes: int, setting: str = MAX_FRAME_SETTING) -> ProtocolViolation:
    """Return the error for an invalid frame size, whose bytes may be the start of another protocol.

    `setting` sets the limit.
    """
    foreign = foreign_protocol(size)
    if foreign is ForeignProtocol.HTTP:
        return ProtocolViolation(HTTP_VIOLATION, HTTP_RESPONSE)
    if foreign is not None:
        return ProtocolViolation(
            f"the client speaks {foreign.value}; this listener speaks the Kafka protocol without TLS"
        )
    return ProtocolViolation(f'request size "{size}" is not in 0 to {max_frame_bytes}; {setting} sets the limit')


class BufferPool:
    """The shared buffer, spare buffers, and the number of bytes that connections hold.

    While connections hold less than `trusted_bytes`, a connection may allocate a whole frame before the frame has
    arrived.
    """

    __slots__ = ("held_bytes", "max_request_bytes", "retained_bytes", "shared", "spare", "trusted_bytes")

    def __init__(self, max_request_bytes: int, trusted_bytes: int = DEFAULT_TRUSTED_BYTES) -> None:
        self.max_request_bytes, self.trusted_bytes = max_request_bytes, trusted_bytes
        self.shared = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self.spare: dict[int, list[memoryview]] = {}
        self.retained_bytes = 0
        self.held_bytes = 0

    def acquire(self, size: int) -> memoryview:
        """Return a buffer of at least `size` bytes; its size is a power of two if the pool may retain it."""
        capacity = 1 << (size - 1).bit_length() if size <= MAX_RETAINED_BUFFER_BYTES else size
        spare = self.spare.get(capacity)
        if spare:
            self.retained_bytes -= capacity
            return spare.pop()
        return memoryview(bytearray(capacity))

    def release(self, buffer: memoryview) -> None:
        """Return a buffer to the pool, which retains up to MAX_RETAINED_BYTES."""
        capacity = len(buffer)
        if capacity <= MAX_RETAINED_BUFFER_BYTES and self.retained_bytes + capacity <= MAX_RETAINED_BYTES:
            self.retained_bytes += capacity
            self.spare.setdefault(capacity, []).append(buffer)

    def replace_shared(self) -> memoryview:
        """Return the shared buffer and put another in its place."""
        buffer = self.shared
        self.shared = self.acquire(SHARED_BUFFER_BYTES)
        return buffer


class RequestReader:
    """Splits one connection's byte stream into frames.

    The caller calls `get_buffer`, receives into it, then `received`, then `next_frame` until it returns None or the
    caller stops, then `retain_partial_frame`, which invalidates the frames. With no new bytes, `get_buffer` and
    `received(0)` continue with the held ones. `largest_frame_bytes` is the largest frame
    that the peer has completed; the next frame gets a buffer of that size at once while `trusted_bytes` allows it.
    """

    __slots__ = (
        "end",
        "fragment",
        "frame_buffer",
        "held_bytes",
        "largest_frame_bytes",
        "max_frame_bytes",
        "max_frame_setting",
        "needed",
        "pool",
        "start",
        "view",
    )

    def __init__(self, pool: BufferPool) -> None:
        self.pool = pool
        self.fragment: bytes | None = None
        """A copy of the start of a frame."""
        self.frame_buffer: memoryview | None = None
        """The buffer of a large incomplete frame, from its first byte."""
        self.view: memoryview | None = None
        """The buffer that frames are read from, between `start` and `end`: the shared buffer or `frame_buffer`."""
        self.start = self.end = 0
        self.needed = 0
        """Size of the incomplete frame including its size field; 0 while unknown."""
        self.held_bytes = 0
        self.largest_frame_bytes = 0
        self.max_frame_bytes = pool.max_request_bytes
        self.max_frame_setting = MAX_FRAME_SETTING

    def get_buffer(self) -> memoryview:
        """Return the buffer to receive the next bytes into."""
        frame_buffer = self.frame_buffer
        if frame_buffer is not None:
            missing = self.needed - self.end
            return (
                frame_buffer[self.end : self.needed]
                if missing > EXACT_READ_BYTES and self.needed <= len(frame_buffer)
                else frame_buffer[self.end :]
            )
        shared = self.pool.shared
        fragment = self.fragment
        if fragment is None:
            return shared
        shared[: len(fragment)] = fragment
        return shared[len(fragment) :]

    def received(self, size: int) -> None:
        """Record that `size` bytes were received into the buffer that `get_buffer` returned."""
        if self.frame_buffer is not None:
            self.end += size
            return
        self.view = self.pool.shared
        self.start = 0
        self.end = size
        if self.fragment is not None:
            self.end += len(self.fragment)

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame without its size field, or None. Raises ProtocolViolation."""
        view = self.frame_buffer if self.frame_buffer is not None else self.view
        start = self.start + 4
        if start > self.end:
            self.needed = 0
            return None
        assert view is not None, "available bytes are in a buffer"
        (size,) = FRAME_SIZE.unpack_from(view, start - 4)
        if not 0 <= size <= self.max_frame_bytes:
            raise frame_size_violation(size, self.max_frame_bytes, self.max_frame_setting)
        stop = start + size
        if stop > self.end:
            self.needed = size + 4
            return None
        self.start = stop
        if size > self.largest_frame_bytes:
            self.largest_frame_bytes = size
        self.needed = 0
        return view[start:stop]

    def retain_partial_frame(self) -> None:
        """Move an incomplete frame out of the shared buffer; release buffers that are no longer needed."""
        if self.start == self.end and not self.held_bytes:
            self.view = None
            return
        view = self.frame_buffer if self.frame_buffer is not None else self.view
        if view is None:
            return
        left = self.end - self.start
        if left == 0:
            self.clear()
            self.view = None
            return
        pool = self.pool
        is_trusted = pool.held_bytes - self.held_bytes + self.needed <= pool.trusted_bytes
        ahead = self.largest_frame_bytes + 4 if is_trusted else 0
        capacity = min(max(self.needed, left), max(GROWTH_FACTOR * left, ahead))
        if capacity <= MAX_COPIED_FRAGMENT_BYTES:
            fragment = bytes(view[self.start : self.end])
            self.clear()
            self.fragment = fragment
            self.set_held_bytes(left)
        else:
            self.retain_in_frame_buffer(view, left, capacity + (left == capacity))
        self.view = None

    def retain_in_frame_buffer(self, view: memoryview, left: int, capacity: int) -> None:
        """Move the `left` unread bytes to the start of a buffer of at least `capacity` bytes."""
        frame_buffer = self.frame_buffer
        if frame_buffer is not None and len(frame_buffer) >= capacity:
            if self.start:
                frame_buffer[:left] = frame_buffer[self.start : self.end]
        elif frame_buffer is None and self.start == 0 and SHARED_BUFFER_BYTES >= capacity > SHARED_BUFFER_BYTES // 2:
            self.clear()
            self.frame_buffer = self.pool.replace_shared()
            self.set_held_bytes(len(self.frame_buffer))
        else:
            larger = self.pool.acquire(capacity)
            larger[:left] = view[self.start : self.end]
            self.clear()
            self.frame_buffer = larger
            self.set_held_bytes(len(larger))
        self.start, self.end = 0, left

    def set_held_bytes(self, size: int) -> None:
        """Count `size` bytes as held by this connection."""
        self.held_bytes = size
        self.pool.held_bytes += size

    def clear(self) -> None:
        """Discard the held bytes and release their buffer."""
        if self.frame_buffer is not None:
            self.pool.release(self.frame_buffer)
            self.frame_buffer = None
        self.fragment = None
        self.pool.held_bytes -= self.held_bytes
        self.held_bytes = 0
        self.start = self.end = 0
