"""A TCP proxy for the brokers that drops answers: the broker has executed the request, but the client gets no answer.

Clients learn the brokers' addresses from answers, in which the proxy replaces the ports by its own. A port is four
bytes after the host name, so the proxy needs to parse nothing else.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from penstock_e2e.drivers.confluent import ConfluentAdmin

PRODUCE, FETCH = 0, 1


class Proxy:
    """`lose(api_key, number)` returns whether to drop the answer to the n-th request of an API (from 1, over all
    connections), and close its connection. `lost` counts the dropped answers."""

    def __init__(self, upstreams: list[tuple[str, int]], lose: Callable[[int, int], bool]) -> None:
        self._lose = lose
        self._lock = threading.Lock()
        self._requests: dict[int, int] = {}
        self._sockets: list[socket.socket] = []
        self.lost = 0
        self._servers = [socket.create_server(("127.0.0.1", 0)) for _ in upstreams]
        ports = [server.getsockname()[1] for server in self._servers]
        self.port: int = ports[0]
        self._addresses = [
            (host.encode() + struct.pack(">i", theirs), host.encode() + struct.pack(">i", ours))
            for (host, theirs), ours in zip(upstreams, ports, strict=True)
        ]
        for server, upstream in zip(self._servers, upstreams, strict=True):
            threading.Thread(target=self._accept, args=(server, upstream), daemon=True).start()

    def _accept(self, server: socket.socket, upstream: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                broker = socket.create_connection(upstream)
                self._sockets += [client, broker]
                doomed: set[int] = set()
                for source, target, forward in (
                    (client, broker, self._request),
                    (broker, client, self._response),
                ):
                    threading.Thread(target=_pump, args=(source, target, forward, doomed), daemon=True).start()

    def _request(self, frame: bytes, doomed: set[int]) -> bytes:
        api_key, _, correlation_id = struct.unpack_from(">hhi", frame)
        with self._lock:
            number = self._requests[api_key] = self._requests.get(api_key, 0) + 1
        if self._lose(api_key, number):
            doomed.add(correlation_id)
        return frame

    def _response(self, frame: bytes, doomed: set[int]) -> bytes | None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        if correlation_id in doomed:
            with self._lock:
                self.lost += 1
            return None
        for theirs, ours in self._addresses:
            frame = frame.replace(theirs, ours)
        return frame

    def close(self) -> None:
        for each in [*self._servers, *self._sockets]:
            # Shutting a socket down wakes a thread that waits on it; closing it does not.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _pump(
    source: socket.socket,
    target: socket.socket,
    forward: Callable[[bytes, set[int]], bytes | None],
    doomed: set[int],
) -> None:
    """Forward whole frames until `forward` returns None or one side closes; then close both."""
    with contextlib.suppress(OSError, EOFError):
        while True:
            (size_bytes,) = struct.unpack(">i", _receive(source, 4))
            frame = forward(_receive(source, size_bytes), doomed)
            if frame is None:
                break
            target.sendall(struct.pack(">i", len(frame)) + frame)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _receive(source: socket.socket, size_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < size_bytes:
        chunk = source.recv(size_bytes - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


@contextlib.contextmanager
def losing(admin: ConfluentAdmin, lose: Callable[[int, int], bool]) -> Iterator[Proxy]:
    """A proxy for all brokers of the cluster."""
    proxy = Proxy(admin.broker_addresses(), lose)
    try:
        yield proxy
    finally:
        proxy.close()
