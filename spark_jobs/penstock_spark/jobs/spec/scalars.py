"""Scalar types of a job file: durations, sizes, SQL. Called by `document`, which adds the line to errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from penstock.config.addresses import quoted

SECOND = 1_000
UNITS_MS = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "s": SECOND, "sec": SECOND, "second": SECOND, "seconds": SECOND,
    "m": 60 * SECOND, "min": 60 * SECOND, "minute": 60 * SECOND, "minutes": 60 * SECOND,
    "h": 3_600 * SECOND, "hour": 3_600 * SECOND, "hours": 3_600 * SECOND,
    "d": 86_400 * SECOND, "day": 86_400 * SECOND, "days": 86_400 * SECOND,
}  # fmt: skip
UNITS_BYTES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
AMOUNT = re.compile(r"\s*(\d{1,15})\s*([A-Za-z]+)\s*")
MAX_DURATION_MS = 3_650 * 86_400 * SECOND
MAX_SQL = 100_000


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in milliseconds."""

    ms: int

    @property
    def sql(self) -> str:
        """The duration as a Spark interval."""
        return f"{self.ms} milliseconds"

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.ms / SECOND

    def __str__(self) -> str:
        for unit in ("day", "hour", "minute", "second"):
            if self.ms and self.ms % UNITS_MS[unit] == 0:
                count = self.ms // UNITS_MS[unit]
                return f"{count} {unit}{'' if count == 1 else 's'}"
        return f"{self.ms} ms"


@dataclass(frozen=True, slots=True)
class Size:
    """A size in bytes."""

    bytes: int

    def __str__(self) -> str:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if self.bytes and self.bytes % size == 0:
                return f"{self.bytes // size} {unit}"
        return f"{self.bytes} B"


class Sql(str):
    """An SQL expression or query. Spark parses it when the job starts."""

    __slots__ = ()


def parse_duration(value: object) -> Duration:
    """Parse `10 seconds`, `5m`, `1 day`. Raises `ValueError`."""
    found = AMOUNT.fullmatch(value) if isinstance(value, str) else None
    unit = UNITS_MS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ValueError(
            f"invalid duration {quoted(str(value))}; write a number and a unit, such as 500 ms, 10 seconds, 5m, 1 day"
        )
    ms = int(found[1]) * unit
    if ms > MAX_DURATION_MS:
        raise ValueError(f"duration {quoted(str(value))} is longer than ten years")
    return Duration(ms)


def parse_size(value: object) -> Size:
    """Parse `64 MiB`, or a number of bytes. Raises `ValueError`."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 50:
        return Size(value)
    found = AMOUNT.fullmatch(value) if isinstance(value, str) else None
    unit = UNITS_BYTES.get(found[2].lower()) if found else None
    if found is None or unit is None or int(found[1]) * unit >= 1 << 50:
        raise ValueError(
            f"invalid size {quoted(str(value))}; write bytes, or a number and a unit, such as 512 KiB, 64 MiB, 1 GiB"
        )
    return Size(int(found[1]) * unit)


def parse_sql(value: object) -> Sql:
    """Return text that is not blank. Raises `ValueError`."""
    if isinstance(value, bool | int | float):
        value = str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected SQL text")
    if len(value) > MAX_SQL:
        raise ValueError(f"SQL has {len(value):,} characters; at most {MAX_SQL:,} are allowed")
    return Sql(value.strip())


PARSERS: dict[type, Callable[[object], object]] = {Duration: parse_duration, Size: parse_size, Sql: parse_sql}
