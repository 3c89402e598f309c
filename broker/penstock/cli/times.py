"""Parses and formats points in time for command line options and output."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from penstock.config.addresses import quoted

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MILLISECONDS = re.compile("[0-9]{5,19}")
MAX_TIME_MS = (1 << 63) - 1
RELATIVE = re.compile(r"-(\d{1,12})(ms|s|m|h|d)")

DURATION = re.compile(r"(\d{1,12})(ms|s|m|h|d)", re.ASCII)


def parse_time_ms(text: str, now_ms: int) -> int:
    """Return milliseconds since the epoch for an ISO 8601 time (local without an offset), `-90m` (units ms, s, m, h,
    d), or a number of milliseconds. Raises ValueError.
    """
    relative = RELATIVE.fullmatch(text)
    if relative is not None:
        return max(now_ms - int(relative[1]) * UNITS_MS[relative[2]], 0)
    if MILLISECONDS.fullmatch(text) and int(text) <= MAX_TIME_MS:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{quoted(text)} is not a time; use 2026-01-31T10:00:00Z, -90m for 90 minutes ago, or milliseconds since"
            " the epoch"
        ) from None


def parse_delay_ms(text: str) -> int:
    """Return milliseconds for a duration such as `90m` (units ms, s, m, h, d). Raises ValueError."""
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{quoted(text)} is not a duration; use 90m for 90 minutes, with a unit of ms, s, m, h or d")
    return int(found[1]) * UNITS_MS[found[2]]


def format_time(timestamp_ms: int) -> str:
    """Return the time in UTC with milliseconds; "-" if negative."""
    if timestamp_ms < 0:
        return "-"
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
