"""Removes what deleted topics and failed creations leave with an embedded store. Created by `node`, which starts it
before clients can connect.

In a cluster the controller does this (`controller.housekeeping`), and each broker removes its own data when it sees a
tombstone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from penstock.log.types import LogError
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.store import DeleteOp, Operation, Store, StoreError
from penstock.state.view import ClusterView, TopicChange
from penstock.state.watcher import Watcher

log = get_logger("penstock.control")

TopicCleaner = Callable[[UUID], Awaitable[None]]
"""Removes a deleted topic's data from another package. Called again after a failure."""


class TopicRemoval:
    """Removes the data of each deleted topic, then its tombstone. The next start repeats what failed."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher) -> None:
        self._store, self._view, self._watcher = store, view, watcher
        self._cleaners: Sequence[TopicCleaner] = ()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, cleaners: Sequence[TopicCleaner]) -> None:
        """Finish what the last run left, and follow the view. Raises `StoreError`."""
        self._cleaners = cleaners
        for topic_id in self._watcher.unnamed():
            await self._remove_keys(topic_id)
        self._view.subscribe(self._on_topics)
        for topic_id in list(self._view.deleting):
            self._spawn(topic_id)

    async def close(self) -> None:
        """Wait until no removal is running."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _on_topics(self, changes: list[TopicChange]) -> None:
        for old in (change.old for change in changes):
            if old is not None and old.topic_id in self._view.deleting:
                self._spawn(old.topic_id)

    def _spawn(self, topic_id: UUID) -> None:
        task = spawn(self._remove(topic_id), f"remove topic {topic_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove(self, topic_id: UUID) -> None:
        try:
            for cleaner in self._cleaners:
                await cleaner(topic_id)
            await self._remove_keys(topic_id)
        except (StoreError, LogError, OSError) as e:
            log.warning(
                "deleted topic not fully removed; retrying at the next start", topic=str(topic_id), reason=str(e)
            )

    async def _remove_keys(self, topic_id: UUID) -> None:
        await self._store.txn([], [DeleteOp(keys.topic(topic_id)), *topic_deletions(topic_id)])


def topic_deletions(topic_id: UUID) -> list[Operation]:
    """Return the operations that remove all keys of a topic but its name, data of groups and tombstone."""
    prefixes = keys.partitions(topic_id), keys.seals(topic_id), keys.relays(topic_id)
    return [DeleteOp(keys.shrink(topic_id)), *(DeleteOp(prefix, prefix=True) for prefix in prefixes)]
