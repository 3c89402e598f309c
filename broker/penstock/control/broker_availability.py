"""Reads which brokers can get new replicas: not those that drain (`broker.draining`), absent ones only if needed.

Called by code that places replicas: `topic_admin` and `controller.reassignment_requests`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.config.broker import BROKER_SETTINGS, BrokerConfig
from penstock.control.absent_brokers import absent_brokers
from penstock.control.members import BROKER_PREFIX
from penstock.runtime.clock import Clock
from penstock.state import keys
from penstock.state.records import BadRecord, BrokerConfigRecord, decode
from penstock.state.store import Compare, Store, StoreEntry
from penstock.state.view import ClusterView

DRAINING_SETTING = "broker.draining"
MAX_COMPARED = 100
"""Maximum number of brokers whose settings one transaction compares. A broker beyond it that starts to drain at that
moment still gets the replica, and is drained afterwards."""


@dataclass(frozen=True, slots=True)
class BrokerAvailability:
    """The draining and absent brokers, with the entries that say so. Empty for a single broker."""

    draining: frozenset[int] = frozenset()
    entries: Mapping[str, StoreEntry] = field(default_factory=dict)
    is_known: bool = False
    absent: frozenset[int] = frozenset()
    """Brokers that have been absent for less than `broker.replace.after.ms` and do not drain."""

    def unchanged_for(self, assignment: Iterable[Sequence[int]]) -> list[Compare]:
        """Return the conditions that no broker of an assignment started or stopped to drain."""
        if not self.is_known:
            return []
        used = sorted({broker for replicas in assignment for broker in replicas})[:MAX_COMPARED]
        return [
            Compare.unchanged(self.entries[key]) if key in self.entries else Compare.absent(key)
            for key in map(keys.broker_config, used)
        ]


class AvailabilitySource(Protocol):
    """The brokers that can get new replicas."""

    async def read(self) -> BrokerAvailability:
        """Return which brokers drain or are absent. Raises `StoreError`."""

    def epochs(self) -> Mapping[int, int]:
        """Return the broker epochs to write into new partitions, by broker; none for a single broker."""


class RegisteredBrokers:
    """The brokers of a cluster. Implements `AvailabilitySource`."""

    def __init__(self, store: Store, view: ClusterView, clock: Clock, config: BrokerConfig) -> None:
        self._store, self._view, self._clock, self._config = store, view, clock, config

    async def read(self) -> BrokerAvailability:
        """Read from the store, because the view lags. Raises `StoreError`."""
        return await read_availability(self._store, self._view, self._clock, self._config)

    def epochs(self) -> Mapping[int, int]:
        """Return the epochs of the registered brokers."""
        return {broker.broker_id: broker.epoch for broker in self._view.brokers.values()}


class OnlyBroker:
    """The broker of an embedded store, which always gets the replicas. Implements `AvailabilitySource`."""

    async def read(self) -> BrokerAvailability:
        """Return an empty availability."""
        return BrokerAvailability()

    def epochs(self) -> Mapping[int, int]:
        """Return no epochs."""
        return {}


async def read_availability(store: Store, view: ClusterView, clock: Clock, config: BrokerConfig) -> BrokerAvailability:
    """Read the settings and absences of all brokers linearizably. Raises `StoreError`."""
    entries = (await store.range(BROKER_PREFIX)).entries
    absent = absent_brokers(entries, view.brokers, clock.wall_ms(), config.broker_replace_after_ms)
    return parse_availability([entry for entry in entries if entry.key.startswith(keys.BROKER_CONFIGS)], absent)


def parse_availability(entries: Sequence[StoreEntry], absent: frozenset[int] = frozenset()) -> BrokerAvailability:
    """Parse all entries of `keys.BROKER_CONFIGS`. Only a broker's own setting counts, not the one for all brokers."""
    by_key = {entry.key: entry for entry in entries}
    draining = set()
    for entry in entries:
        name = entry.key[len(keys.BROKER_CONFIGS) :]
        if name.isdecimal() and is_draining_set(entry):
            draining.add(int(name))
    return BrokerAvailability(frozenset(draining), by_key, is_known=True, absent=absent - draining)


def is_draining_set(entry: StoreEntry) -> bool:
    """Return whether a broker's settings have `broker.draining=true`."""
    try:
        stored = decode(BrokerConfigRecord, entry.key, entry.value).settings.get(DRAINING_SETTING)
    except BadRecord:
        return False
    return bool(BROKER_SETTINGS[DRAINING_SETTING].parse_stored(stored, False))


def is_removable(view: ClusterView, broker_id: int) -> bool:
    """Return whether no partition has a replica on the broker, so it can be removed (`broker.removable`)."""
    return not any(
        broker_id in partition.replicas for topic in view.topics_by_id.values() for partition in topic.partitions
    )
