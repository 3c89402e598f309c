"""Bytes of a connection, without a socket: response frames cut out of the stream, request frames put together.

Used by `connection`; tested with plain bytes.
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
GROWTH = 8
"""How much larger a frame's buffer gets at a time; each time copies what has come."""
SIZE = struct.Struct(">i")
FOREIGN = {
    ForeignProtocol.HTTP: "the port answers in HTTP; give the port of a Kafka listener (9092 by default)",
    ForeignProtocol.TLS: "the broker answers in TLS: this is a TLS port, and the connection was made without TLS;"
    " configure TLS, or give the port of a listener without it",
    ForeignProtocol.SSH: "the port answers in SSH; give the port of a Kafka listener (9092 by default)",
}
REQUEST_HEAD = struct.Struct(">ihhih")


class ResponseReader:
    """Collects frames: give it the bytes that were received into `buffer()`, take frames from `received()`.

    Small frames are copied out of one reused buffer. A frame that does not fit is received into a buffer of its own,
    which grows as its bytes come, never on the word of the length alone.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._shared = bytearray(RECEIVE_SIZE)
        self._held = 0
        self._frame: bytearray | None = None
        self._frame_size = self._frame_held = 0

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._frame is None:
            return memoryview(self._shared)[self._held :]
        if self._frame_held == len(self._frame):
            # What is not touched yet costs no memory: a fresh buffer's pages come from the system when bytes do.
            grown = bytearray(min(self._frame_size, GROWTH * len(self._frame)))
            grown[: self._frame_held] = self._frame
            self._frame = grown
        return memoryview(self._frame)[self._frame_held :]

    def received(self, count: int) -> Iterator[memoryview]:
        """Takes note of `count` bytes in `buffer()`; yields each frame that is now complete, without its length.

        Raises MalformedMessage for a length that is negative or above the bound.
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
                raise MalformedMessage(misplaced(size, self.max_frame_bytes))
            end = start + SIZE.size + size
            if end > self._held:
                if SIZE.size + size > RECEIVE_SIZE:
                    self._own(view[start + SIZE.size : self._held], size)
                    return
                break
            yield memoryview(bytes(view[start + SIZE.size : end]))
            start = end
        rest = self._held - start
        if start and rest:
            self._shared[:rest] = bytes(view[start : self._held])
        self._held = rest

    def _own(self, beginning: memoryview, size: int) -> None:
        self._frame = bytearray(min(size, 2 * RECEIVE_SIZE))
        self._frame[: len(beginning)] = beginning
        self._frame_size, self._frame_held, self._held = size, len(beginning), 0


def misplaced(size: int, max_frame_bytes: int) -> str:
    """Describe a length that cannot be one: the first bytes may be those of another protocol."""
    foreign = foreign_protocol(size)
    if foreign is not None:
        return FOREIGN[foreign]
    return f"a response of {size} bytes, allowed are {max_frame_bytes}; does a Kafka broker listen on this port?"


def request_frame(request: Payload, version: int, correlation_id: int, client_id: bytes) -> bytearray:
    """A whole request with its length and header (v1, or v2 where the version is flexible)."""
    head = REQUEST_HEAD.pack(0, request.KEY, version, correlation_id, len(client_id)) + client_id
    if version >= request.FLEXIBLE_FROM:
        head += b"\0"
    frame = codec.encode(request, version, head)
    SIZE.pack_into(frame, 0, len(frame) - SIZE.size)
    return frame


def response_body(key: int, flexible: bool, frame: memoryview) -> memoryview:
    """What follows the response header; ApiVersions always has the shortest header."""
    offset = 4
    if flexible and key != API_VERSIONS_KEY:
        try:
            count, offset = read_uvarint(frame, offset)
            for _ in range(count):
                _, offset = read_uvarint(frame, offset)
                size, offset = read_uvarint(frame, offset)
                offset += size
        except IndexError:
            raise MalformedMessage("a response header is cut short") from None
    return frame[offset:]
