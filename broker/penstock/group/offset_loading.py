"""How the committed offsets of acquired shards get into memory, and how those of deleted topics are deleted.

A single broker is the only writer of its store: it reads all offsets once, and what it has in memory is complete. In a
cluster, a broker acquires shards at any time and reads the offsets of each group on demand or in the background.
`node` selects one; `coordinator` creates and uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol
from uuid import UUID

from penstock.group.coordinator_shard import CoordinatorShard, IdleGroup
from penstock.group.listeners import ShardListener
from penstock.group.offsets import Offsets
from penstock.group.ownership import ShardOwnership
from penstock.group.retention import OffsetRetention
from penstock.group.topic_cleaning import TopicCleaning, check_offsets_deleted
from penstock.state import keys
from penstock.state.store import Store, StoreEntry, StoreUnavailable
from penstock.state.view import ClusterView, TopicChange


class OffsetLoader(ShardListener, Protocol):
    """Loads the offsets of each acquired shard, after `coordinator` has loaded its groups."""

    def admit(self, group_id: str) -> None:
        """Prepare for the first commit of a group that has no record."""

    def topics_changed(self, changes: list[TopicChange]) -> None:
        """Delete the offsets of deleted topics."""

    async def delete_topic_offsets(self, topic_id: UUID) -> None:
        """Return when no offsets of a deleted topic are left. Raises StoreError."""

    def close(self) -> None:
        """Stop all background work."""


OffsetLoaderFactory = Callable[
    [Store, ClusterView, Offsets, OffsetRetention, ShardOwnership, Callable[[Iterable[str]], None]], OffsetLoader
]


class EagerOffsetLoader:
    """Loads all offsets with their shards. `ensure_records` stores a record for groups that have offsets only."""

    prefixes: Sequence[str] = (keys.OFFSETS,)

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        offsets: Offsets,
        retention: OffsetRetention,
        ownership: ShardOwnership,
        ensure_records: Callable[[Iterable[str]], None],
    ) -> None:
        self._view, self._offsets, self._retention = view, offsets, retention
        self._ensure_records = ensure_records

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        """Load the shard's offsets, and schedule the expiry checks of its groups."""
        (entries,) = found
        with_offsets = self._offsets.put_entries(entries)
        for group_id in {**shard.groups, **dict.fromkeys(with_offsets)}:
            self._offsets.cache.mark_complete(group_id)
        for group_id in shard.groups:
            self._retention.schedule(group_id)
        self._ensure_records(with_offsets)

    def on_resigned(self, shard: CoordinatorShard) -> None:
        """Drop all offsets of the shard: the broker stops, or loads the shard again."""
        self._offsets.cache.evict_shard(shard.number)

    def admit(self, group_id: str) -> None:
        """Record that the group has no offsets: there is no other writer."""
        self._offsets.cache.mark_complete(group_id)

    def topics_changed(self, changes: list[TopicChange]) -> None:
        """Delete the offsets of deleted topics."""
        for old in (change.old for change in changes):
            if old is not None and old.topic_id in self._view.deleting:
                self._offsets.delete(list(self._offsets.table.topic_keys(old.topic_id)))

    async def delete_topic_offsets(self, topic_id: UUID) -> None:
        """Delete all offsets of a deleted topic. Raises StoreUnavailable unless all are deleted."""
        outstanding = self._offsets.writers.outstanding_tokens()
        under_way = {t[0] for t in outstanding if t is not None and t[0].topic_id == topic_id}
        left = under_way | set(self._offsets.table.topic_keys(topic_id))
        if any(await asyncio.gather(*self._offsets.delete(left))):
            raise StoreUnavailable("not all committed offsets of the topic could be deleted; retry")
        for number in range(keys.SHARD_COUNT):
            await self._offsets.delete_attached(number, {topic_id})

    def close(self) -> None:
        """Do nothing: there is no background work."""


class LazyOffsetLoader:
    """Loads the offsets of an acquired shard's groups in the background. Each owner deletes those of deleted topics in
    its shards."""

    prefixes: Sequence[str] = ()

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        offsets: Offsets,
        retention: OffsetRetention,
        ownership: ShardOwnership,
        ensure_records: Callable[[Iterable[str]], None],
    ) -> None:
        self._store, self._cache, self._retention = store, offsets.cache, retention
        self._cleaning = TopicCleaning(store, view, offsets, ownership)

    def on_acquired(self, shard: CoordinatorShard, found: Sequence[list[StoreEntry]]) -> None:
        """Start to read the offsets of the shard's groups."""
        self._cache.load_in_background(shard.groups)
        for group_id, known in shard.groups.items():
            if isinstance(known, IdleGroup):
                self._retention.schedule_spread(group_id)
        self._cleaning.on_shard_acquired(shard)

    def on_resigned(self, shard: CoordinatorShard) -> None:
        """Drop all offsets of the shard."""
        self._cache.evict_shard(shard.number)

    def admit(self, group_id: str) -> None:
        """Read the group's offsets: a transaction adds some without a record, or the record is unreadable."""
        self._cache.load_in_background([group_id], force=True)

    def topics_changed(self, changes: list[TopicChange]) -> None:
        """Clean all owned shards if a topic was deleted."""
        self._cleaning.topics_changed(changes)

    async def delete_topic_offsets(self, topic_id: UUID) -> None:
        """Check that the owners of all shards have deleted the topic's offsets. Called by the controller."""
        await check_offsets_deleted(self._store, topic_id)

    def close(self) -> None:
        """Cancel the cleaning in progress."""
        self._cleaning.close()
