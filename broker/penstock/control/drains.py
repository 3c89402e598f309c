"""Which brokers may take new replicas: not those to be emptied (`broker.draining`), and that this is still so when
something is placed; where others do not suffice those that are away for a short time.

Used by whoever places replicas: `topic_admin` and reassignments by request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.config.broker import BrokerConfig
from penstock.control.away import away_brokers
from penstock.control.members import ABOUT_BROKERS
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.state.records import BadRecord, BrokerConfigRecord, decode
from penstock.state.store import Compare, Store, StoreEntry
from penstock.state.view import ClusterView

SETTING = "broker.draining"
MAX_COMPARED = 100
"""Brokers whose settings one transaction compares; with more than that, those that come last may begin to drain
unnoticed, and are emptied all the same."""


@dataclass(frozen=True, slots=True)
class Drains:
    """The brokers that drain, and the settings from which that follows. Without a cluster there are none of either."""

    brokers: frozenset[int] = frozenset()
    entries: Mapping[str, StoreEntry] = field(default_factory=dict)
    is_known: bool = False
    away: frozenset[int] = frozenset()
    """Brokers that are away for less than `broker.replace.after.ms` and do not drain."""

    def unchanged_for(self, assignment: Iterable[Sequence[int]]) -> list[Compare]:
        """The conditions under which the brokers of an assignment still drain or do not."""
        if not self.is_known:
            return []
        used = sorted({broker for replicas in assignment for broker in replicas})[:MAX_COMPARED]
        return [
            Compare.unchanged(self.entries[key]) if key in self.entries else Compare.absent(key)
            for key in map(keys.broker_config, used)
        ]


async def read_drains(store: Store, view: ClusterView, clock: Clock, config: BrokerConfig) -> Drains:
    """Reads the settings and the absences of all brokers linearizably. Raises `StoreError`."""
    entries = (await store.range(ABOUT_BROKERS)).entries
    away = away_brokers(entries, view.brokers, clock.wall_ms(), config.broker_replace_after_ms)
    return drains_of([entry for entry in entries if entry.key.startswith(keys.BROKER_CONFIGS)], away)


def drains_of(entries: Sequence[StoreEntry], away: frozenset[int] = frozenset()) -> Drains:
    """From all entries of `keys.BROKER_CONFIGS`. A drain is asked for broker by broker: set for all it means nobody."""
    by_key = {entry.key: entry for entry in entries}
    draining = set()
    for entry in entries:
        name = entry.key[len(keys.BROKER_CONFIGS) :]
        if name.isdecimal() and is_set(entry):
            draining.add(int(name))
    return Drains(frozenset(draining), by_key, is_known=True, away=away - draining)


def is_set(entry: StoreEntry) -> bool:
    try:
        settings = decode(BrokerConfigRecord, entry.key, entry.value).settings
    except BadRecord:
        return False
    return settings.get(SETTING, "").strip().lower() == "true"


def is_removable(view: ClusterView, broker_id: int) -> bool:
    """Whether no partition has a replica on a broker: it can be stopped for ever. Told as `broker.removable`."""
    return not any(
        broker_id in partition.replicas for topic in view.topics_by_id.values() for partition in topic.partitions
    )
