"""Finds brokers that are absent for a short time. They get new replicas if too few brokers are registered.

A restarting broker must not make the creation of a topic fail. It never becomes the first or only replica of a
partition, and joins the ISR when it is back. Called by `broker_availability`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from penstock.control.members import ABSENCES, BROKER_HISTORIES, AbsenceRecord
from penstock.state.records import BadRecord, decode
from penstock.state.store import StoreEntry


def absent_brokers(
    entries: Iterable[StoreEntry], registered: Collection[int], now_ms: int, replace_after_ms: int
) -> frozenset[int]:
    """Return the brokers that registered before and have been absent for less than `replace_after_ms` (-1: no limit).

    `entries` are those of `members.BROKER_PREFIX`. A broker without an absence record has just left.
    """
    known: set[int] = set()
    since_ms: dict[int, int] = {}
    for entry in entries:
        for prefix in (BROKER_HISTORIES, ABSENCES):
            name = entry.key[len(prefix) :]
            if not entry.key.startswith(prefix) or not name.isdecimal():
                continue
            if prefix == BROKER_HISTORIES:
                known.add(int(name))
                continue
            with suppress(BadRecord):
                since_ms[int(name)] = decode(AbsenceRecord, entry.key, entry.value).since_ms
    return frozenset(
        broker
        for broker in known
        if broker not in registered
        and (replace_after_ms < 0 or now_ms - since_ms.get(broker, now_ms) < replace_after_ms)
    )
