"""Producer ids: numbers for idempotent producers (KIP-98), never given twice by any broker, ever.

A broker takes a block of ids from the store by compare-and-swap and gives them out one by one; what is left of a
block when the process ends is never used. Called by `api.producer_ids`.
"""

from __future__ import annotations

import asyncio

from penstock.state import keys, records
from penstock.state.records import ProducerIdsRecord
from penstock.state.store import Compare, PutOp, Store, StoreError

BLOCK = 1000
"""Ids taken at a time."""
LAST_ID = (1 << 63) - 1
MAX_ATTEMPTS = 100
"""Races for a block lost in a row, after which something is wrong."""


class ProducerIds:
    """Ids that nobody else gets."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._taking = asyncio.Lock()

    async def next_id(self) -> int:
        """A new id. Raises `StoreError`, or `BadRecord` where the store's counter cannot be read."""
        while self._next == self._end:
            async with self._taking:
                if self._next == self._end:
                    self._next, self._end = await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> tuple[int, int]:
        """(first id, the one behind the last)."""
        for _ in range(MAX_ATTEMPTS):
            entry = await self._store.get(keys.PRODUCER_IDS)
            first = 0
            unchanged = Compare.absent(keys.PRODUCER_IDS)
            if entry is not None:
                first = records.decode(ProducerIdsRecord, entry.key, entry.value).next_id
                unchanged = Compare.unchanged(entry)
            end = first + BLOCK
            if end > LAST_ID:
                raise StoreError("all producer ids have been given out")
            put = PutOp(keys.PRODUCER_IDS, records.encode(ProducerIdsRecord(next_id=end)))
            if (await self._store.txn([unchanged], [put])).succeeded:
                return first, end
        raise StoreError(f"no block of producer ids in {MAX_ATTEMPTS} attempts: somebody else always takes it")
