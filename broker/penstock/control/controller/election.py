"""Who is controller: a key under a lease, an epoch that rises with each election, and a history that outlives both.

Each broker has one `Election`, whose `run` waits for its turn. What the elected one writes is done on the condition
that its `Leadership` still stands, so that one that was replaced without noticing changes nothing. The history
(`control.elections`) tells a store that was restored from a backup; while that is not recovered (`keys.RESTORED`)
nobody is elected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

from penstock.control.controller.leadership import Leadership
from penstock.control.controller.probes import Prober, watch_broker
from penstock.control.elections import KEPT_ELECTIONS, RANDOM_DIGITS, ElectionRecord
from penstock.control.membership import Registration, created
from penstock.runtime.logging import get_logger
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
RESTORED_S = 2.0
"""Before another look whether a store that was restored has been recovered."""
BEATEN_S = 0.1
"""Before another look where an attempt failed: mostly the other's election is then known, and nobody is in a hurry."""


Work = Callable[[Leadership], Awaitable[None]]
"""What the elected broker does; cancelled when it is no longer controller."""


class Election:
    """Stands for election until `run` is cancelled.

    While another is controller its process is watched: once that has died it is succeeded without waiting for its
    lease. It is fenced by that if it should live, so being wrong costs an election and nothing else.
    """

    def __init__(
        self,
        store: Store,
        registration: Registration,
        work: Work,
        prober: Prober,
        find: Callable[[int], BrokerView | None],
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        """`find` gives a broker as the view has it."""
        self.store, self.registration, self.work, self._new_id = store, registration, work, new_id
        self.prober, self.find = prober, find
        self.leadership: Leadership | None = None
        self._suspected = 0
        self._suspicion = asyncio.Event()

    def _suspect(self, controller_epoch: int) -> None:
        self._suspected = max(self._suspected, controller_epoch)
        self._suspicion.set()

    async def run(self) -> None:
        while True:
            try:
                leadership = await self._turn()
                if leadership is not None:
                    await self._lead(leadership)
            except LeaseExpired:
                # The registration is over, or about to be known to be.
                await asyncio.sleep(RETRY_S)
            except StoreError as e:
                log.warning("the election waits for the store", reason=str(e))
                await asyncio.sleep(RETRY_S)

    async def _turn(self) -> Leadership | None:
        """Waits until nobody is controller, or somebody who seems dead; then tries once."""
        entry = await self.store.get(keys.CONTROLLER)
        if entry is not None and not self._may_succeed(entry):
            await self._until_changed(entry)
            return None
        if not self.registration.may_serve():
            await asyncio.sleep(RETRY_S)
            return None
        if await self.store.get(keys.RESTORED) is not None:
            await asyncio.sleep(RESTORED_S)
            return None
        leadership = await self.campaign(entry)
        if leadership is None:
            await asyncio.sleep(BEATEN_S)
        return leadership

    def _may_succeed(self, entry: StoreEntry) -> bool:
        record = decode(ControllerRecord, entry.key, entry.value)
        if record.broker_id == self.registration.record.broker_id:
            return True  # this broker's, from before it was started anew, or from a time that ended without a word
        return record.epoch <= self._suspected or entry.lease == 0

    async def _until_changed(self, entry: StoreEntry) -> None:
        """Returns when the key has changed or its holder is suspected."""
        self._suspicion.clear()
        if self._may_succeed(entry):
            return
        changed = asyncio.ensure_future(self._next_change(entry.mod_revision))
        suspected = asyncio.ensure_future(self._suspicion.wait())
        probing = asyncio.ensure_future(self._probe(decode(ControllerRecord, entry.key, entry.value)))
        try:
            await asyncio.wait([changed, suspected], return_when=asyncio.FIRST_COMPLETED)
            if changed.done():
                changed.result()
        finally:
            for task in (changed, suspected, probing):
                task.cancel()
            await asyncio.gather(changed, suspected, probing, return_exceptions=True)

    async def _probe(self, controller: ControllerRecord) -> None:
        while (broker := self.find(controller.broker_id)) is None:  # noqa: ASYNC110 - the view tells nobody of brokers
            await asyncio.sleep(RETRY_S)
        await watch_broker(self.prober, broker, lambda: self._suspect(controller.epoch))

    async def _next_change(self, revision: int) -> None:
        """Returns once the key is no longer as it was written at `revision`.

        What may be days ago: the store need not have kept what came after, so the key is read and watched from there.
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
        """Tries to succeed `present`; None where another was faster, or this broker's registration is over.

        Raises `StoreUnavailable` and `LeaseExpired`.
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
                created(registration.key, registration.epoch),
            ],
            [
                PutOp(keys.CONTROLLER, encode(ControllerRecord(broker_id=broker_id, epoch=epoch)), registration.lease),
                PutOp(keys.election(epoch), encode(ElectionRecord(broker_id=broker_id, random_id=random_id))),
            ],
        )
        if not result.succeeded:
            return None
        leadership = Leadership(epoch, result.revision)
        await self._forget_old(history, leadership)
        return leadership

    async def _forget_old(self, history: Sequence[StoreEntry], leadership: Leadership) -> None:
        old = history[: -KEPT_ELECTIONS or None][:100]
        if old:
            await self.store.txn([leadership.condition], [DeleteOp(entry.key) for entry in old])

    async def _lead(self, leadership: Leadership) -> None:
        """Works until the leadership is over, then stops the work at once."""
        log.info("this broker is controller", epoch=leadership.epoch)
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
                log.error("the controller's work has failed", reason=repr(error))
        finally:
            leadership.lost.set()
            self.leadership = None
            for task in (working, *over):
                task.cancel()
            await asyncio.gather(working, *over, return_exceptions=True)
            log.info("this broker is controller no longer", epoch=leadership.epoch)
        await self._resign(leadership)

    async def _resign(self, leadership: Leadership) -> None:
        """Lets others stand at once, where this broker ends its work without having been replaced."""
        if not self.registration.lost.is_set():
            await self.store.txn([leadership.condition], [DeleteOp(keys.CONTROLLER)])
            await asyncio.sleep(RETRY_S)
