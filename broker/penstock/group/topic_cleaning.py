"""Deletes the offsets of deleted topics, each shard by its owner, and tells the controller when all have.

A topic's tombstone stays until nothing of the topic is left anywhere. An owner that sees tombstones goes through its
shards' groups and notes for each shard up to which revision it has cleaned; `check_forgotten` compares these notes with
the tombstone. Offsets of deleted topics are served to nobody meanwhile: topic ids are never used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from penstock.group.offset_table import OffsetKey
from penstock.group.offsets import Offsets, OffsetWrite
from penstock.group.ownership import ShardOwnership
from penstock.group.shard_tenancy import ShardTenancy
from penstock.group.shard_writer import ShardWriter
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import BadRecord, ShardCleanedRecord
from penstock.state.store import PutOp, Store, StoreError, StoreUnavailable
from penstock.state.view import ClusterView, TopicChange

log = get_logger(__name__)

GATHER_S = 1.0
"""Topics that are deleted one after the other are cleaned up together."""
RETRY_S = 5.0


class TopicCleaning:
    """Works while there are tombstones that a shard has not been cleaned of, one shard at a time."""

    def __init__(self, store: Store, view: ClusterView, offsets: Offsets, ownership: ShardOwnership) -> None:
        self._store, self._view, self._offsets, self._ownership = store, view, offsets, ownership
        self._dirty: dict[int, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def topics_changed(self, changes: Iterable[TopicChange]) -> None:
        if any(change.old is not None and change.old.topic_id in self._view.deleting for change in changes):
            for tenure in self._ownership:
                self._dirty[tenure.number] = None
            self._go_on()

    def shard_taken(self, tenure: ShardTenancy) -> None:
        """Its last owner may not have finished."""
        if self._view.deleting:
            self._dirty[tenure.number] = None
            self._go_on()

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    # --- inside

    def _go_on(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="offsets of deleted topics")

    async def _work(self) -> None:
        try:
            while self._dirty:
                await asyncio.sleep(GATHER_S)
                for number in list(self._dirty):
                    del self._dirty[number]
                    try:
                        await self._clean(number)
                    except StoreError as e:
                        log.warning("offsets of deleted topics stay until the next try", shard=number, reason=str(e))
                        self._dirty[number] = None
                if self._dirty:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _clean(self, number: int) -> None:
        tenure = self._ownership.of_shard(number)
        if tenure is None or tenure.is_loading:
            return  # who has it now does it
        # What is committed from here on is of topics that the view has, or is taken back when it is durable.
        writer = self._offsets.writers.of_shard(number)
        revision, deleting = self._view.revision, set(self._view.deleting)
        if tenure.guard is not None and tenure.guard.is_fence_old:
            # A commit that got no answer may come to be only now: any write shuts it out first.
            await self._note(writer, number, 0)
        for group_id in list(tenure.groups):
            await self._clean_group(group_id, deleting)
        await writer.settle()
        await self._note(writer, number, revision)

    async def _note(self, writer: ShardWriter[OffsetWrite | None], number: int, revision: int) -> None:
        note = PutOp(keys.shard_cleaned(number), records.encode(ShardCleanedRecord(revision=revision)))
        if await writer.submit([(note, None)]):
            raise StoreUnavailable("what was cleaned could not be noted")

    async def _clean_group(self, group_id: str, deleting: set[UUID]) -> None:
        """A group whose offsets are not in memory is looked at in the store, and not brought in for that."""
        if group_id in self._offsets.residence:
            found = [key for key, _ in self._offsets.table.of_group(group_id) if key.topic_id in deleting]
        else:
            found = []
            for entry in (await self._store.range(keys.group_offsets(group_id))).entries:
                try:
                    key = OffsetKey(*keys.parse_offset(entry.key))
                except ValueError:
                    continue  # said when the group is read
                if key.topic_id in deleting:
                    found.append(key)
        under_way = [key for key in self._offsets.being_committed(group_id) if key.topic_id in deleting]
        if any(await asyncio.gather(*self._offsets.delete({*found, *under_way}))):
            raise StoreUnavailable(f"offsets of group {group_id} could not be deleted")


async def check_forgotten(store: Store, topic_id: UUID) -> None:
    """Raises StoreUnavailable while offsets of a deleted topic may be left in any shard. For the controller."""
    tombstone = await store.get(keys.topic(topic_id))
    if tombstone is None:
        return
    cleaned = {}
    for entry in (await store.range(keys.SHARDS_CLEANED)).entries:
        try:
            number = int(entry.key[len(keys.SHARDS_CLEANED) :])
            cleaned[number] = records.decode(ShardCleanedRecord, entry.key, entry.value).revision
        except (BadRecord, ValueError) as e:
            log.error("a shard's note of what it cleaned is unreadable", key=entry.key, error=str(e))
    late = [number for number in range(keys.SHARD_COUNT) if cleaned.get(number, 0) < tombstone.mod_revision]
    if late:
        raise StoreUnavailable(f"offsets of topic {topic_id} may be left in {len(late)} shards, the first is {late[0]}")
