"""What the server counts, in plain integers, for the metrics to read."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class CloseReason(StrEnum):
    """Why a connection ended."""

    PEER = "peer"
    IDLE = "idle"
    VIOLATION = "violation"
    ABORTED = "aborted"
    """A handler gave up on it, as for a refused batch that expects no answer."""
    FAILED = "failed"
    """An exception escaped from a handler, or records could not be read."""
    TOO_MANY = "too_many"
    MEMORY = "memory"
    SHUTDOWN = "shutdown"


class ServerStats:
    """Totals since the start, except `connections` and `paused`, which are as of now."""

    __slots__ = ("accepted", "bytes_in", "bytes_out", "closed", "connections", "paused", "pauses", "requests")

    def __init__(self) -> None:
        self.connections = 0
        self.accepted = 0
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.paused = 0
        """Connections that are not read because they owe something: answers not taken, or memory."""
        self.pauses = 0
        self.closed: Counter[CloseReason] = Counter()
