"""The controller's state of brokers beyond the view: settings, histories, leaving and absent brokers.

It follows `members.BROKER_PREFIX` and reports which brokers changed. It can be ahead of the view or behind it;
`revision` tells an epoch that it does not know yet from one that has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.config.broker import BROKER_SETTINGS
from penstock.control.broker_availability import DRAINING_SETTING
from penstock.control.members import (
    ABSENCES,
    BROKER_HISTORIES,
    LEAVING_BROKERS,
    AbsenceRecord,
    BrokerHistory,
    LeavingRecord,
    ReplicaCondition,
    read_history,
)
from penstock.control.members import BROKER_PREFIX as PREFIX
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import BrokerConfigRecord, BrokerRecord, StoredSettings, decode
from penstock.state.store import Compacted, Store, StoreEntry, StoreEvent, StoreUnavailable
from penstock.state.tables import broker_view
from penstock.state.view import BrokerView

log = get_logger("penstock.control")

RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A registered broker. A draining or leaving one leads only if no other can."""

    record: BrokerRecord
    epoch: int
    is_draining: bool
    is_leaving: bool

    @property
    def broker_id(self) -> int:
        """Broker id."""
        return self.record.broker_id

    @property
    def may_be_chosen(self) -> bool:
        """Whether it is neither draining nor leaving."""
        return not self.is_draining and not self.is_leaving


class Registry:
    """The brokers by id. `on_change` is called with the ids of changed brokers."""

    def __init__(self, store: Store, on_change: Callable[[set[int]], None]) -> None:
        self.store, self.on_change = store, on_change
        self.revision = 0
        self.members: dict[int, RegisteredBroker] = {}
        self.leaving: dict[int, tuple[StoreEntry, LeavingRecord]] = {}
        self.absent: dict[int, int] = {}
        """Since when brokers are absent, in wall-clock ms, as recorded in the store."""
        self._registered: dict[int, tuple[BrokerRecord, int]] = {}
        self._histories: dict[int, BrokerHistory] = {}
        self._settings: dict[int, StoredSettings] = {}

    async def load(self) -> None:
        """Read all keys and report every broker as changed. Raises `StoreError`."""
        listing = await self.store.range(PREFIX)
        before = set(self.members) | set(self.leaving) | set(self.absent)
        for table in (self.leaving, self.absent, self._registered, self._histories, self._settings):
            table.clear()
        for entry in listing.entries:
            self._apply_event(StoreEvent(entry.key, entry))
        self.revision = listing.revision
        self._rebuild_members(before | set(self._registered) | set(self.leaving) | set(self.absent))

    async def follow(self) -> None:
        """Watch changes after `load` until cancelled."""
        while True:
            try:
                async for changes in self.store.watch(PREFIX, self.revision + 1):
                    touched: set[int] = set()
                    for event in changes.events:
                        touched |= self._apply_event(event)
                    self.revision = changes.revision
                    self._rebuild_members(touched)
            except (Compacted, StoreUnavailable) as e:
                log.info("reloading brokers", reason=str(e))
                if isinstance(e, StoreUnavailable):
                    await asyncio.sleep(RETRY_S)
                with suppress(StoreUnavailable):
                    await self.load()

    def replica_condition(
        self, broker_id: int, epoch: int | None, was_flushed: bool, partition: str
    ) -> ReplicaCondition:
        """Return the condition of a replica on a registered broker; see `members.BrokerHistory`."""
        history = self._histories.get(broker_id)
        if history is None or history.incarnations[-1].epoch != self.members[broker_id].epoch:
            return ReplicaCondition.REPLACED  # registered without a history
        return history.replica_condition(epoch, was_flushed, partition)

    @property
    def known_ids(self) -> set[int]:
        """All brokers that have ever registered."""
        return set(self._histories)

    def has_restarted(self, broker_id: int) -> bool:
        """Return whether a registered broker has been registered before."""
        history = self._histories.get(broker_id)
        return history is not None and len(history.incarnations) > 1

    def view_of(self, broker_id: int) -> BrokerView:
        """Return the view of a registered broker."""
        member = self.members[broker_id]
        return broker_view(member.record, member.epoch)

    def _apply_event(self, event: StoreEvent) -> set[int]:
        """Apply one change; return the brokers that it concerns."""
        key, entry = event.key, event.entry
        name = key[len(keys.METADATA) :].partition("/")[2]
        if not name.isdecimal():
            return set()
        broker_id = int(name)
        try:
            self._apply_entry(broker_id, key, entry)
        except ValueError as e:
            log.error("unreadable value in the metadata store", key=key, reason=str(e))
        return {broker_id}

    def _apply_entry(self, broker_id: int, key: str, entry: StoreEntry | None) -> None:
        if key.startswith(keys.BROKERS):
            self._registered.pop(broker_id, None)
            if entry is not None:
                self._registered[broker_id] = decode(BrokerRecord, key, entry.value), entry.create_revision
        elif key.startswith(keys.BROKER_CONFIGS):
            self._settings[broker_id] = self._read_settings(entry)
        elif key.startswith(BROKER_HISTORIES):
            self._histories.pop(broker_id, None)
            if entry is not None:
                self._histories[broker_id] = read_history(entry)
        elif key.startswith(LEAVING_BROKERS):
            self.leaving.pop(broker_id, None)
            if entry is not None:
                self.leaving[broker_id] = entry, decode(LeavingRecord, key, entry.value)
        elif key.startswith(ABSENCES):
            self.absent.pop(broker_id, None)
            if entry is not None:
                self.absent[broker_id] = decode(AbsenceRecord, key, entry.value).since_ms

    def _read_settings(self, entry: StoreEntry | None) -> StoredSettings:
        return {} if entry is None else decode(BrokerConfigRecord, entry.key, entry.value).settings

    def _rebuild_members(self, touched: set[int]) -> None:
        """Rebuild these members, then call `on_change`."""
        for broker_id in touched:
            known = self._registered.get(broker_id)
            if known is None:
                self.members.pop(broker_id, None)
                continue
            record, epoch = known
            leaving = self.leaving.get(broker_id)
            stored = self._settings.get(broker_id, {}).get(DRAINING_SETTING)
            self.members[broker_id] = RegisteredBroker(
                record,
                epoch,
                bool(BROKER_SETTINGS[DRAINING_SETTING].parse_stored(stored, record.draining)),
                leaving is not None and leaving[1].epoch == epoch,
            )
        if touched:
            self.on_change(touched)
