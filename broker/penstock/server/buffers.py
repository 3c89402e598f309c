"""Where bytes from the network lie until they are a whole request.

All connections receive into one shared buffer and whole requests are served right there, so an idle connection holds
no memory. Only what is left of an incomplete frame moves to a place of its own: a few bytes to a copy of just their
size, large frames to a buffer that grows as they arrive. A declared size by itself never makes anybody allocate, and
what a peer has sent before only as far as `BufferPool.trusted_bytes` goes.
"""

from __future__ import annotations

import struct

from penstock.api.exchange import ProtocolViolation
from penstock.wire.foreign import ForeignProtocol, foreign_protocol

SHARED_BYTES = 1 << 20
SMALL_BYTES = 64 << 10
"""Below it, the start of a frame is kept as a copy and put before what is received next."""
EXACT_BYTES = 64 << 10
"""When more than this is missing of a frame, nothing behind it is received with it: the next one starts a buffer."""
GROWTH = 4
RETAINED_BYTES = 8 << 20
LARGEST_RETAINED = 4 << 20
TRUSTED_BYTES = 64 << 20
SIZE = struct.Struct(">i")
HTTP_ON_KAFKA_PORT = "the client speaks HTTP, and this is the port for Kafka clients"
HTTP_BODY = b"This is a port for Kafka clients. Health and metrics are on the HTTP port (8080 by default).\n"
HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(HTTP_BODY), HTTP_BODY)
)


def violation(size: int, most_bytes: int) -> ProtocolViolation:
    """The error for a length that cannot be one: the first bytes may be those of another protocol."""
    foreign = foreign_protocol(size)
    if foreign is ForeignProtocol.HTTP:
        return ProtocolViolation(HTTP_ON_KAFKA_PORT, HTTP_ANSWER)
    if foreign is not None:
        return ProtocolViolation(f"the client speaks {foreign.value}, and this listener speaks Kafka without TLS")
    return ProtocolViolation(f"a request claims {size} bytes: 0 to {most_bytes} are taken (socket.request.max.bytes)")


class BufferPool:
    """The shared buffer, spare ones, and the sum of what connections hold.

    While they hold less than `trusted_bytes`, room is made for a whole frame before it has arrived.
    """

    __slots__ = ("held_bytes", "max_request_bytes", "retained_bytes", "shared", "spare", "trusted_bytes")

    def __init__(self, max_request_bytes: int, trusted_bytes: int = TRUSTED_BYTES) -> None:
        self.max_request_bytes, self.trusted_bytes = max_request_bytes, trusted_bytes
        self.shared = memoryview(bytearray(SHARED_BYTES))
        self.spare: dict[int, list[memoryview]] = {}
        self.retained_bytes = 0
        self.held_bytes = 0

    def borrow(self, size: int) -> memoryview:
        """A buffer of at least `size` bytes; a power of two where it is small enough to be kept for others."""
        capacity = 1 << (size - 1).bit_length() if size <= LARGEST_RETAINED else size
        spare = self.spare.get(capacity)
        if spare:
            self.retained_bytes -= capacity
            return spare.pop()
        return memoryview(bytearray(capacity))

    def give_back(self, buffer: memoryview) -> None:
        capacity = len(buffer)
        if capacity <= LARGEST_RETAINED and self.retained_bytes + capacity <= RETAINED_BYTES:
            self.retained_bytes += capacity
            self.spare.setdefault(capacity, []).append(buffer)

    def replace_shared(self) -> memoryview:
        """Hands over the shared buffer and takes another in its place."""
        taken = self.shared
        self.shared = self.borrow(SHARED_BYTES)
        return taken


class RequestReader:
    """Cuts one connection's bytes into frames.

    A turn: `get_buffer` → (bytes are received into it) → `received` → `next_frame` until it returns None or the caller
    has had enough → `settle`, after which no frame is valid any more. `proven_bytes` is the largest frame that the peer
    has completed: for as much it gets a buffer at once, while the pool can trust it.
    """

    __slots__ = ("end", "held_bytes", "most_bytes", "needed", "own", "pool", "proven_bytes", "rest", "start", "view")

    def __init__(self, pool: BufferPool) -> None:
        self.pool = pool
        self.rest: bytes | None = None
        """The start of a frame, as a copy."""
        self.own: memoryview | None = None
        """The start of a large frame, from its first byte on."""
        self.view: memoryview | None = None
        """What is being read: the shared buffer or `own`, from `start` to `end`."""
        self.start = self.end = 0
        self.needed = 0
        """Size of the incomplete frame, its size field included; 0 while that is not known."""
        self.held_bytes = 0
        self.proven_bytes = 0
        self.most_bytes = pool.max_request_bytes

    @property
    def incomplete(self) -> bool:
        """Whether something is held that awaits more."""
        return self.held_bytes > 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes should be received."""
        own = self.own
        if own is not None:
            missing = self.needed - self.end
            return own[self.end : self.needed] if missing > EXACT_BYTES and self.needed <= len(own) else own[self.end :]
        shared = self.pool.shared
        rest = self.rest
        if rest is None:
            return shared
        shared[: len(rest)] = rest
        return shared[len(rest) :]

    def received(self, size: int) -> None:
        """`size` bytes are now in the buffer that `get_buffer` gave."""
        if self.own is not None:
            self.end += size
            return
        self.view = self.pool.shared
        self.start = 0
        self.end = size
        if self.rest is not None:
            self.end += len(self.rest)

    def recall(self) -> None:
        """Makes what is held readable again without anything new: `next_frame` goes on with it."""
        if self.own is None and self.rest is not None:
            self.get_buffer()
            self.received(0)

    def next_frame(self) -> memoryview | None:
        """The next whole frame, without its size field; None where more is needed. Raises ProtocolViolation."""
        view = self.own if self.own is not None else self.view
        start = self.start + 4
        if start > self.end:
            self.needed = 0
            return None
        assert view is not None, "bytes are available, so they are somewhere"
        (size,) = SIZE.unpack_from(view, start - 4)
        if not 0 <= size <= self.most_bytes:
            raise violation(size, self.most_bytes)
        stop = start + size
        if stop > self.end:
            self.needed = size + 4
            return None
        self.start = stop
        if size > self.proven_bytes:
            self.proven_bytes = size
        self.needed = 0
        return view[start:stop]

    def settle(self) -> None:
        """Puts what is left where it can wait; gives back what is no longer needed."""
        if self.start == self.end and not self.held_bytes:  # mostly
            self.view = None
            return
        view = self.own if self.own is not None else self.view
        if view is None:
            return
        left = self.end - self.start
        if left == 0:
            self.clear()
            self.view = None
            return
        pool = self.pool
        is_trusted = pool.held_bytes - self.held_bytes + self.needed <= pool.trusted_bytes
        ahead = self.proven_bytes + 4 if is_trusted else 0
        capacity = min(max(self.needed, left), max(GROWTH * left, ahead))
        if capacity <= SMALL_BYTES:
            rest = bytes(view[self.start : self.end])
            self.clear()
            self.rest = rest
            self.hold(left)
        else:
            self.settle_large(view, left, capacity + (left == capacity))
        self.view = None

    def settle_large(self, view: memoryview, left: int, capacity: int) -> None:
        """Moves what is left to the front of a buffer with room for `capacity` bytes."""
        own = self.own
        if own is not None and len(own) >= capacity:
            if self.start:
                own[:left] = own[self.start : self.end]
        elif own is None and self.start == 0 and SHARED_BYTES >= capacity > SHARED_BYTES // 2:
            self.clear()
            self.own = self.pool.replace_shared()
            self.hold(len(self.own))
        else:
            larger = self.pool.borrow(capacity)
            larger[:left] = view[self.start : self.end]
            self.clear()
            self.own = larger
            self.hold(len(larger))
        self.start, self.end = 0, left

    def hold(self, size: int) -> None:
        self.held_bytes = size
        self.pool.held_bytes += size

    def clear(self) -> None:
        """Holds nothing any more."""
        if self.own is not None:
            self.pool.give_back(self.own)
            self.own = None
        self.rest = None
        self.pool.held_bytes -= self.held_bytes
        self.held_bytes = 0
        self.start = self.end = 0
