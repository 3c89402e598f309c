"""The bounds that keep one peer, or ten thousand, from taking the broker's memory. `node` fills them in."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes in bytes, times in seconds.

    `max_request_bytes` is socket.request.max.bytes; `idle_s` is connections.max.idle.ms, which also ends connections
    that stop in the middle of a frame or do not read their answers; `max_connections` and `max_connections_per_ip`
    are Kafka's settings of these names.
    """

    max_request_bytes: int = 100 * MIB
    max_in_flight: int = 1000
    """Requests of one connection that await their answer; its next ones are not read before."""
    max_in_flight_bytes: int = 8 * MIB
    """The size of those requests: what is kept of them takes several times as much. One by itself may be larger."""
    max_unsent_bytes: int = 2 * MIB
    """Answers of one connection that wait to be sent; past it, no more of its requests are read."""
    max_receive_bytes: int = 128 * MIB
    """What all connections together may hold of requests that have not arrived completely."""
    pressure_s: float = 30.0
    """How long a connection is kept from sending for want of that memory before it is closed."""
    idle_s: float = 600.0
    max_connections: int = 100_000
    max_connections_per_ip: int = 100_000
    backlog: int = 4096
