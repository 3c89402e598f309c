"""Removes what others left: topics that never got a name, and the tombstones of those that are deleted.

In a cluster no broker may do so at its start, as an unnamed topic may be one that another is creating, and a tombstone
tells brokers that are away that they may delete their data. The controller waits long enough for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

from penstock.control.controller.leadership import Leadership
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import Compare, CompareTarget, DeleteOp, Store, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher

log = get_logger("penstock.control")

SWEEP_S = 60.0
UNNAMED_MS = 15 * 60_000
"""How long a topic's parts may be without a name: its creation has failed by then, and would be told so."""
TOMBSTONE_MS = 24 * 3_600_000
"""How long a deleted topic's tombstone stays; the data of a broker that was away for longer is put aside instead."""
LAST_MS = 15 * 60_000
"""How long the controller has seen a tombstone itself at least before it removes it."""

Forget = Callable[[UUID], Awaitable[None]]
"""Removes from the store what a room keeps of a deleted topic (committed offsets), once for the whole cluster."""


class Housekeeping:
    """Sweeps while this broker is controller."""

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        view: ClusterView,
        watcher: Watcher,
        forget: list[Forget],
        clock: Clock,
    ) -> None:
        self.store, self.leadership, self.view, self.watcher, self.forget = store, leadership, view, watcher, forget
        self.clock = clock
        self._since: dict[UUID, int] = {}
        """When an id was first seen without a name, or was deleted, by the boot clock."""
        self._forgotten: set[UUID] = set()
        self._failed: dict[UUID, str] = {}
        """Deleted topics of which something was left at the last sweep, and why."""

    async def run(self) -> None:
        while True:
            try:
                await self.sweep()
            except StoreUnavailable as e:
                log.warning("what is left of topics could not be looked at", reason=str(e))
            await asyncio.sleep(SWEEP_S)

    async def sweep(self) -> None:
        now_ms = self.clock.boot_ms()
        deleting, unnamed = set(self.view.deleting), set(self.watcher.unnamed())
        ages_ms = {topic: self._age_ms(topic) for topic in deleting - self._since.keys()}
        self._since = {topic: self._since.get(topic, now_ms - ages_ms.get(topic, 0)) for topic in deleting | unnamed}
        self._forgotten &= deleting
        await self._forget_all(deleting - self._forgotten)
        for topic, since_ms in self._since.items():
            if now_ms - since_ms < (UNNAMED_MS if topic in unnamed else TOMBSTONE_MS):
                continue
            if topic in unnamed:
                await self._remove_unnamed(topic)
            elif topic in self._forgotten:
                await self._remove(topic)

    def _age_ms(self, topic: UUID) -> int:
        """How long ago a topic was deleted, when its tombstone is first seen: controllers may follow each other faster.

        Wall clocks may be wrong, so that the last of the time is always waited for: brokers that are there need less.
        """
        deleted_ms = self.watcher.deleted_ms(topic)
        age_ms = self.clock.wall_ms() - deleted_ms if deleted_ms else 0
        return min(max(age_ms, 0), TOMBSTONE_MS - LAST_MS)

    async def _forget_all(self, topics: set[UUID]) -> None:
        """Has the rooms forget deleted topics. The coordinators clean their shards in the seconds after a deletion, so
        one sweep that comes too early is normal; a second one is worth a warning, and its success is logged."""
        failed: dict[UUID, str] = {}
        for topic in topics:
            reason = await self._forget(topic)
            if reason is None:
                self._forgotten.add(topic)
            else:
                failed[topic] = reason
        finished = len(self._failed.keys() & self._forgotten)
        again = [topic for topic in failed if topic in self._failed]
        if finished:
            log.info("committed offsets of deleted topics are removed", topics=finished)
        if again:
            log.warning(
                "committed offsets of deleted topics could not be removed yet; the next try follows",
                topics=len(again),
                topic=str(again[0]),
                reason=failed[again[0]],
                retry_s=int(SWEEP_S),
            )
        elif failed:
            log.info("committed offsets of deleted topics are still being removed", topics=len(failed))
        self._failed = failed

    async def _forget(self, topic: UUID) -> str | None:
        """Why something is left of a topic, None if nothing is."""
        try:
            for forget in self.forget:
                await forget(topic)
        except Exception as e:
            return str(e)
        return None

    async def _remove_unnamed(self, topic: UUID) -> None:
        """Its creation, should it still go on, fails then: it asks for the first partition when it writes the name."""
        if not await self._remove(topic):
            return
        log.warning("parts of a topic whose creation was never finished are removed", topic=str(topic))

    async def _remove(self, topic: UUID) -> bool:
        """The topic's record must not have become another since it was looked at."""
        entry = await self.store.get(keys.topic(topic))
        unchanged = Compare(
            keys.topic(topic), CompareTarget.MOD_REVISION, entry.mod_revision if entry is not None else 0
        )
        if topic not in self.view.deleting and topic not in self.watcher.unnamed():
            return False
        result = await self.store.txn(
            [self.leadership.condition, unchanged],
            [DeleteOp(keys.topic(topic)), DeleteOp(keys.partitions(topic), prefix=True)],
        )
        return result.succeeded
