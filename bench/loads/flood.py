"""A client far above its quota: it sends as fast as the broker reads, and ignores throttle times."""

from __future__ import annotations

import os
import select
import socket
import struct
import time

from bench import wire
from bench.connection import Connection
from bench.loads.specs import Flood as Spec
from bench.loads.specs import Metrics
from bench.loads.stream import Stream

MESSAGE_BYTES = 1000
DISCARD_BYTES = 1 << 20


def run(spec: Spec) -> Metrics:
    """Flood the broker for `spec.limit_s` seconds, or until the process is ended. Raises OSError if the broker closes
    the connection."""
    os.nice(19)  # the client that is measured shares the core
    request = _request(spec)
    connection = Connection(spec.address)
    stream, responses = Stream(connection), DiscardedResponses(connection.socket)
    deadline = time.monotonic() + spec.limit_s
    in_flight = answers = 0
    try:
        while time.monotonic() < deadline:
            if stream.full:
                stream.push()
            while in_flight < spec.depth and not stream.full:
                stream.send(request)
                in_flight += 1
            select.select([connection.socket], [connection.socket] if stream.full else [], [], 1.0)
            received = responses.discard()
            in_flight -= received
            answers += received
    finally:
        connection.close()
    return {"answers": answers}


class DiscardedResponses:
    """Counts the responses on a non-blocking socket; the kernel discards their bytes (MSG_TRUNC, see tcp(7)).

    A client that copied them would take the core from the client that is measured for milliseconds at a time.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._size_field = b""
        """The bytes received of the size field of the next response."""
        self._left = 0
        """Bytes of the current response that have not arrived."""
        self.unused = bytearray(DISCARD_BYTES)
        """The buffer that recv requires; the kernel does not write to it."""

    def discard(self) -> int:
        """Discard what has arrived; return the number of responses completed. Raises ConnectionError if the broker
        closed."""
        completed = 0
        try:
            while True:
                completed += self._discard_body() if self._left else self._receive_size()
        except BlockingIOError:
            return completed

    def _receive_size(self) -> int:
        """Receive the size field; return 1 if the response is empty."""
        data = self._socket.recv(4 - len(self._size_field))
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._size_field += data
        if len(self._size_field) < 4:
            return 0
        (self._left,) = struct.unpack(">i", self._size_field)
        self._size_field = b""
        return int(not self._left)

    def _discard_body(self) -> int:
        """Discard bytes of the current response; return 1 if it is complete."""
        number = self._socket.recv_into(self.unused, min(self._left, DISCARD_BYTES), socket.MSG_TRUNC)
        if not number:
            raise ConnectionError("the broker closed the connection")
        self._left -= number
        return int(not self._left)


def _request(spec: Spec) -> bytes:
    client_id = spec.client_id.encode()
    if spec.is_fetch:
        return wire.fetch_request(spec.topic, 0, 0, max_wait_ms=0, client_id=client_id)
    values = [b"x" * MESSAGE_BYTES] * max(spec.size_bytes // MESSAGE_BYTES, 1)
    return wire.produce_request(spec.topic, [(0, wire.record_batch(values))], acks=1, client_id=client_id)
