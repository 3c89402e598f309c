"""Store transactions of coordinator shards: a few at a time per broker, each with the writes of several shards.

A shard belongs to one queue, and a queue has one transaction in flight. A shard thus never has more than one in flight,
and a loaded broker sends few, large transactions, whatever its number of groups. Fed by `shard_writer`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.group.shard_writer import KeyWrite, ShardGuard, ShardWriter
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report, spawn
from penstock.state import keys, records
from penstock.state.records import ShardFenceRecord
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, CompareTarget, PutOp, Store, StoreError, StoreUnavailable

log = get_logger(__name__)

QUEUE_COUNT = 4
"""Queues per broker. More queues mean more and smaller transactions, but less waiting for the store."""
MAX_TXN_BYTES = 1 << 20
"""Maximum size of the keys and values batched into one transaction; a single larger write is sent alone."""
GUARD_COMPARES = 2
assert keys.SHARD_COUNT // QUEUE_COUNT * GUARD_COMPARES <= MAX_TXN_OPERATIONS, (
    "all shards of a lane fit into a transaction"
)

T = TypeVar("T")


@dataclass(slots=True)
class ShardBatch(Generic[T]):
    """The writes of one shard in a transaction."""

    writer: ShardWriter[T]
    writes: list[KeyWrite[T]]


class RequestQueue(Generic[T]):
    """A queue with one transaction in flight. Shards with pending writes take turns."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[ShardWriter[T], None] = {}
        self._task: asyncio.Task[None] | None = None
        self.transactions = 0
        """Number of transactions sent, for the metrics."""

    def wake(self, writer: ShardWriter[T]) -> None:
        """Schedule a shard that has pending writes."""
        self._waiting[writer] = None
        if self._task is None:
            self._task = spawn(self._run(), "coordinator writes")

    async def drain(self, writer: ShardWriter[T]) -> None:
        """Wait until a shard has no pending and no in-flight writes."""
        while self._task is not None and (writer.pending or writer.in_flight):
            await asyncio.wait([self._task])

    # --- internal

    async def _run(self) -> None:
        batches: list[ShardBatch[T]] = []
        try:
            while self._waiting:
                await self._renew_fences()
                batches = self._pop_batches()
                if batches:
                    await self._write(batches)
                for batch in batches:
                    batch.writer.in_flight = {}
                batches = []
        finally:
            self._task = None
            waiting, self._waiting = list(self._waiting), {}
            for batch in batches:  # only after a programming error
                batch.writer.in_flight = {}
                batch.writer.fail(batch.writes, is_certain=False)
                batch.writer.fail_pending()
            for writer in waiting:
                writer.fail_pending()

    def _pop_batches(self) -> list[ShardBatch[T]]:
        batches: list[ShardBatch[T]] = []
        keys_left, bytes_left = MAX_TXN_OPERATIONS, MAX_TXN_BYTES
        for writer in list(self._waiting):
            if writer.pending and writer.guard.is_fence_stale:
                continue  # its fence became stale while others were renewed; the next round renews it
            writes = writer.pop_writes(keys_left, bytes_left)
            if writes:
                batches.append(ShardBatch(writer, writes))
                keys_left -= len(writes)
                bytes_left -= sum(slot.size_bytes for slot in writes)
            del self._waiting[writer]
            if writer.pending:
                self._waiting[writer] = None  # behind the other shards
            if keys_left <= 0 or bytes_left <= 0:
                break
        return batches

    async def _write(self, batches: list[ShardBatch[T]]) -> None:
        self.transactions += 1
        compares: list[Compare] = []
        for batch in batches:
            compares += batch.writer.guard.write_compares()
        try:
            result = await self._store.txn(compares, [slot.operation for batch in batches for slot in batch.writes])
        except StoreUnavailable as e:
            log.warning("cannot write group state", keys=sum(len(p.writes) for p in batches), error=str(e))
            self._fail(batches)
        except (StoreError, ValueError) as e:
            await self._write_less(batches, e)
        except Exception as e:
            report("writing group state failed", e)
            self._fail(batches)
        else:
            if result.succeeded:
                for batch in batches:
                    batch.writer.complete(batch.writes)
            elif len(batches) > 1:
                for batch in batches:
                    await self._write([batch])
            else:
                batches[0].writer.fail(batches[0].writes, is_certain=True)
                batches[0].writer.handle_lost()

    async def _write_less(self, batches: list[ShardBatch[T]], error: Exception) -> None:
        """Isolate the write that the store rejects, by bisection."""
        if len(batches) > 1:
            for batch in batches:
                await self._write([batch])
            return
        writer, writes = batches[0].writer, batches[0].writes
        if len(writes) > 1:
            middle = len(writes) // 2
            await self._write([ShardBatch(writer, writes[:middle])])
            await self._write([ShardBatch(writer, writes[middle:])])
        else:
            log.error("the store rejects a write of group state", key=writes[0].operation.key, error=str(error))
            writer.fail(writes, is_certain=True)

    def _fail(self, batches: list[ShardBatch[T]]) -> None:
        """Fail the sent batches and all pending writes: these would only wait for another timeout."""
        for batch in batches:
            batch.writer.fail(batch.writes, is_certain=False)
        for writer in {*self._waiting, *(batch.writer for batch in batches)}:
            writer.fail_pending()

    # --- fences

    async def _renew_fences(self) -> None:
        """Fence out earlier transactions whose outcome is unknown."""
        for writer in list(self._waiting):
            guard = writer.guard
            if not guard.is_fence_stale or not writer.pending:
                continue
            try:
                is_owner = await renew_fence(self._store, guard)
            except StoreError as e:
                log.warning("cannot renew the shard's fence: pending writes failed", shard=guard.number, error=str(e))
                writer.fail_pending()
            else:
                if not is_owner:
                    writer.handle_lost()


async def read_fence(store: Store, guard: ShardGuard) -> None:
    """Read the fence revision that a new owner's writes compare. Raises StoreError."""
    entry = await store.get(keys.shard_fence(guard.number))
    guard.fence_revision = entry.mod_revision if entry is not None else 0


async def renew_fence(store: Store, guard: ShardGuard) -> bool:
    """Rewrite the fence. Returns False if another broker owns the shard. Raises StoreError.

    The current revision is read first, because an earlier attempt may have succeeded without a response.
    """
    entry = await store.get(keys.shard_fence(guard.number))
    known = Compare(keys.shard_fence(guard.number), CompareTarget.MOD_REVISION, entry.mod_revision if entry else 0)
    put = PutOp(known.key, records.encode(ShardFenceRecord(epoch=guard.epoch)))
    result = await store.txn([*guard.ownership_compares(), known], [put])
    if result.succeeded:
        guard.fence_revision, guard.is_fence_stale = result.revision, False
    return result.succeeded
