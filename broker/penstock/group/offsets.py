"""Committed offsets: stored before a commit is answered, read from memory. Used by `coordinator`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.group.coordinator_shard import LoadedKey
from penstock.group.directory import GroupDirectory
from penstock.group.expiry import NEVER, ExpiryQueue
from penstock.group.listeners import AttachedData, NoPendingOffsets, PendingOffsets
from penstock.group.offset_cache import OffsetCache
from penstock.group.offset_table import OffsetKey, OffsetTable
from penstock.group.shard_writers import ShardWriters
from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import BadRecord, GroupRecord, OffsetRecord
from penstock.state.store import DeleteOp, Operation, PutOp, Store, StoreEntry
from penstock.state.view import ClusterView
from penstock.wire.offset_metadata import is_position

MINUTE_MS = 60_000

log = get_logger(__name__)


class OffsetCommit(NamedTuple):
    """One partition of a commit; leader epoch -1 is unknown."""

    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommittedOffset(NamedTuple):
    """A group's committed offset, for the metrics."""

    group_id: str
    topic: str
    partition: int
    offset: int
    commit_ms: int


OffsetWrite = tuple[OffsetKey, OffsetRecord | None]
"""The effect of a write on the table; the record is None for a deletion."""


class Offsets:
    """The committed offsets of all groups.

    `writers` also write group records, so that both are ordered; their token is None. `cache` decides which groups are
    in `table`; others are read from the store on demand. `expiry` schedules the groups' expiry checks.

    `on_lost` is called with the number of a shard that the store assigns to another broker, `on_committed` with the
    groups whose commits became durable; for `on_loaded` see `OffsetCache`.
    """

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        clock: Clock,
        config: BrokerConfig,
        groups: GroupDirectory,
        on_lost: Callable[[int], None],
        on_committed: Callable[[Iterable[str]], None],
        on_loaded: Callable[[str], None],
    ) -> None:
        self.table = OffsetTable()
        self.expiry = ExpiryQueue()
        self.pending: PendingOffsets = NoPendingOffsets()
        """Offsets of ongoing transactions. Set by `txn.service`."""
        self.writers: ShardWriters[OffsetWrite | None] = ShardWriters(store, self._applied, self._uncertain, on_lost)
        self.cache = OffsetCache(
            store, self.table, self.put_entries, self._apply, self.outstanding_keys, groups, on_loaded
        )
        self._attached: list[AttachedData] = []
        self._on_committed = on_committed
        self._view = view
        self._clock = clock
        self._config = config

    # --- loading

    def put_entries(self, entries: Iterable[StoreEntry]) -> set[str]:
        """Add store entries to the table. Returns the groups.

        Offsets of a deleted topic are included, for their deletion. Offsets of a topic that is merely missing
        stay in the store: its record may be damaged.
        """
        groups = set()
        with LoadedKey() as loading:
            for entry in entries:
                loading.key = entry.key
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
                    log.warning("committed offset of an unknown topic: kept in the store, not served", key=entry.key)
        return groups

    # --- writing

    def commit(
        self, group_id: str, commits: Sequence[OffsetCommit], retention_ms: int | None = None
    ) -> asyncio.Future[list[int]]:
        """Write offsets. The result is the indexes of those that did not become durable. Performs no checks.

        `retention_ms` overrides the broker's setting (OffsetCommit 2 to 4).
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
        return self.writers.for_group(group_id).submit(writes)

    def store_group(self, group_id: str) -> asyncio.Future[list[int]]:
        """Write the record of a group that never had a member, so that the next coordinator finds it."""
        record = GroupRecord(state_ms=self._clock.wall_ms())
        return self.writers.for_group(group_id).submit([(PutOp(keys.group(group_id), records.encode(record)), None)])

    def delete(self, offsets: Iterable[OffsetKey]) -> list[asyncio.Future[list[int]]]:
        """Delete offsets. Returns one future per group."""
        by_group: dict[str, list[tuple[Operation, OffsetWrite | None]]] = {}
        for key in offsets:
            by_group.setdefault(key.group_id, []).append((DeleteOp(keys.offset(*key)), (key, None)))
        return [self.writers.for_group(group_id).submit(writes) for group_id, writes in by_group.items()]

    def delete_group(self, group_id: str) -> list[asyncio.Future[list[int]]]:
        """Delete all offsets of a fully cached group, outstanding ones included, then its other data, its record and
        its settings."""
        writer = self.writers.for_group(group_id)
        self.pending.forget_group(group_id)
        keys_to_delete = {key for key, _ in self.table.group_offsets(group_id)} | self.outstanding_keys(group_id)
        attached = (key for data in self._attached for key in data.keys_of_group(group_id))
        rest = *attached, keys.group(group_id), keys.group_settings(group_id)
        return [*self.delete(keys_to_delete), writer.submit([(DeleteOp(key), None) for key in rest])]

    # --- other data of groups

    def attach(self, data: AttachedData) -> None:
        """Delete `data` with the groups and topics that it is about."""
        self._attached.append(data)

    def forget_attached(self, group_id: str) -> None:
        """Drop the other data of a group that was deleted."""
        for data in self._attached:
            data.forget_group(group_id)

    async def delete_attached(self, number: int, topic_ids: Container[UUID]) -> None:
        """Delete a shard's other data of deleted topics. Raises StoreUnavailable."""
        for data in self._attached:
            await data.delete_topics(number, topic_ids)

    def outstanding_keys(self, group_id: str) -> set[OffsetKey]:
        """Return the partitions with commits of the group that are not durable yet."""
        tokens = self.writers.for_group(group_id).outstanding_tokens()
        return {t[0] for t in tokens if t is not None and t[0].group_id == group_id and t[1] is not None}

    # --- reading

    def committed(self) -> Iterator[CommittedOffset]:
        """Iterate over all cached offsets of existing topics. Offsets may change meanwhile.

        Negative ones are left out: to clients, the partition has no committed offset. So are offsets that are no
        positions.
        """
        for group_id in self.table.groups():
            for key, record in list(self.table.group_offsets(group_id)):
                topic = self._view.topics_by_id.get(key.topic_id)
                if topic is not None and record.offset >= 0 and is_position(record.metadata):
                    yield CommittedOffset(group_id, topic.name, key.partition, record.offset, record.commit_ms)

    # --- internal

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
                orphans.append(key)  # the topic was deleted while the commit was in flight
            elif self.cache.accept_write(write):
                self._apply(write)
        if orphans:
            self.delete(orphans)
        self._on_committed(groups)

    def _apply(self, write: OffsetWrite) -> None:
        key, record = write
        if record is None:
            self.table.remove(key)
        else:
            self._put(key, record)

    def _uncertain(self, writes: list[OffsetWrite | None]) -> None:
        """Evict the groups of writes with an unknown outcome, so that they are read again."""
        for group_id in {write[0].group_id for write in writes if write is not None}:
            self.cache.evict(group_id)

    def _put(self, key: OffsetKey, record: OffsetRecord) -> None:
        self.table.put(key, record)
        retention_ms = self._config.offsets_retention_minutes * MINUTE_MS
        due_ms = record.expire_ms if record.expire_ms >= 0 else record.commit_ms + retention_ms
        self.expiry.schedule(key.group_id, due_ms)
