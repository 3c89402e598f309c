"""A blocking connection for requests that are built in advance, used by the raw loads and the start-up suite."""

from __future__ import annotations

import socket
import struct
import time

from bench import wire


class Connection:
    """One TCP connection without Nagle's algorithm. Raises OSError, or ConnectionError if the peer closed."""

    def __init__(self, address: str, timeout_s: float = 30.0) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self.socket.close()

    def exactly(self, size_bytes: int) -> bytes:
        """Return the next `size_bytes`."""
        data = self.socket.recv(size_bytes)
        while len(data) < size_bytes:
            more = self.socket.recv(size_bytes - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection in the middle of an answer")
            data += more
        return data

    def receive(self) -> bytes:
        """Return the next response without its size field; it starts with the correlation id."""
        head = self.socket.recv(65536)
        if not head:
            raise ConnectionError("the broker closed the connection")
        if len(head) < 4:
            head += self.exactly(4 - len(head))
        size_bytes = struct.unpack_from(">i", head)[0]
        missing = 4 + size_bytes - len(head)
        assert missing >= 0, "more than one answer arrived for one request"
        return head[4:] + (self.exactly(missing) if missing else b"")

    def ask(self, request: bytes) -> bytes:
        self.socket.sendall(request)
        return self.receive()


def led_partitions(address: str, topic: str, *, create: bool = False, timeout_s: float = 30.0) -> int:
    """Return the number of the topic's partitions that have a leader; 0 if the topic does not exist."""
    connection = Connection(address, timeout_s)
    try:
        answer = connection.ask(wire.metadata_request([topic], create=create))
        error, led = wire.metadata_response(answer).get(topic, (3, 0))
        return 0 if error else led
    finally:
        connection.close()


def wait_until_answering(address: str, deadline: float) -> None:
    """Wait until the broker answers a Metadata request. Raises TimeoutError at `deadline` (time.monotonic)."""
    while True:
        try:
            connection = Connection(address, timeout_s=2.0)
            try:
                connection.ask(wire.metadata_request([]))
                return
            finally:
                connection.close()
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the broker at {address} does not answer") from None
            time.sleep(0.02)
