"""Linearizable reads of the shard records, used by `assigned_shards`.

A partitioned coordinator may have lost a shard without knowing it, so it compares the shard's revision before it
returns committed offsets.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.state import keys
from penstock.state.store import Store


class ShardRevisions:
    """Reads all shards at once: there are few, and one read serves all callers that were waiting when it began."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._current: asyncio.Task[dict[int, int]] | None = None
        self._next: asyncio.Task[dict[int, int]] | None = None
        self.read_count = 0
        """Number of reads, for the metrics."""

    async def read(self) -> dict[int, int]:
        """Return the revision of each shard's record as of some time after the call. Raises StoreError."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read(self._current), name="confirm shards")
        return await asyncio.shield(self._next)

    async def _read(self, before: asyncio.Task[dict[int, int]] | None) -> dict[int, int]:
        if before is not None:
            await asyncio.wait([before])
            with suppress(asyncio.CancelledError):
                before.exception()  # the waiters received it
        # Later callers may depend on a newer revision than this read returns.
        self._current, self._next = self._next, None
        self.read_count += 1
        entries = (await self._store.range(keys.SHARDS)).entries
        return {int(entry.key[len(keys.SHARDS) :]): entry.mod_revision for entry in entries}
