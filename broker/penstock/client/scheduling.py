"""Headers that schedule records and cancel them, in topics with `delivery.schedule.enable`. Part of the public API."""

from __future__ import annotations

from penstock.wire.record import Header
from penstock.wire.scheduled_batch import CANCEL, DELIVER_AFTER, DELIVER_AT


def deliver_at(time_ms: int) -> Header:
    """Return the header of a record that is delivered at a time, in ms since 1970; at most 30 days ahead."""
    return schedule_header(DELIVER_AT, time_ms)


def deliver_after(delay_ms: int) -> Header:
    """Return the header of a record that is delivered after a time, in ms, from when the broker gets it; at most 30
    days."""
    return schedule_header(DELIVER_AFTER, delay_ms)


def cancel_scheduled() -> Header:
    """Return the header of a record that cancels all scheduled records with its key in its partition."""
    return CANCEL, None


def schedule_header(name: str, value_ms: int) -> Header:
    """Return a header with a number. Raises ValueError if it is negative."""
    if value_ms < 0:
        raise ValueError(f'invalid time "{value_ms}" for the header {name}; use 0 or more milliseconds')
    return name, b"%d" % value_ms
