"""A non-blocking connection that sends and receives plain bytes, for the protocols that are not Kafka's."""

from __future__ import annotations

import socket

RECEIVE_BYTES = 1 << 20


class ByteStream:
    """A TCP connection without Nagle's algorithm. It blocks until `start_polling`.

    Raises OSError, or ConnectionError if the server closed.
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        host, port = address.rsplit(":", 1)
        self._timeout_s = timeout_s
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unsent = bytearray()

    def start_polling(self) -> None:
        """Return from `receive` without data, and keep what the socket does not accept, from now on."""
        self.socket.setblocking(False)

    def stop_polling(self) -> None:
        """Send what is left, and block again, with the timeout."""
        self.socket.settimeout(self._timeout_s)
        self.push()

    def send(self, data: bytes) -> None:
        """Send, or keep for `push` what the socket does not accept now."""
        if not self._unsent:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self._unsent += data
        self.push()

    def push(self) -> None:
        """Send as much as the socket accepts now."""
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return

    def receive(self) -> bytes:
        """Return what has arrived; without polling, wait for the first byte."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def close(self) -> None:
        self.socket.close()
