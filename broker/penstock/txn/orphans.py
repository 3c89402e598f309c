"""Deletes pending offsets of transactions that are complete, when a shard is acquired. Used by `service`.

A transaction completes only after the group coordinators have completed its offsets, so there should be none. A
remaining one would make its partition's offset unstable forever.
"""

from __future__ import annotations

import asyncio

from penstock.group.offset_table import OffsetKey
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys, records
from penstock.state.records import BadRecord, TransactionRecord, TxnOffsetRecord
from penstock.state.store import Store, StoreError
from penstock.txn.offsets import TxnOffsets
from penstock.txn.state_machine import IDLE, state_of

log = get_logger(__name__)

RETRY_S = 5.0


class OrphanedOffsets:
    """Checks the acquired shards in one task, which runs while any are left."""

    def __init__(self, store: Store, offsets: TxnOffsets) -> None:
        self._store, self._offsets = store, offsets
        self._shards: dict[int, None] = {}
        self._task: asyncio.Task[None] | None = None

    def check_shard(self, number: int) -> None:
        """Schedule the check of an acquired shard."""
        if self._offsets.pending_by_producer(number):
            self._shards[number] = None
            if self._task is None:
                self._task = spawn(self._work(), "offsets of no transaction")

    async def close(self) -> None:
        """Cancel the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while self._shards:
                number = next(iter(self._shards))
                try:
                    await self._check(number)
                    self._shards.pop(number, None)
                except StoreError as e:
                    log.warning("cannot check pending transaction offsets: retrying", shard=number, reason=str(e))
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _check(self, number: int) -> None:
        for producer_id in list(self._offsets.pending_by_producer(number)):
            pending = dict(self._offsets.pending_by_producer(number).get(producer_id, {}))
            for transactional_id in {record.transactional_id for record in pending.values()}:
                last_completed = await self._last_completed(transactional_id, producer_id)
                known = self._offsets.pending_by_producer(number).get(producer_id, {})
                records_by_key = {
                    k: record for k, record in pending.items() if record.transactional_id == transactional_id
                }
                left = {
                    k: record
                    for k, record in records_by_key.items()
                    if record.number <= last_completed and known.get(k) is record
                }
                self._drop(number, producer_id, left)

    def _drop(self, number: int, producer_id: int, orphans: dict[OffsetKey, TxnOffsetRecord]) -> None:
        if orphans:
            log.warning("dropping offsets of a transaction that has ended", shard=number, partitions=len(orphans))
            self._offsets.discard(number, producer_id, orphans)

    async def _last_completed(self, transactional_id: str, producer_id: int) -> int:
        """Return the number up to which the producer's transactions are complete. Raises StoreError."""
        entry = await self._store.get(keys.transaction(transactional_id))
        if entry is None:
            return (1 << 63) - 1  # expired, which requires an idle state
        try:
            record = records.decode(TransactionRecord, entry.key, entry.value)
            is_idle = state_of(record) in IDLE
        except (BadRecord, ValueError) as e:
            log.error("unreadable transactional id: keeping its pending offsets", key=entry.key, error=str(e))
            return -1
        if record.producer_id != producer_id:
            return (1 << 63) - 1  # it has another producer id, which also requires an idle state
        return record.number if is_idle else record.number - 1
