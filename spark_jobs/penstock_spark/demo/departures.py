"""Flights in the order in which they left, each with its record: what the demo produces.

Read by the standard library alone, so that what comes out of Spark can be held against another reading of the file
(`expected`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from penstock.cli.demo.flights import read_flights

MINUTE_MS = 60_000


class Departure(msgspec.Struct):
    """What of a flight decides when it is sent."""

    time_hour: datetime
    """The hour of its scheduled departure, UTC."""
    minute: int
    dep_delay: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class DepartureSender:
    """One flight: sent at `left_ms`, of event time `scheduled_ms` (both ms since 1970)."""

    left_ms: int
    scheduled_ms: int
    carrier: str
    message: bytes


def sendings(path: Path) -> list[DepartureSender]:
    """All flights as they leave. A late one is sent late, so event times are up to 22 hours out of order; a cancelled
    one is sent when it should have left."""
    decode = msgspec.json.Decoder(Departure).decode
    found = []
    for flight, message in read_flights(path):
        departure = decode(message)
        hour_ms = int(departure.time_hour.astimezone(UTC).timestamp()) * 1000
        scheduled_ms = hour_ms + departure.minute * MINUTE_MS
        left_ms = scheduled_ms + max(departure.dep_delay or 0, 0) * MINUTE_MS
        found.append(DepartureSender(left_ms, scheduled_ms, flight.carrier, message))
    found.sort()
    return found


def slices(flights: Sequence[DepartureSender], count: int) -> Iterator[tuple[Sequence[DepartureSender], float]]:
    """About `count` runs of flights, each with the share of the whole time (0 to 1) at which it is to be sent."""
    first_ms = flights[0].left_ms
    span_ms = max(flights[-1].left_ms - first_ms, 1)
    size = max(len(flights) // count, 1)
    for start in range(0, len(flights), size):
        part = flights[start : start + size]
        yield part, (part[-1].left_ms - first_ms) / span_ms
