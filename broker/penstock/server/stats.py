"""Server statistics as plain integers, which the metrics read."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum


class CloseReason(StrEnum):
    """Why a connection was closed."""

    PEER = "peer"
    IDLE = "idle"
    VIOLATION = "violation"
    ABORTED = "aborted"
    """A handler aborted it, for example for a rejected batch with acks=0."""
    FAILED = "failed"
    """A handler raised an unexpected exception, or records could not be read."""
    TOO_MANY = "too_many"
    MEMORY = "memory"
    AUTHENTICATION = "authentication"
    """Authentication failed, or a session ended without re-authentication."""
    HANDSHAKE = "handshake"
    """The client did not authenticate in time."""
    SHUTDOWN = "shutdown"
    TLS = "tls"
    """The TLS handshake failed, or the peer broke the TLS protocol."""


class ServerStats:
    """Totals since the start, except the gauges `connections` and `paused`."""

    __slots__ = ("accepted", "bytes_in", "bytes_out", "closed", "connections", "paused", "pauses", "requests")

    def __init__(self) -> None:
        self.connections = 0
        self.accepted = 0
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.paused = 0
        """Connections that are not read because of unsent responses, requests in flight, memory or quotas."""
        self.pauses = 0
        self.closed: Counter[CloseReason] = Counter()
