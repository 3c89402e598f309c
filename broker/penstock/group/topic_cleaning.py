"""Deletes the offsets of deleted topics, each shard by its owner.

A topic's tombstone stays until no data of the topic is left. Each owner deletes the offsets in its shards and records
per shard the revision up to which it has cleaned. `check_offsets_deleted` compares these records with the tombstone.
The offsets are not served meanwhile, because topic ids are never reused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from penstock.group.coordinator_shard import CoordinatorShard
from penstock.group.offset_table import OffsetKey
from penstock.group.offsets import Offsets, OffsetWrite
from penstock.group.ownership import ShardOwnership
from penstock.group.shard_writer import ShardWriter
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys, records
from penstock.state.records import BadRecord, ShardCleanedRecord
from penstock.state.store import PutOp, Store, StoreError, StoreUnavailable
from penstock.state.view import ClusterView, TopicChange

log = get_logger(__name__)

BATCH_DELAY_S = 1.0
"""Delay before a pass, so that topics deleted shortly after one another share it."""
RETRY_S = 5.0


class TopicCleaning:
    """Cleans one shard at a time, while there are tombstones of which a shard has not been cleaned."""

    def __init__(self, store: Store, view: ClusterView, offsets: Offsets, ownership: ShardOwnership) -> None:
        self._store, self._view, self._offsets, self._ownership = store, view, offsets, ownership
        self._dirty: dict[int, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def topics_changed(self, changes: Iterable[TopicChange]) -> None:
        """Clean all owned shards if a topic was deleted."""
        if any(change.old is not None and change.old.topic_id in self._view.deleting for change in changes):
            for shard in self._ownership:
                self._dirty[shard.number] = None
            self._start_task()

    def on_shard_acquired(self, shard: CoordinatorShard) -> None:
        """Clean an acquired shard: its previous owner may not have finished."""
        if self._view.deleting:
            self._dirty[shard.number] = None
            self._start_task()

    def close(self) -> None:
        """Cancel the current pass."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    # --- internal

    def _start_task(self) -> None:
        if self._task is None and not self._closed:
            self._task = spawn(self._work(), "offsets of deleted topics")

    async def _work(self) -> None:
        try:
            while self._dirty:
                await asyncio.sleep(BATCH_DELAY_S)
                for number in list(self._dirty):
                    del self._dirty[number]
                    try:
                        await self._clean(number)
                    except StoreError as e:
                        log.warning("cannot delete offsets of deleted topics: retrying", shard=number, reason=str(e))
                        self._dirty[number] = None
                if self._dirty:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _clean(self, number: int) -> None:
        shard = self._ownership.get(number)
        if shard is None or shard.is_loading:
            return  # its new owner cleans it
        # Later commits are for topics in the view, or `Offsets` deletes them once durable.
        writer = self._offsets.writers.for_shard(number)
        revision, deleting = self._view.revision, set(self._view.deleting)
        if shard.guard.is_fence_stale:
            # A commit with an unknown outcome may still take effect. Any write fences it out.
            await self._record_cleaned(writer, number, 0)
        for group_id in list(shard.groups):
            await self._clean_group(group_id, deleting)
        await self._offsets.delete_attached(number, deleting)
        await writer.drain()
        await self._record_cleaned(writer, number, revision)

    async def _record_cleaned(self, writer: ShardWriter[OffsetWrite | None], number: int, revision: int) -> None:
        record = PutOp(keys.shard_cleaned(number), records.encode(ShardCleanedRecord(revision=revision)))
        if await writer.submit([(record, None)]):
            raise StoreUnavailable("the cleaned revision could not be recorded")

    async def _clean_group(self, group_id: str, deleting: set[UUID]) -> None:
        """Delete a group's offsets of deleted topics. Reads them from the store, uncached, if not cached."""
        if group_id in self._offsets.cache:
            found = [key for key, _ in self._offsets.table.group_offsets(group_id) if key.topic_id in deleting]
        else:
            found = []
            for entry in (await self._store.range(keys.group_offsets(group_id))).entries:
                try:
                    key = OffsetKey(*keys.parse_offset(entry.key))
                except ValueError:
                    continue  # logged when the group is loaded
                if key.topic_id in deleting:
                    found.append(key)
        outstanding = [key for key in self._offsets.outstanding_keys(group_id) if key.topic_id in deleting]
        if any(await asyncio.gather(*self._offsets.delete({*found, *outstanding}))):
            raise StoreUnavailable(f'offsets of group "{group_id}" could not be deleted')


async def check_offsets_deleted(store: Store, topic_id: UUID) -> None:
    """Raise StoreUnavailable while a shard may hold offsets of a deleted topic. Called by the controller."""
    tombstone = await store.get(keys.topic(topic_id))
    if tombstone is None:
        return
    cleaned = {}
    for entry in (await store.range(keys.SHARDS_CLEANED)).entries:
        try:
            number = int(entry.key[len(keys.SHARDS_CLEANED) :])
            cleaned[number] = records.decode(ShardCleanedRecord, entry.key, entry.value).revision
        except (BadRecord, ValueError) as e:
            log.error("unreadable cleaned-revision record of a shard", key=entry.key, error=str(e))
    uncleaned = [number for number in range(keys.SHARD_COUNT) if cleaned.get(number, 0) < tombstone.mod_revision]
    if uncleaned:
        raise StoreUnavailable(
            f'offsets of topic "{topic_id}" may remain in {len(uncleaned)} shards, the first is {uncleaned[0]}'
        )
