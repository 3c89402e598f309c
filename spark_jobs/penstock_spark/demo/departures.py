"""Flights in order of departure, each with its record: what the demo produces.

Reads the file with the standard library, so that Spark's results are compared with an independent reading (`expected`).
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
    """The fields of a flight that determine when it is sent."""

    time_hour: datetime
    """Hour of the scheduled departure, UTC."""
    minute: int
    dep_delay: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class FlightRecord:
    """A flight to send at `left_ms`, with event time `scheduled_ms` (both ms since the epoch)."""

    left_ms: int
    scheduled_ms: int
    carrier: str
    message: bytes


def read_departures(path: Path) -> list[FlightRecord]:
    """Return all flights in order of departure. A late flight is sent late, so event times are up to 22 hours out of
    order; a cancelled one is sent at its scheduled time."""
    decode = msgspec.json.Decoder(Departure).decode
    found = []
    for flight, message in read_flights(path):
        departure = decode(message)
        hour_ms = int(departure.time_hour.astimezone(UTC).timestamp()) * 1000
        scheduled_ms = hour_ms + departure.minute * MINUTE_MS
        left_ms = scheduled_ms + max(departure.dep_delay or 0, 0) * MINUTE_MS
        found.append(FlightRecord(left_ms, scheduled_ms, flight.carrier, message))
    found.sort()
    return found


def slices(flights: Sequence[FlightRecord], count: int) -> Iterator[tuple[Sequence[FlightRecord], float]]:
    """Yield about `count` runs of flights, each with the fraction of the total time at which it is sent."""
    first_ms = flights[0].left_ms
    span_ms = max(flights[-1].left_ms - first_ms, 1)
    size = max(len(flights) // count, 1)
    for start in range(0, len(flights), size):
        part = flights[start : start + size]
        yield part, (part[-1].left_ms - first_ms) / span_ms
