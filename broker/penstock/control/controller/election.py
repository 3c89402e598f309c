"""Elects the controller: a key under a lease, and an epoch that increases with each election.

Each broker runs one `Election`. The controller's writes have its `Leadership` as a condition, so a deposed controller
changes nothing. The history (`control.elections`) outlives the key and detects a store that was restored from a backup;
until that is recovered (`keys.RESTORED`) no controller is elected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID

from penstock.control.controller.leadership import Leadership
from penstock.control.controller.probes import Prober, watch_broker
from penstock.control.elections import KEPT_ELECTIONS, RANDOM_DIGITS, ElectionRecord
from penstock.control.membership import Registration, compare_created
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report_failure, spawn
from penstock.state import keys
from penstock.state.records import ControllerRecord, decode, encode
from penstock.state.store import (
    Compacted,
    Compare,
    DeleteOp,
    LeaseExpired,
    PutOp,
    Store,
    StoreEntry,
    StoreError,
)
from penstock.state.view import BrokerView

log = get_logger("penstock.control")

RETRY_S = 0.5
RESTORED_POLL_S = 2.0
"""Interval between checks whether a restored store has been recovered."""
LOST_CAMPAIGN_S = 0.1
"""Pause after a lost campaign; usually another broker has won."""


Work = Callable[[Leadership], Awaitable[None]]
"""The controller's work; cancelled when the leadership ends."""


class Election:
    """Campaigns until `run` is cancelled.

    While another broker is controller, its process is probed: once it has died, this broker campaigns without waiting
    for its lease. The new election fences it, so a wrong suspicion only costs an election.
    """

    def __init__(
        self,
        store: Store,
        registration: Registration,
        work: Work,
        prober: Prober,
        find_broker: Callable[[int], BrokerView | None],
        new_id: Callable[[], UUID],
    ) -> None:
        """`find_broker` returns a broker from the view."""
        self.store, self.registration, self.work, self._new_id = store, registration, work, new_id
        self.prober, self.find_broker = prober, find_broker
        self.leadership: Leadership | None = None
        self.suspected_broker: tuple[int, int] | None = None
        """(broker, epoch) of the controller that was suspected last."""
        self._suspected = 0
        self._suspicion = asyncio.Event()

    def _suspect(self, controller_epoch: int, broker: BrokerView) -> None:
        self._suspected = max(self._suspected, controller_epoch)
        self.suspected_broker = broker.broker_id, broker.epoch
        self._suspicion.set()

    async def run(self) -> None:
        """Campaign and lead until cancelled."""
        while True:
            try:
                leadership = await self._wait_and_campaign()
                if leadership is not None:
                    await self._lead(leadership)
            except LeaseExpired:
                # The registration is over; its keep-alive reports it.
                await asyncio.sleep(RETRY_S)
            except StoreError as e:
                log.warning("election waiting for the metadata store", reason=str(e))
                await asyncio.sleep(RETRY_S)

    async def _wait_and_campaign(self) -> Leadership | None:
        """Wait until there is no controller or a suspected one, then campaign once."""
        entry = await self.store.get(keys.CONTROLLER)
        if entry is not None and not self._may_succeed(entry):
            await self._until_changed(entry)
            return None
        if not self.registration.may_serve():
            await asyncio.sleep(RETRY_S)
            return None
        if await self.store.get(keys.RESTORED) is not None:
            await asyncio.sleep(RESTORED_POLL_S)
            return None
        leadership = await self.campaign(entry)
        if leadership is None:
            await asyncio.sleep(LOST_CAMPAIGN_S)
        return leadership

    def _may_succeed(self, entry: StoreEntry) -> bool:
        record = decode(ControllerRecord, entry.key, entry.value)
        if record.broker_id == self.registration.record.broker_id:
            return True  # left by an earlier run or an earlier leadership of this broker
        return record.epoch <= self._suspected or entry.lease == 0

    async def _until_changed(self, entry: StoreEntry) -> None:
        """Wait until the key has changed or its holder is suspected."""
        self._suspicion.clear()
        if self._may_succeed(entry):
            return
        changed = asyncio.ensure_future(self._next_change(entry.mod_revision))
        suspected = asyncio.ensure_future(self._suspicion.wait())
        probing = spawn(self._probe(decode(ControllerRecord, entry.key, entry.value)), "probe the controller")
        try:
            await asyncio.wait([changed, suspected], return_when=asyncio.FIRST_COMPLETED)
            if changed.done():
                changed.result()
        finally:
            for task in (changed, suspected, probing):
                task.cancel()
            await asyncio.gather(changed, suspected, probing, return_exceptions=True)

    async def _probe(self, controller: ControllerRecord) -> None:
        while (found := self.find_broker(controller.broker_id)) is None:  # noqa: ASYNC110 - the view has no event for brokers
            await asyncio.sleep(RETRY_S)
        await watch_broker(self.prober, found, partial(self._suspect, controller.epoch, found))

    async def _next_change(self, revision: int) -> None:
        """Return once the key has changed since `revision`.

        The change may be old and compacted, so this reads the key and watches from there.
        """
        while True:
            listing = await self.store.range(keys.CONTROLLER)
            if not any(e.key == keys.CONTROLLER and e.mod_revision == revision for e in listing.entries):
                return
            with suppress(Compacted):
                async for changes in self.store.watch(keys.CONTROLLER, listing.revision + 1):
                    if any(event.key == keys.CONTROLLER for event in changes.events):
                        return

    async def campaign(self, present: StoreEntry | None) -> Leadership | None:
        """Try to succeed `present`. None if another broker was faster or the registration is over.

        Raises `StoreUnavailable`, `LeaseExpired`.
        """
        history = (await self.store.range(keys.ELECTIONS)).entries
        last = keys.election_epoch(history[-1].key) if history else 0
        if present is not None:
            last = max(last, decode(ControllerRecord, present.key, present.value).epoch)
        registration = self.registration
        broker_id, epoch = registration.record.broker_id, last + 1
        random_id = self._new_id().hex[:RANDOM_DIGITS]
        result = await self.store.txn(
            [
                Compare.absent(keys.CONTROLLER) if present is None else Compare.unchanged(present),
                Compare.absent(keys.election(epoch)),
                Compare.absent(keys.RESTORED),
                compare_created(registration.key, registration.epoch),
            ],
            [
                PutOp(keys.CONTROLLER, encode(ControllerRecord(broker_id=broker_id, epoch=epoch)), registration.lease),
                PutOp(keys.election(epoch), encode(ElectionRecord(broker_id=broker_id, random_id=random_id))),
            ],
        )
        if not result.succeeded:
            return None
        leadership = Leadership(epoch, result.revision)
        await self._trim_history(history, leadership)
        return leadership

    async def _trim_history(self, history: Sequence[StoreEntry], leadership: Leadership) -> None:
        old = history[: -KEPT_ELECTIONS or None][:100]
        if old:
            await self.store.txn([leadership.condition], [DeleteOp(entry.key) for entry in old])

    async def _lead(self, leadership: Leadership) -> None:
        """Work until the leadership is over, then cancel the work."""
        log.info("elected controller", epoch=leadership.epoch)
        self.leadership = leadership
        working = asyncio.ensure_future(self.work(leadership))
        over = [
            asyncio.ensure_future(self._next_change(leadership.revision)),
            asyncio.ensure_future(leadership.lost.wait()),
            asyncio.ensure_future(self.registration.lost.wait()),
        ]
        try:
            await asyncio.wait([working, *over], return_when=asyncio.FIRST_COMPLETED)
            if working.done() and not working.cancelled() and (error := working.exception()) is not None:
                log.error("controller task failed", reason=repr(error))
                if not is_store_error(error):
                    report_failure(working)
        finally:
            leadership.lost.set()
            self.leadership = None
            for task in (working, *over):
                task.cancel()
            await asyncio.gather(working, *over, return_exceptions=True)
            log.info("controller leadership ended", epoch=leadership.epoch)
        await self._resign(leadership)

    async def _resign(self, leadership: Leadership) -> None:
        """Delete the controller key if this broker was not replaced, so that others can campaign at once."""
        if not self.registration.lost.is_set():
            await self.store.txn([leadership.condition], [DeleteOp(keys.CONTROLLER)])
            await asyncio.sleep(RETRY_S)


def is_store_error(error: BaseException) -> bool:
    """Return whether an exception, or each one of a group, is a StoreError."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(StoreError)[1] is None
    return isinstance(error, StoreError)
