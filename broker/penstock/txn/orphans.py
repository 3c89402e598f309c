"""Looks through the offsets of transactions that a coordinator shard brings with it for those of none.

Such ones should not be: a transaction is complete only when the groups' coordinators have folded in, or dropped, what
it brought. But one that was left would make its partition's offset look undecided for ever, so whoever takes a shard
over asks the store. Used by `service`.
"""

from __future__ import annotations

import asyncio

from penstock.group.offset_table import OffsetKey
from penstock.runtime.logging import get_logger
from penstock.state import keys, records
from penstock.state.records import BadRecord, TransactionRecord, TxnOffsetRecord
from penstock.state.store import Store, StoreError
from penstock.txn.offsets import TxnOffsets
from penstock.txn.state_machine import AT_REST, state_of

log = get_logger(__name__)

RETRY_S = 5.0


class Orphans:
    """One task for all shards, which runs while there is something to look at."""

    def __init__(self, store: Store, offsets: TxnOffsets) -> None:
        self._store, self._offsets = store, offsets
        self._shards: dict[int, None] = {}
        self._task: asyncio.Task[None] | None = None

    def look_at(self, number: int) -> None:
        """A shard was taken."""
        if self._offsets.of_shard(number):
            self._shards[number] = None
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._work(), name="offsets of no transaction")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while self._shards:
                number = next(iter(self._shards))
                try:
                    await self._look(number)
                    self._shards.pop(number, None)
                except StoreError as e:
                    log.warning("offsets of transactions cannot be looked at yet", shard=number, reason=str(e))
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _look(self, number: int) -> None:
        for producer_id in list(self._offsets.of_shard(number)):
            pending = dict(self._offsets.of_shard(number).get(producer_id, {}))
            for transactional_id in {record.transactional_id for record in pending.values()}:
                ended = await self._ended(transactional_id, producer_id)
                known = self._offsets.of_shard(number).get(producer_id, {})
                those = {k: record for k, record in pending.items() if record.transactional_id == transactional_id}
                left = {k: record for k, record in those.items() if record.number <= ended and known.get(k) is record}
                self._drop(number, producer_id, left)

    def _drop(self, number: int, producer_id: int, orphans: dict[OffsetKey, TxnOffsetRecord]) -> None:
        if orphans:
            log.warning("dropping offsets of a transaction that has ended", shard=number, partitions=len(orphans))
            self._offsets.discard(number, producer_id, orphans)

    async def _ended(self, transactional_id: str, producer_id: int) -> int:
        """Up to which number a producer's transactions are complete: that is so for good. Raises StoreError."""
        entry = await self._store.get(keys.transaction(transactional_id))
        if entry is None:
            return (1 << 63) - 1  # forgotten, which only happens to an id at rest
        try:
            record = records.decode(TransactionRecord, entry.key, entry.value)
            at_rest = state_of(record) in AT_REST
        except (BadRecord, ValueError) as e:
            log.error("a transactional id is unreadable: what it brought stays", key=entry.key, error=str(e))
            return -1
        if record.producer_id != producer_id:
            return (1 << 63) - 1  # it got another producer id, likewise at rest
        return record.number if at_rest else record.number - 1
