"""Limits that protect the broker's memory from one peer or from many. `node` sets them from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes in bytes, times in seconds.

    `max_request_bytes` is `socket.request.max.bytes`. `idle_s` is `connections.max.idle.ms`, which also closes
    connections that stop in the middle of a frame or do not read their responses. `max_connections` and
    `max_connections_per_ip` are Kafka's settings of these names.
    """

    max_request_bytes: int = 100 * MIB
    max_in_flight: int = 1000
    """Requests of one connection without a response; at the limit, its next requests are not read."""
    max_in_flight_bytes: int = 8 * MIB
    """Total size of those requests, which take several times as much memory. A single request may exceed it."""
    max_unsent_bytes: int = 2 * MIB
    """Unsent responses of one connection; past the limit, its next requests are not read."""
    max_receive_bytes: int = 128 * MIB
    """Incomplete requests of all connections together."""
    max_memory_wait_s: float = 30.0
    """How long a connection may be paused for lack of that memory before it is closed."""
    idle_s: float = 600.0
    handshake_s: float = 30.0
    """How long a client may take to authenticate."""
    max_connections: int = 100_000
    max_connections_per_ip: int = 100_000
    backlog: int = 4096
