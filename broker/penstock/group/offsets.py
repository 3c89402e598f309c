"""Committed offsets: durable in the store before a commit is answered, read from memory. Driven by `coordinator`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.group.expiry import NEVER, ExpiryQueue
from penstock.group.offset_cache import OffsetCache
from penstock.group.offset_table import OffsetKey, OffsetTable
from penstock.group.pending import NothingPending, PendingOffsets
from penstock.group.writers import ShardWriters
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import BadRecord, GroupRecord, OffsetRecord
from penstock.state.store import DeleteOp, Operation, PutOp, Store, StoreEntry, StoreUnavailable
from penstock.state.view import ClusterView, TopicChange

MINUTE_MS = 60_000

log = get_logger(__name__)


class OffsetCommit(NamedTuple):
    """One partition of a commit; a leader epoch of -1 is unknown."""

    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommittedOffset(NamedTuple):
    """Where a group is in a partition, for the metrics."""

    group_id: str
    topic: str
    partition: int
    offset: int
    commit_ms: int


OffsetWrite = tuple[OffsetKey, OffsetRecord | None]
"""What a write means in memory: no record where the offset is deleted."""


class Offsets:
    """All groups' committed offsets.

    `writers` also take the records of groups themselves, so that both stay in order; those mean nothing here (None).
    `residence` says which groups' offsets are in `table`: those that are not are read from the store when needed.
    `expiry` says when to look at a group for offsets that have ended.
    """

    def __init__(self, store: Store, view: ClusterView, clock: Clock, config: BrokerConfig) -> None:
        self.table = OffsetTable()
        self.expiry = ExpiryQueue()
        self.pending: PendingOffsets = NothingPending()
        """What transactions have brought; set where there are any."""
        self.writers: ShardWriters[OffsetWrite | None] = ShardWriters(store, self._applied, self._uncertain)
        self.residence = OffsetCache(store, self.table, self._put_entries, self._apply, self.being_committed)
        self.unknown_groups: Callable[[Iterable[str]], None] = ignore
        """Called with groups of which offsets became durable. Set by whoever owns this."""
        self._view = view
        self._clock = clock
        self._config = config

    # --- loading

    def load(self, entries: Iterable[StoreEntry]) -> set[str]:
        """Takes in all that the store holds, where there is one broker; returns the groups.

        The view has been loaded before.
        """
        groups = self._put_entries(entries)
        for group_id in groups:
            self.residence.is_all_here(group_id)
        return groups

    def _put_entries(self, entries: Iterable[StoreEntry]) -> set[str]:
        """Offsets of a topic that has a tombstone go with it (`forget_topic`); those of one that is merely missing stay
        in the store, as its record may be damaged."""
        groups = set()
        for entry in entries:
            try:
                key = OffsetKey(*keys.parse_offset(entry.key))
                record = records.decode(OffsetRecord, entry.key, entry.value)
            except (BadRecord, ValueError) as e:
                log.error("skipping an unreadable committed offset", key=entry.key, error=str(e))
                continue
            if key.topic_id in self._view.topics_by_id or key.topic_id in self._view.deleting:
                self._put(key, record)
                groups.add(key.group_id)
            else:
                log.warning("a committed offset is of a topic that is not there: kept, not served", key=entry.key)
        return groups

    # --- writing

    def commit(
        self, group_id: str, commits: Sequence[OffsetCommit], retention_ms: int | None = None
    ) -> asyncio.Future[list[int]]:
        """Makes offsets durable; the result names by index those that are not. Nothing is checked here.

        `retention_ms`, where given, takes the place of the broker's setting (OffsetCommit 2 to 4).
        """
        now_ms = self._clock.wall_ms()
        expire_ms = -1 if retention_ms is None else min(now_ms + retention_ms, NEVER - 1)
        writes: list[tuple[Operation, OffsetWrite | None]] = []
        for topic_id, partition, offset, leader_epoch, metadata in commits:
            record = OffsetRecord(
                offset=offset, leader_epoch=leader_epoch, metadata=metadata, commit_ms=now_ms, expire_ms=expire_ms
            )
            operation = PutOp(keys.offset(group_id, topic_id, partition), records.encode(record))
            writes.append((operation, (OffsetKey(group_id, topic_id, partition), record)))
        return self.writers.of_group(group_id).submit(writes)

    def store_group(self, group_id: str) -> asyncio.Future[list[int]]:
        """Writes the record of a group that nobody has joined: the next coordinator finds it by that."""
        record = GroupRecord(state_ms=self._clock.wall_ms())
        return self.writers.of_group(group_id).submit([(PutOp(keys.group(group_id), records.encode(record)), None)])

    def delete(self, offsets: Iterable[OffsetKey]) -> list[asyncio.Future[list[int]]]:
        """Deletes offsets; one future for each group."""
        by_group: dict[str, list[tuple[Operation, OffsetWrite | None]]] = {}
        for key in offsets:
            by_group.setdefault(key.group_id, []).append((DeleteOp(keys.offset(*key)), (key, None)))
        return [self.writers.of_group(group_id).submit(writes) for group_id, writes in by_group.items()]

    def delete_group(self, group_id: str) -> list[asyncio.Future[list[int]]]:
        """Deletes all offsets of a group, which are all here, and then its record and its settings; what is on its way
        included."""
        writer = self.writers.of_group(group_id)
        self.pending.forget_group(group_id)
        mine = {key for key, _ in self.table.of_group(group_id)} | self.being_committed(group_id)
        rest = keys.group(group_id), keys.group_settings(group_id)
        return [*self.delete(mine), writer.submit([(DeleteOp(key), None) for key in rest])]

    def being_committed(self, group_id: str) -> set[OffsetKey]:
        """What a group has committed that is still on its way to the store."""
        tokens = self.writers.of_group(group_id).tokens_under_way()
        return {t[0] for t in tokens if t is not None and t[0].group_id == group_id and t[1] is not None}

    # --- topics

    def topics_changed(self, changes: list[TopicChange]) -> None:
        """A deleted topic takes its offsets along; one of the same name has another id and starts without."""
        for old in (change.old for change in changes):
            if old is not None and old.topic_id in self._view.deleting:
                self.delete(list(self.table.of_topic(old.topic_id)))

    async def forget_topic(self, topic_id: UUID) -> None:
        """Returns when no offset of a deleted topic is left in the store, of groups whose offsets are here.

        Raises StoreUnavailable. With one broker these are all groups; in a cluster see `topic_cleaning`.
        """
        under_way = {t[0] for t in self.writers.tokens_under_way() if t is not None and t[0].topic_id == topic_id}
        if any(await asyncio.gather(*self.delete(under_way | set(self.table.of_topic(topic_id))))):
            raise StoreUnavailable("not all committed offsets of the topic could be deleted")

    # --- reading

    def committed(self) -> Iterator[CommittedOffset]:
        """All offsets that are here, of topics that exist. They may change while this is walked through."""
        for group_id in self.table.groups():
            for key, record in list(self.table.of_group(group_id)):
                topic = self._view.topics_by_id.get(key.topic_id)
                if topic is not None:
                    yield CommittedOffset(group_id, topic.name, key.partition, record.offset, record.commit_ms)

    # --- inside

    def _applied(self, writes: list[OffsetWrite | None]) -> None:
        orphans = []
        groups: dict[str, None] = {}
        for write in writes:
            if write is None:
                continue
            key, record = write
            if record is not None:
                groups[key.group_id] = None
            if record is not None and key.topic_id not in self._view.topics_by_id:
                orphans.append(key)  # the topic went while the commit was on its way
            elif self.residence.applies(write):
                self._apply(write)
        if orphans:
            self.delete(orphans)
        self.unknown_groups(groups)

    def _apply(self, write: OffsetWrite) -> None:
        key, record = write
        if record is None:
            self.table.remove(key)
        else:
            self._put(key, record)

    def _uncertain(self, writes: list[OffsetWrite | None]) -> None:
        """Of these nobody knows whether they were done: the store is asked when it matters."""
        for group_id in {write[0].group_id for write in writes if write is not None}:
            self.residence.drop(group_id)

    def _put(self, key: OffsetKey, record: OffsetRecord) -> None:
        self.table.put(key, record)
        retention_ms = self._config.offsets_retention_minutes * MINUTE_MS
        due_ms = record.expire_ms if record.expire_ms >= 0 else record.commit_ms + retention_ms
        self.expiry.schedule(key.group_id, due_ms)


def ignore(group_ids: Iterable[str]) -> None:
    """Nobody listens."""
