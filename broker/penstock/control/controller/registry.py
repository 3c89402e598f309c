"""What the controller knows of brokers beyond the view: settings, pasts, who is leaving, who is gone.

It follows `members.ABOUT_BROKERS` while a broker is controller, and tells which brokers changed. It may be ahead of the
view or behind it: `revision` says how far it is, so that an epoch that it cannot know yet is told from one that ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.control.drains import SETTING
from penstock.control.members import ABOUT_BROKERS as PREFIX
from penstock.control.members import GONE, LEAVING, PASTS, GoneRecord, LeavingRecord, Past, Standing, read_past
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import BrokerConfigRecord, BrokerRecord, decode
from penstock.state.store import Compacted, Store, StoreEntry, StoreEvent, StoreUnavailable
from penstock.state.tables import broker_view
from penstock.state.view import BrokerView

log = get_logger("penstock.control")

RETRY_S = 0.5
TRUE = "true"


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker that is registered. One that is draining or leaving is no choice for leader where there is another."""

    record: BrokerRecord
    epoch: int
    is_draining: bool
    is_leaving: bool

    @property
    def broker_id(self) -> int:
        return self.record.broker_id

    @property
    def may_be_chosen(self) -> bool:
        return not self.is_draining and not self.is_leaving


class Registry:
    """The brokers by id. `on_change` is called with the ids of those of which anything changed."""

    def __init__(self, store: Store, on_change: Callable[[set[int]], None]) -> None:
        self.store, self.on_change = store, on_change
        self.revision = 0
        self.members: dict[int, RegisteredBroker] = {}
        self.leaving: dict[int, tuple[StoreEntry, LeavingRecord]] = {}
        self.gone: dict[int, int] = {}
        """Since when brokers have been away, in wall-clock ms, as it was noted in the store."""
        self._registered: dict[int, tuple[BrokerRecord, int]] = {}
        self._pasts: dict[int, Past] = {}
        self._settings: dict[int, dict[str, str]] = {}

    async def load(self) -> None:
        """Reads all; everybody is then told of as changed. Raises `StoreError`."""
        listing = await self.store.range(PREFIX)
        before = set(self.members) | set(self.leaving) | set(self.gone)
        for table in (self.leaving, self.gone, self._registered, self._pasts, self._settings):
            table.clear()
        for entry in listing.entries:
            self._take(StoreEvent(entry.key, entry))
        self.revision = listing.revision
        self._settle(before | set(self._registered) | set(self.leaving) | set(self.gone))

    async def follow(self) -> None:
        """Follows for ever what changes after `load`."""
        while True:
            try:
                async for changes in self.store.watch(PREFIX, self.revision + 1):
                    touched: set[int] = set()
                    for event in changes.events:
                        touched |= self._take(event)
                    self.revision = changes.revision
                    self._settle(touched)
            except (Compacted, StoreUnavailable) as e:
                log.info("the brokers are read again", reason=str(e))
                if isinstance(e, StoreUnavailable):
                    await asyncio.sleep(RETRY_S)
                with suppress(StoreUnavailable):
                    await self.load()

    def standing(self, broker_id: int, epoch: int | None, was_flushed: bool, partition: str) -> Standing:
        """Of a replica on a broker that is there; see `members.Past`."""
        past = self._pasts.get(broker_id)
        if past is None or past.incarnations[-1].epoch != self.members[broker_id].epoch:
            return Standing.REPLACED  # registered by somebody who keeps no past
        return past.standing(epoch, was_flushed, partition)

    @property
    def known(self) -> set[int]:
        """All brokers that have ever registered."""
        return set(self._pasts)

    def was_here(self, broker_id: int) -> bool:
        """Whether a broker that is registered has been before: it restarted."""
        past = self._pasts.get(broker_id)
        return past is not None and len(past.incarnations) > 1

    def view_of(self, broker_id: int) -> BrokerView:
        """A broker that is there, as others see it."""
        member = self.members[broker_id]
        return broker_view(member.record, member.epoch)

    def _take(self, event: StoreEvent) -> set[int]:
        """Takes in one change; returns the brokers that it is about."""
        key, entry = event.key, event.entry
        name = key[len(keys.METADATA) :].partition("/")[2]
        if not name.isdecimal():
            return set()
        broker_id = int(name)
        try:
            self._take_one(broker_id, key, entry)
        except ValueError as e:
            log.error("a value in the store is not understood", key=key, reason=str(e))
        return {broker_id}

    def _take_one(self, broker_id: int, key: str, entry: StoreEntry | None) -> None:
        if key.startswith(keys.BROKERS):
            self._registered.pop(broker_id, None)
            if entry is not None:
                self._registered[broker_id] = decode(BrokerRecord, key, entry.value), entry.create_revision
        elif key.startswith(keys.BROKER_CONFIGS):
            self._settings[broker_id] = self._read_settings(entry)
        elif key.startswith(PASTS):
            self._pasts.pop(broker_id, None)
            if entry is not None:
                self._pasts[broker_id] = read_past(entry)
        elif key.startswith(LEAVING):
            self.leaving.pop(broker_id, None)
            if entry is not None:
                self.leaving[broker_id] = entry, decode(LeavingRecord, key, entry.value)
        elif key.startswith(GONE):
            self.gone.pop(broker_id, None)
            if entry is not None:
                self.gone[broker_id] = decode(GoneRecord, key, entry.value).since_ms

    def _read_settings(self, entry: StoreEntry | None) -> dict[str, str]:
        return {} if entry is None else decode(BrokerConfigRecord, entry.key, entry.value).settings

    def _settle(self, touched: set[int]) -> None:
        """Makes members anew from what is known of them, then tells."""
        for broker_id in touched:
            known = self._registered.get(broker_id)
            if known is None:
                self.members.pop(broker_id, None)
                continue
            record, epoch = known
            leaving = self.leaving.get(broker_id)
            draining = self._settings.get(broker_id, {}).get(SETTING)
            self.members[broker_id] = RegisteredBroker(
                record,
                epoch,
                record.draining if draining is None else draining.strip().lower() == TRUE,
                leaving is not None and leaving[1].epoch == epoch,
            )
        if touched:
            self.on_change(touched)
