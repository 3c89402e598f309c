"""An LRU cache of committed offsets by group, used by `offsets`.

A shard may have thousands of unused groups. A new coordinator therefore reads only the group records, which are small.
It reads offsets per group: on demand, and otherwise in the background, one group at a time, while the cache is less
than half full. Above `MAX_CACHED_OFFSETS`, it evicts the least recently used groups without members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.group.directory import GroupDirectory
from penstock.group.offset_table import OffsetKey, OffsetTable
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.records import OffsetRecord
from penstock.state.store import Store, StoreEntry, StoreError, StoreUnavailable

log = get_logger(__name__)

MAX_CACHED_OFFSETS = 500_000
"""Maximum number of cached offsets, about 300 bytes each. Groups with members are never evicted."""
EVICTION_CANDIDATES = 32
"""Groups examined per eviction."""
RETRY_S = 1.0

OffsetWrite = tuple[OffsetKey, OffsetRecord | None]


@dataclass(slots=True)
class PendingRead:
    """An outstanding read of a group. `applied` are the writes that became durable meanwhile; the result may or may not
    include them."""

    task: asyncio.Task[None] | None = None
    applied: list[OffsetWrite] = field(default_factory=list)


class OffsetCache:
    """`put` adds store entries to the table, `apply` a durable write; `outstanding_keys` returns a group's outstanding
    writes. `on_loaded` is called when a forced background read of a group has completed."""

    def __init__(
        self,
        store: Store,
        table: OffsetTable,
        put: Callable[[Iterable[StoreEntry]], object],
        apply: Callable[[OffsetWrite], None],
        outstanding_keys: Callable[[str], set[OffsetKey]],
        groups: GroupDirectory,
        on_loaded: Callable[[str], None],
        limit: int = MAX_CACHED_OFFSETS,
    ) -> None:
        self._store, self._table = store, table
        self._put, self._apply, self._outstanding_keys = put, apply, outstanding_keys
        self._groups, self._on_loaded, self.limit = groups, on_loaded, limit
        self._cached: dict[str, int] = {}
        """The shard number of each cached group, least recently used first."""
        self._reads: dict[str, PendingRead] = {}
        self._background: dict[str, bool] = {}
        """Groups to read in the background; True if the read ignores the cache size."""
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._cached

    def mark_complete(self, group_id: str) -> None:
        """Mark a group as fully cached without reading it. Only valid if this broker is the only writer."""
        if self._groups.shard(group_id) is not None:
            self._cached[group_id] = keys.shard_of(group_id)

    async def load(self, group_id: str) -> None:
        """Read a group's offsets into the table, if not cached. Raises StoreError, also if the shard is not owned."""
        if group_id in self._cached:
            self._mark_used(group_id)
            return
        if self._groups.shard(group_id) is None:
            raise StoreUnavailable(f'this broker does not coordinate group "{group_id}"')
        reading = self._reads.get(group_id)
        if reading is None:
            reading = self._reads[group_id] = PendingRead()
            reading.task = asyncio.get_running_loop().create_task(self._read(group_id, reading))
            reading.task.add_done_callback(retrieve_exception)
        assert reading.task is not None, "a pending read has a task"
        await asyncio.shield(reading.task)
        if group_id not in self._cached:
            raise StoreUnavailable(f'the offsets of group "{group_id}" were evicted while being read; retry')

    def load_in_background(self, group_ids: Iterable[str], force: bool = False) -> None:
        """Schedule background reads, one group at a time. `force` ignores the cache size."""
        for group_id in group_ids:
            if force or (group_id not in self._cached and group_id not in self._background):
                self._background[group_id] = force or self._background.get(group_id, False)
        if self._background and self._task is None:
            self._task = spawn(self._read_background(), "offsets of groups")

    def evict(self, group_id: str) -> None:
        """Remove a group's offsets from memory."""
        self._cached.pop(group_id, None)
        self._reads.pop(group_id, None)
        self._background.pop(group_id, None)
        self._table.remove_group(group_id)

    def evict_shard(self, number: int) -> None:
        """Remove the offsets of all groups of a shard, including groups without a record: this broker does not see the
        writes of the shard's new owner."""
        group_ids = [group_id for group_id, shard in self._cached.items() if shard == number]
        group_ids += [group_id for group_id in (*self._reads, *self._background) if keys.shard_of(group_id) == number]
        for group_id in group_ids:
            self.evict(group_id)

    def forget_empty(self, group_id: str) -> None:
        """Forget that a group has no offsets: requests can name any number of unknown groups."""
        if group_id not in self._table:
            self._cached.pop(group_id, None)

    def accept_write(self, write: OffsetWrite) -> bool:
        """Return whether to apply a durable write to the table now. Queues it if the group is being read."""
        group_id = write[0].group_id
        if group_id in self._cached:
            return True
        reading = self._reads.get(group_id)
        if reading is not None:
            reading.applied.append(write)
        return False

    def close(self) -> None:
        """Cancel the background reads."""
        if self._task is not None:
            self._task.cancel()

    # --- internal

    def _mark_used(self, group_id: str) -> None:
        self._cached[group_id] = self._cached.pop(group_id)

    async def _read(self, group_id: str, reading: PendingRead) -> None:
        try:
            listing = await self._store.range(keys.group_offsets(group_id))
            if self._reads.get(group_id) is not reading:
                return  # evicted while it was being read
            self._put(listing.entries)
            for write in reading.applied:
                self._apply(write)
            self._cached[group_id] = keys.shard_of(group_id)
        finally:
            if self._reads.get(group_id) is reading:
                del self._reads[group_id]
        self._evict_unused(group_id)

    async def _read_background(self) -> None:
        try:
            while self._background:
                group_id, force = next(iter(self._background.items()))
                if force or len(self._table) < self.limit // 2:
                    try:
                        await self.load(group_id)
                    except StoreError as e:
                        log.warning("cannot read committed offsets: retrying", group=group_id, reason=str(e))
                        await asyncio.sleep(RETRY_S)
                        continue
                self._background.pop(group_id, None)
                if force and group_id in self._cached:
                    self._on_loaded(group_id)
        finally:
            self._task = None

    def _evict_unused(self, newest: str) -> None:
        if len(self._table) <= self.limit:
            return
        for group_id in [g for g, _ in zip(self._cached, range(EVICTION_CANDIDATES), strict=False)]:
            if group_id == newest or self._groups.is_running(group_id) or self._outstanding_keys(group_id):
                self._mark_used(group_id)
                continue
            self.evict(group_id)
            if len(self._table) <= self.limit:
                return


def retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception, which the waiters received, so that asyncio does not log it."""
    with suppress(asyncio.CancelledError):
        task.exception()
