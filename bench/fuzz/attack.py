"""Send mutated requests on many connections in turn, and check between them that the broker serves good clients.

A request tests something only if the broker reads it. The broker may be about to close a connection because of an
earlier request, so the good client waits for a response between two requests of a connection.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.fuzz import messages
from bench.fuzz.canary import Canary
from bench.fuzz.mutations import MUTATIONS
from penstock.wire.schema import Payload

CONNECTIONS = 64
MOST_REQUESTS = 60
"""Maximum number of requests on one connection."""
CHECK_EVERY = 2000
RECEIVE_BYTES = 1 << 16
UNSPOILED = 0.3
"""Share of requests that are random but not mutated, so that they pass the decoders."""


@dataclass
class Outcome:
    """Counts of requests, checks and connections, and of connections that the broker closed."""

    requests: int = 0
    connections: int = 0
    closed_by_broker: int = 0
    checks: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.requests / max(self.seconds, 1e-9)


def attack(host: str, port: int, count: int, seed: int, progress: Callable[[Outcome], None]) -> Outcome:
    """Send `count` requests, determined by the seed. Raises `canary.Unwell` if the broker fails a good client."""
    rng = random.Random(seed)
    classes = messages.requests()
    outcome = Outcome()
    started = time.monotonic()
    lines = [Line(host, port, outcome) for _ in range(CONNECTIONS)]
    with Canary(host, port, f"canary-{seed}-{time.time_ns()}") as canary:
        canary.create(canary.topic, messages.TOPIC)
        try:
            while outcome.requests < count:
                for line in lines[: count - outcome.requests]:
                    line.send(spoiled(rng, classes, outcome.requests))
                    outcome.requests += 1
                canary.ping()  # the event loop accepts new connections in one iteration
                canary.ping()  # and reads from them in the next
                if outcome.requests // CHECK_EVERY >= outcome.checks or outcome.requests >= count:
                    outcome.checks += 1
                    canary.sing(b"%d" % outcome.requests)
                    outcome.seconds = time.monotonic() - started
                    progress(outcome)
        finally:
            for line in lines:
                line.leave()
        canary.listen()
    return outcome


def spoiled(rng: random.Random, classes: list[type[Payload]], correlation_id: int) -> bytearray:
    frame = messages.random_request(rng, classes, correlation_id & 0x7FFFFFFF)
    if rng.random() >= UNSPOILED:
        for _ in range(rng.choice([1, 1, 2])):
            if len(frame) > 5:
                frame = rng.choice(MUTATIONS)(frame, rng)
    return frame


class Line:
    """A sequence of connections, one at a time."""

    def __init__(self, host: str, port: int, outcome: Outcome) -> None:
        self.address, self.outcome = (host, port), outcome
        self.socket: socket.socket | None = None
        self.sent = 0

    def send(self, frame: bytearray) -> None:
        """Send one frame on a connection that the broker has not closed."""
        sock = self.live()
        try:
            view = memoryview(frame)
            while view:
                view = view[sock.send(view) :]
        except OSError:
            self.leave()  # the broker closed the connection, or does not read because this client does not
            return
        self.sent += 1
        (declared,) = struct.unpack_from(">i", frame)
        if declared != len(frame) - 4 or self.sent == MOST_REQUESTS:
            self.leave()  # the broker would read the next frame as the rest of this one

    def live(self) -> socket.socket:
        if self.socket is not None and not self.drain(self.socket):
            self.outcome.closed_by_broker += 1
            self.leave()
        if self.socket is None:
            self.socket = socket.create_connection(self.address, 20)
            self.socket.setblocking(False)
            self.outcome.connections += 1
            self.sent = 0
        return self.socket

    def drain(self, sock: socket.socket) -> bool:
        """Discard the available responses. Return False if the broker closed the connection."""
        try:
            while True:
                got = sock.recv(RECEIVE_BYTES)
                if len(got) < RECEIVE_BYTES:
                    return bool(got)
        except BlockingIOError:
            return True
        except OSError:
            return False

    def leave(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None
