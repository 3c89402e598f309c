"""Producer ids for idempotent producers (KIP-98), unique across brokers and restarts. Called by `api.producer_ids`.

A broker reserves blocks of ids in the store by compare-and-swap. The rest of a block is lost when the process stops.
"""

from __future__ import annotations

import asyncio

from penstock.state import keys, records
from penstock.state.records import ProducerIdsRecord
from penstock.state.store import Compare, PutOp, Store, StoreError

BLOCK_SIZE = 1000
"""Ids per block."""
LAST_ID = (1 << 63) - 1
MAX_ATTEMPTS = 100
"""Consecutive lost races for a block before an error is raised."""


class ProducerIds:
    """The producer ids of this broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._reservation = asyncio.Lock()

    async def next_id(self) -> int:
        """Return a new id. Raises StoreError, or BadRecord if the stored counter is unreadable."""
        while self._next == self._end:
            async with self._reservation:
                if self._next == self._end:
                    self._next, self._end = await self._reserve_block()
        self._next += 1
        return self._next - 1

    async def _reserve_block(self) -> tuple[int, int]:
        """Return (first id, last id + 1)."""
        for _ in range(MAX_ATTEMPTS):
            entry = await self._store.get(keys.PRODUCER_IDS)
            first = 0
            unchanged = Compare.absent(keys.PRODUCER_IDS)
            if entry is not None:
                first = records.decode(ProducerIdsRecord, entry.key, entry.value).next_id
                unchanged = Compare.unchanged(entry)
            end = first + BLOCK_SIZE
            if end > LAST_ID:
                raise StoreError("producer ids are exhausted")
            put = PutOp(keys.PRODUCER_IDS, records.encode(ProducerIdsRecord(next_id=end)))
            if (await self._store.txn([unchanged], [put])).succeeded:
                return first, end
        raise StoreError(f"cannot reserve producer ids: {MAX_ATTEMPTS} attempts lost to other brokers; retry")
