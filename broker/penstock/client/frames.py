"""Parses response frames from a byte stream and builds request frames. No I/O.

Used by `connection`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from penstock.wire import codec
from penstock.wire.foreign import ForeignProtocol, foreign_protocol
from penstock.wire.schema import MalformedMessage, Payload
from penstock.wire.varint import read_uvarint

API_VERSIONS_KEY = 18
RECEIVE_SIZE = 256 * 1024
GROWTH_FACTOR = 8
"""Growth of a frame's own buffer; each growth copies the bytes received so far."""
SIZE = struct.Struct(">i")
FOREIGN_PROTOCOL_HINTS = {
    ForeignProtocol.HTTP: "the port speaks HTTP; use the port of a Kafka listener (9092 by default)",
    ForeignProtocol.TLS: "this is a TLS port, but the client connected without TLS;"
    " configure TLS, or use the port of a listener without TLS",
    ForeignProtocol.SSH: "the port speaks SSH; use the port of a Kafka listener (9092 by default)",
}
REQUEST_HEAD = struct.Struct(">ihhih")


class ResponseReader:
    """Splits received bytes into frames: write bytes into `buffer()`, then read frames from `received()`.

    Small frames are copied out of a reused buffer. A larger frame gets its own buffer, which grows as bytes arrive
    rather than by the length alone.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._shared = bytearray(RECEIVE_SIZE)
        self._held = 0
        self._frame: bytearray | None = None
        self._frame_size = self._frame_held = 0

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        if self._frame is None:
            return memoryview(self._shared)[self._held :]
        if self._frame_held == len(self._frame):
            # Untouched pages of a new buffer use no memory.
            grown = bytearray(min(self._frame_size, GROWTH_FACTOR * len(self._frame)))
            grown[: self._frame_held] = self._frame
            self._frame = grown
        return memoryview(self._frame)[self._frame_held :]

    def received(self, count: int) -> Iterator[memoryview]:
        """Record `count` bytes in `buffer()`; yield each complete frame without its length prefix.

        Raises MalformedMessage for a negative length or one above the maximum.
        """
        if self._frame is not None:
            self._frame_held += count
            if self._frame_held == self._frame_size:
                frame, self._frame = self._frame, None
                yield memoryview(frame)
            return
        self._held += count
        start = 0
        view = memoryview(self._shared)
        while self._held - start >= SIZE.size:
            (size,) = SIZE.unpack_from(self._shared, start)
            if not 0 <= size <= self.max_frame_bytes:
                raise MalformedMessage(describe_invalid_length(size, self.max_frame_bytes))
            end = start + SIZE.size + size
            if end > self._held:
                if SIZE.size + size > RECEIVE_SIZE:
                    self._start_large_frame(view[start + SIZE.size : self._held], size)
                    return
                break
            yield memoryview(bytes(view[start + SIZE.size : end]))
            start = end
        rest = self._held - start
        if start and rest:
            self._shared[:rest] = bytes(view[start : self._held])
        self._held = rest

    def _start_large_frame(self, beginning: memoryview, size: int) -> None:
        self._frame = bytearray(min(size, 2 * RECEIVE_SIZE))
        self._frame[: len(beginning)] = beginning
        self._frame_size, self._frame_held, self._held = size, len(beginning), 0


def describe_invalid_length(size: int, max_frame_bytes: int) -> str:
    """Describe an invalid length: the first bytes may belong to another protocol."""
    foreign = foreign_protocol(size)
    if foreign is not None:
        return FOREIGN_PROTOCOL_HINTS[foreign]
    return f"invalid response length {size}, at most {max_frame_bytes}; check that a Kafka broker listens on this port"


def request_frame(request: Payload, version: int, correlation_id: int, client_id: bytes) -> bytearray:
    """Return a request with length prefix and header (v1; v2 for flexible versions)."""
    head = REQUEST_HEAD.pack(0, request.KEY, version, correlation_id, len(client_id)) + client_id
    if version >= request.FLEXIBLE_FROM:
        head += b"\0"
    frame = codec.encode(request, version, head)
    SIZE.pack_into(frame, 0, len(frame) - SIZE.size)
    return frame


def response_body(key: int, flexible: bool, frame: memoryview) -> memoryview:
    """Return the bytes after the response header. ApiVersions responses always have header v0."""
    offset = 4
    if flexible and key != API_VERSIONS_KEY:
        try:
            count, offset = read_uvarint(frame, offset)
            for _ in range(count):
                _, offset = read_uvarint(frame, offset)
                size, offset = read_uvarint(frame, offset)
                offset += size
        except IndexError:
            raise MalformedMessage("truncated response header") from None
    return frame[offset:]
