"""Removes unnamed topics that failed creations left, and old tombstones of deleted topics. Part of a `ControllerTerm`.

In a cluster a broker cannot do it at its start: an unnamed topic may be one that another broker is creating, and a
tombstone tells absent brokers that they can delete their data. The controller waits long enough for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from penstock.control.controller.leadership import Leadership
from penstock.control.topic_removal import TopicCleaner, topic_deletions
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report
from penstock.state import keys
from penstock.state.store import Compare, CompareTarget, DeleteOp, Store, StoreError, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher

log = get_logger("penstock.control")

CLEANUP_INTERVAL_S = 60.0
UNNAMED_TOPIC_AGE_MS = 15 * 60_000
"""Minimum age of a topic without a name; its creation has failed by then, or fails when it writes the name."""
TOMBSTONE_AGE_MS = 24 * 3_600_000
"""How long a tombstone stays. A broker that was absent for longer quarantines the topic's data."""
MIN_OBSERVED_MS = 15 * 60_000
"""Minimum time for which the controller has seen a tombstone itself before it removes it."""


class Housekeeping:
    """Removes leftovers of topics every `CLEANUP_INTERVAL_S`."""

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        view: ClusterView,
        watcher: Watcher,
        cleaners: Sequence[TopicCleaner],
        clock: Clock,
    ) -> None:
        self.store, self.leadership, self.view, self.watcher, self.cleaners = store, leadership, view, watcher, cleaners
        self.clock = clock
        self._observed_ms: dict[UUID, int] = {}
        """When an id was first seen without a name, or was deleted, on the boot clock."""
        self._cleaned: set[UUID] = set()
        self._failed: dict[UUID, str] = {}
        """Deleted topics of which the last run left something, with the reason."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.remove_leftovers()
            except StoreUnavailable as e:
                log.warning("topic cleanup failed; retrying", reason=str(e))
            await asyncio.sleep(CLEANUP_INTERVAL_S)

    async def remove_leftovers(self) -> None:
        """Clean deleted topics, and remove unnamed topics and tombstones that are old enough."""
        now_ms = self.clock.boot_ms()
        deleting, unnamed = set(self.view.deleting), set(self.watcher.unnamed())
        ages_ms = {topic: self._age_ms(topic) for topic in deleting - self._observed_ms.keys()}
        self._observed_ms = {
            topic: self._observed_ms.get(topic, now_ms - ages_ms.get(topic, 0)) for topic in deleting | unnamed
        }
        self._cleaned &= deleting
        await self._run_cleaners(deleting - self._cleaned)
        for topic, since_ms in self._observed_ms.items():
            if now_ms - since_ms < (UNNAMED_TOPIC_AGE_MS if topic in unnamed else TOMBSTONE_AGE_MS):
                continue
            if topic in unnamed:
                await self._remove_unnamed(topic)
            elif topic in self._cleaned:
                await self._remove(topic)

    def _age_ms(self, topic: UUID) -> int:
        """Return how long ago a topic was deleted, when its tombstone is first seen.

        Wall clocks may be wrong, so this controller waits at least `MIN_OBSERVED_MS`.
        """
        deleted_ms = self.watcher.deleted_ms(topic)
        age_ms = self.clock.wall_ms() - deleted_ms if deleted_ms else 0
        return min(max(age_ms, 0), TOMBSTONE_AGE_MS - MIN_OBSERVED_MS)

    async def _run_cleaners(self, topics: set[UUID]) -> None:
        """Run the cleaners for deleted topics.

        Coordinators clean their shards within seconds of a deletion, so one early failure is normal. A second one is
        logged as a warning, and its later success is logged.
        """
        failed: dict[UUID, str] = {}
        for topic in topics:
            reason = await self._run_cleaner(topic)
            if reason is None:
                self._cleaned.add(topic)
            else:
                failed[topic] = reason
        finished = len(self._failed.keys() & self._cleaned)
        again = [topic for topic in failed if topic in self._failed]
        if finished:
            log.info("removed committed offsets of deleted topics", topics=finished)
        if again:
            log.warning(
                "committed offsets of deleted topics not removed yet; retrying",
                topics=len(again),
                topic=str(again[0]),
                reason=failed[again[0]],
                retry_s=int(CLEANUP_INTERVAL_S),
            )
        elif failed:
            log.info("removing committed offsets of deleted topics", topics=len(failed))
        self._failed = failed

    async def _run_cleaner(self, topic: UUID) -> str | None:
        """Return why a cleaner failed; None on success."""
        try:
            for cleaner in self.cleaners:
                await cleaner(topic)
        except (StoreError, OSError) as e:
            return str(e)
        except Exception as e:
            report("removing a deleted topic failed", e, topic=str(topic))
            return repr(e)
        return None

    async def _remove_unnamed(self, topic: UUID) -> None:
        """Remove an unnamed topic. A creation still in progress then fails: it compares the first partition."""
        if not await self._remove(topic):
            return
        log.warning("removed a topic whose creation did not finish", topic=str(topic))

    async def _remove(self, topic: UUID) -> bool:
        """Remove a topic's keys on the condition that its record has not changed."""
        entry = await self.store.get(keys.topic(topic))
        unchanged = Compare(
            keys.topic(topic), CompareTarget.MOD_REVISION, entry.mod_revision if entry is not None else 0
        )
        if topic not in self.view.deleting and topic not in self.watcher.unnamed():
            return False
        result = await self.store.txn(
            [self.leadership.condition, unchanged],
            [DeleteOp(keys.topic(topic)), *topic_deletions(topic)],
        )
        return result.succeeded
