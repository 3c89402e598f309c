"""A non-blocking connection for loads with many requests in flight, used by the paced load and the surge."""

from __future__ import annotations

import struct

from bench.connection import Connection

RECEIVE_BYTES = 1 << 20


class Stream:
    """A connection that buffers partial sends and returns complete responses."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.socket = connection.socket
        self.socket.setblocking(False)
        self._pending = bytearray()
        self._unsent = memoryview(b"")

    @property
    def full(self) -> bool:
        """Whether the socket has not accepted all of the last request."""
        return len(self._unsent) > 0

    def send(self, request: bytes) -> None:
        """Start to send; `push` continues if the socket did not accept everything."""
        assert not self.full, "the last request has not left yet"
        self._unsent = memoryview(request)
        self.push()

    def push(self) -> None:
        """Send as much as the socket accepts now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return

    def answers(self) -> list[bytes]:
        """Yield complete responses without their size fields. Raises ConnectionError if the broker closed."""
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
