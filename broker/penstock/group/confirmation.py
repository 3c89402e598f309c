"""Which coordinator shards are whose, read linearizably: one read under way serves all who asked before it began.

A coordinator that was cut off may have lost a shard without knowing; what it has in memory is then old. So it asks the
store before it tells committed offsets. Used by `coordinator`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from penstock.state import keys
from penstock.state.store import Store


class Confirmation:
    """Reads all shards at a time: there are few, and so one read confirms whatever is waiting."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._under_way: asyncio.Task[dict[int, int]] | None = None
        self._next: asyncio.Task[dict[int, int]] | None = None
        self.reads = 0
        """For the metrics."""

    async def revisions(self) -> dict[int, int]:
        """The revision of each shard's record, as of a moment after the call. Raises StoreError."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read(self._under_way), name="confirm shards")
        return await asyncio.shield(self._next)

    async def _read(self, before: asyncio.Task[dict[int, int]] | None) -> dict[int, int]:
        if before is not None:
            await asyncio.wait([before])
            with suppress(asyncio.CancelledError):
                before.exception()  # told to those who waited for it
        # Whoever asks from now on may know of something newer than this read will see.
        self._under_way, self._next = self._next, None
        self.reads += 1
        entries = (await self._store.range(keys.SHARDS)).entries
        return {int(entry.key[len(keys.SHARDS) :]): entry.mod_revision for entry in entries}
