"""A connection core without I/O: the kit implements its hub, transport and output, and records their calls."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence

from penstock.api.exchange import FrameHandler, PeerInfo, ResponsePart
from penstock.log.types import LogSlice
from penstock.server.buffers import BufferPool
from penstock.server.core import NOMINAL_SLICE_BYTES, ConnectionCore
from penstock.server.limits import ServerLimits
from penstock.server.stats import ServerStats

ACTIVITY_RESOLUTION_S = 1.0


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def unframed(stream: bytes) -> list[bytes]:
    contents = []
    while stream:
        (size,) = struct.unpack_from(">i", stream)
        contents.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
    return contents


class CoreBench:
    """Implements `ConnectionHub`, `ConnectionTransport` and `ResponseOutput` for one core."""

    def __init__(self, handler: FrameHandler, limits: ServerLimits | None = None) -> None:
        self.handler, self.limits = handler, limits or ServerLimits()
        self.pool = BufferPool(self.limits.max_request_bytes)
        self.stats = ServerStats()
        self.now = 1000.0
        self.arriving = bytearray()
        """Bytes that the peer has sent and the core has not received."""
        self.sent = bytearray()
        self.sends = 0
        self.is_peer_reading = True
        self.unsent: deque[ResponsePart] = deque()
        self.scheduled: list[Callable[[], None]] = []
        self.is_reading = True
        self.ending: str | None = None
        self.activity: list[float] = []
        self.memory_reliefs = 0
        self.is_handshaking = False
        self.warnings: list[tuple[str, str]] = []
        self.core = ConnectionCore(self)
        self.core.peer = PeerInfo(1, "PLAINTEXT", "127.0.0.1", 5)
        self.core.transport = self.core.output = self

    # Actions of the test

    def arrive(self, *contents: bytes, chunk: int = 1 << 20) -> None:
        """Send requests as the peer; the core receives them in chunks while it reads."""
        self.arriving += b"".join(map(framed, contents))
        while self.receive(chunk):
            pass

    def receive(self, most: int) -> bool:
        """Pass up to `most` bytes to the core and return whether it received any."""
        if not (self.arriving and self.is_reading) or self.ending:
            return False
        buffer = self.core.reader.get_buffer()
        size = min(len(buffer), most, len(self.arriving))
        buffer[:size] = self.arriving[:size]
        del self.arriving[:size]
        self.core.receive(size, self.now)
        return True

    def turn(self) -> None:
        """Run the scheduled callbacks, as one iteration of an event loop."""
        scheduled, self.scheduled = self.scheduled, []
        for callback in scheduled:
            callback()

    def drain(self) -> None:
        """Read all unsent parts as the peer."""
        self.is_peer_reading = True
        size = released = 0
        while self.unsent:
            part = self.unsent.popleft()
            if isinstance(part, LogSlice):
                data = part.file.read_at(part.position, part.size)
                part.release()
                released += NOMINAL_SLICE_BYTES
            else:
                data = bytes(part)
                released += len(data)
            self.sent += data
            size += len(data)
        self.core.on_sent(size, released, self.now)

    @property
    def answers(self) -> list[bytes]:
        return unframed(bytes(self.sent))

    # ConnectionHub

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.scheduled.append(callback)

    def flush_soon(self, connection: ConnectionCore) -> None:
        self.scheduled.append(connection.flush)

    def record_activity(self, connection: ConnectionCore, now: float) -> None:
        self.activity.append(now)
        connection.last_active, connection.activity_stale_at = now, now + ACTIVITY_RESOLUTION_S

    def watch_handshake(self, connection: ConnectionCore) -> None:
        self.is_handshaking = True

    def unwatch_handshake(self, connection: ConnectionCore) -> None:
        self.is_handshaking = False

    def relieve_memory(self) -> None:
        self.memory_reliefs += 1

    def log_peer_warning(self, event: str, peer: PeerInfo, why: str) -> None:
        self.warnings.append((event, why))

    # ConnectionTransport

    def pause_reading(self) -> None:
        assert self.is_reading, "a pause while paused"
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading, "a resume while reading"
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.ending is not None

    def close(self) -> None:
        self.ending = self.ending or "closed"

    def abort(self) -> None:
        self.ending = self.ending or "aborted"

    # ResponseOutput

    @property
    def idle(self) -> bool:
        return not self.unsent

    def send(self, parts: Sequence[ResponsePart]) -> None:
        if self.ending:
            return
        self.sends += 1
        self.unsent.extend(parts)
        if self.is_peer_reading:
            self.drain()

    def discard(self) -> None:
        for part in self.unsent:
            if isinstance(part, LogSlice):
                part.release()
        self.unsent.clear()
