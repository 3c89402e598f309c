"""Brokers that are known and away for a short time: they get new replicas where the registered ones do not suffice.

A broker that restarts must not make the creation of a topic fail. It is never a partition's first or only replica, and
joins the in-sync replicas once it is back. Used by `topic_admin` and by reassignments on request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from penstock.control.members import GONE, PASTS, GoneRecord
from penstock.state.records import BadRecord, decode
from penstock.state.store import StoreEntry


def away_brokers(
    entries: Iterable[StoreEntry], registered: Collection[int], now_ms: int, replace_after_ms: int
) -> frozenset[int]:
    """The brokers that were registered before and are not, for less than `replace_after_ms` (-1: for any time).

    `entries` are those of `members.ABOUT_BROKERS`. A broker whose absence the controller has not noted yet has just
    gone.
    """
    known: set[int] = set()
    since_ms: dict[int, int] = {}
    for entry in entries:
        for prefix in (PASTS, GONE):
            name = entry.key[len(prefix) :]
            if not entry.key.startswith(prefix) or not name.isdecimal():
                continue
            if prefix == PASTS:
                known.add(int(name))
                continue
            with suppress(BadRecord):
                since_ms[int(name)] = decode(GoneRecord, entry.key, entry.value).since_ms
    return frozenset(
        broker
        for broker in known
        if broker not in registered
        and (replace_after_ms < 0 or now_ms - since_ms.get(broker, now_ms) < replace_after_ms)
    )
