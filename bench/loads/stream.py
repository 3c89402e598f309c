"""A non-blocking connection for loads that have many requests under way; the paced load and the surge use it."""

from __future__ import annotations

import struct

from bench.connection import Connection

RECEIVE_BYTES = 1 << 20


class Stream:
    """Takes requests as the socket takes them, gives whole answers as they come."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.socket = connection.socket
        self.socket.setblocking(False)
        self._pending = bytearray()
        self._unsent = memoryview(b"")

    @property
    def full(self) -> bool:
        """True while the socket has not taken all of the last request."""
        return len(self._unsent) > 0

    def send(self, request: bytes) -> None:
        """Begins to send; ``push`` continues where the socket did not take all of it."""
        assert not self.full, "the last request has not left yet"
        self._unsent = memoryview(request)
        self.push()

    def push(self) -> None:
        """Sends as much as the socket takes now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return

    def answers(self) -> list[bytes]:
        """The answers that have arrived whole, without their sizes; ConnectionError where the broker closed."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._pending += data
        found = []
        while len(self._pending) >= 4:
            end = 4 + struct.unpack_from(">i", self._pending)[0]
            if len(self._pending) < end:
                break
            found.append(bytes(self._pending[4:end]))
            del self._pending[:end]
        return found
