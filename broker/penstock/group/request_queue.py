"""Transactions of coordinator shards: a few at a time for the whole broker, each with the writes of several shards.

A shard belongs to one lane, and a lane has one transaction in flight: so there is never more than one of a shard, and
a broker under load makes few and large ones, whatever the number of its groups. Fed by `shard_writer`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.group.shard_writer import Guard, ShardWriter, Slot
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import ShardFenceRecord
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, CompareTarget, PutOp, Store, StoreError, StoreUnavailable

log = get_logger(__name__)

LANES = 4
"""Of a broker. More would make more and smaller transactions, fewer would wait for the store longer."""
MAX_TXN_BYTES = 1 << 20
"""Of keys and values that are put into one transaction together; a single write may be larger."""
GUARD_COMPARES = 2
assert keys.SHARD_COUNT // LANES * GUARD_COMPARES <= MAX_TXN_OPERATIONS, "all shards of a lane fit into a transaction"

T = TypeVar("T")


@dataclass(slots=True)
class ShardTask(Generic[T]):
    """What one shard has in a transaction."""

    writer: ShardWriter[T]
    slots: list[Slot[T]]


class RequestQueue(Generic[T]):
    """One transaction in flight. Shards that have something to write take turns."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[ShardWriter[T], None] = {}
        self._task: asyncio.Task[None] | None = None
        self.transactions = 0
        """Transactions so far, for the metrics."""

    def wake(self, writer: ShardWriter[T]) -> None:
        """A shard has something to write."""
        self._waiting[writer] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain(), name="coordinator writes")

    async def settle(self, writer: ShardWriter[T]) -> None:
        """Returns when a shard has nothing left to write."""
        while self._task is not None and (writer.pending or writer.in_flight):
            await asyncio.wait([self._task])

    # --- inside

    async def _drain(self) -> None:
        batch: list[ShardTask[T]] = []
        try:
            while self._waiting:
                await self._renew_fences()
                batch = self._take()
                if batch:
                    await self._write(batch)
                for part in batch:
                    part.writer.in_flight = {}
                batch = []
        finally:
            self._task = None
            waiting, self._waiting = list(self._waiting), {}
            for part in batch:  # none, but for a defect
                part.writer.in_flight = {}
                part.writer.failed(part.slots, is_certain=False)
                part.writer.fail_pending()
            for writer in waiting:
                writer.fail_pending()

    def _take(self) -> list[ShardTask[T]]:
        parts: list[ShardTask[T]] = []
        keys_left, bytes_left = MAX_TXN_OPERATIONS, MAX_TXN_BYTES
        for writer in list(self._waiting):
            if writer.pending and writer.guard is not None and writer.guard.is_fence_old:
                continue  # it came while fences were being renewed: the next round begins with its own
            slots = writer.take(keys_left, bytes_left)
            if slots:
                parts.append(ShardTask(writer, slots))
                keys_left -= len(slots)
                bytes_left -= sum(slot.size_bytes for slot in slots)
            del self._waiting[writer]
            if writer.pending:
                self._waiting[writer] = None  # behind the others
            if keys_left <= 0 or bytes_left <= 0:
                break
        return parts

    async def _write(self, parts: list[ShardTask[T]]) -> None:
        self.transactions += 1
        compares: list[Compare] = []
        for part in parts:
            if part.writer.guard is not None:
                compares += part.writer.guard.ownership(), part.writer.guard.fence()
        try:
            result = await self._store.txn(compares, [slot.operation for part in parts for slot in part.slots])
        except StoreUnavailable as e:
            log.warning("cannot write group state", keys=sum(len(p.slots) for p in parts), error=str(e))
            self._fail(parts)
        except (StoreError, ValueError) as e:
            await self._write_less(parts, e)
        except Exception as e:
            log.exception("writing group state failed", error=repr(e))
            self._fail(parts)
        else:
            if result.succeeded:
                for part in parts:
                    part.writer.done(part.slots)
            elif len(parts) > 1:
                for part in parts:
                    await self._write([part])
            else:
                parts[0].writer.failed(parts[0].slots, is_certain=True)
                parts[0].writer.lost()

    async def _write_less(self, parts: list[ShardTask[T]], error: Exception) -> None:
        """The store refuses the transaction as it is: what is wrong with it is found by halves."""
        if len(parts) > 1:
            for part in parts:
                await self._write([part])
            return
        writer, slots = parts[0].writer, parts[0].slots
        if len(slots) > 1:
            middle = len(slots) // 2
            await self._write([ShardTask(writer, slots[:middle])])
            await self._write([ShardTask(writer, slots[middle:])])
        else:
            log.error("the store refuses a key of a group", key=slots[0].operation.key, error=str(error))
            writer.failed(slots, is_certain=True)

    def _fail(self, parts: list[ShardTask[T]]) -> None:
        """No answer: nobody is to wait for another timeout, so those that have not been sent fail too."""
        for part in parts:
            part.writer.failed(part.slots, is_certain=False)
        for writer in {*self._waiting, *(part.writer for part in parts)}:
            writer.fail_pending()

    # --- fences

    async def _renew_fences(self) -> None:
        """Shuts out what earlier transactions may still do, where one got no answer."""
        for writer in list(self._waiting):
            guard = writer.guard
            if guard is None or not guard.is_fence_old or not writer.pending:
                continue
            try:
                is_owner = await renew_fence(self._store, guard)
            except StoreError as e:
                log.warning("cannot go on writing group state", shard=guard.number, error=str(e))
                writer.fail_pending()
            else:
                if not is_owner:
                    writer.lost()


async def read_fence(store: Store, guard: Guard) -> None:
    """Finds out what a new tenure is to compare. Raises StoreError."""
    entry = await store.get(keys.shard_fence(guard.number))
    guard.fence_revision = entry.mod_revision if entry is not None else 0


async def renew_fence(store: Store, guard: Guard) -> bool:
    """Changes the fence; False where the shard is another's. Raises StoreError.

    It may be that an earlier try took effect without being answered: so what is there is read first.
    """
    entry = await store.get(keys.shard_fence(guard.number))
    known = Compare(keys.shard_fence(guard.number), CompareTarget.MOD_REVISION, entry.mod_revision if entry else 0)
    put = PutOp(known.key, records.encode(ShardFenceRecord(epoch=guard.epoch)))
    result = await store.txn([guard.ownership(), known], [put])
    if result.succeeded:
        guard.fence_revision, guard.is_fence_old = result.revision, False
    return result.succeeded
