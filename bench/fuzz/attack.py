"""Sends mutated requests on many connections in turn, and looks in between whether good clients are served.

A request only counts for something where the broker reads it, so none is sent on a connection that the broker is about
to close for the one before: between two requests of a connection the good client has been answered.
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
"""On one connection, before it is left for another."""
CHECK_EVERY = 2000
RECEIVE_BYTES = 1 << 16
UNSPOILED = 0.3
"""The share of requests that are random but not mutated: they get past the decoders."""


@dataclass
class Outcome:
    """What was done, and how often the broker ended a connection for it."""

    requests: int = 0
    connections: int = 0
    closed_by_broker: int = 0
    checks: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.requests / max(self.seconds, 1e-9)


def attack(host: str, port: int, count: int, seed: int, progress: Callable[[Outcome], None]) -> Outcome:
    """Sends `count` requests. Raises `canary.Unwell` where a good client suffers; the same seed makes the same."""
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
                canary.ping()  # new connections are accepted in one turn of the loop
                canary.ping()  # and read in the next
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
    """One connection after the other."""

    def __init__(self, host: str, port: int, outcome: Outcome) -> None:
        self.address, self.outcome = (host, port), outcome
        self.socket: socket.socket | None = None
        self.sent = 0

    def send(self, frame: bytearray) -> None:
        """Sends one frame, on a connection of which the broker has not had enough."""
        sock = self.live()
        try:
            view = memoryview(frame)
            while view:
                view = view[sock.send(view) :]
        except OSError:
            self.leave()  # the broker has closed it, or does not read as we do not either
            return
        self.sent += 1
        (declared,) = struct.unpack_from(">i", frame)
        if declared != len(frame) - 4 or self.sent == MOST_REQUESTS:
            self.leave()  # what came behind it would be taken for its rest

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
        """Takes what answers there are; False where the broker has closed."""
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
