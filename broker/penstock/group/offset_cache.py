"""Which groups' committed offsets are in memory. Used by `offsets`.

A shard may hold thousands of groups that nobody uses. So a new coordinator reads only the groups themselves, which are
small, and offsets group by group: when they are asked for, and otherwise one group at a time in the background, as long
as fewer than half of `LIMIT` are here. Beyond `LIMIT` the groups that were not used for longest, and have no members,
leave memory again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.group.offset_table import OffsetKey, OffsetTable
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.records import OffsetRecord
from penstock.state.store import Store, StoreEntry, StoreError, StoreUnavailable

log = get_logger(__name__)

LIMIT = 500_000
"""Offsets in memory, of some 300 bytes each, beyond which groups without members are left to the store."""
LOOKS = 32
"""Groups that are looked at to find one that may leave."""
RETRY_S = 1.0

OffsetWrite = tuple[OffsetKey, OffsetRecord | None]


@dataclass(slots=True)
class PendingRead:
    """A group being read. `applied` is what became durable meanwhile, which the answer may have or not."""

    task: asyncio.Task[None] | None = None
    applied: list[OffsetWrite] = field(default_factory=list)


class OffsetCache:
    """`put` takes entries of the store into the table, `apply` a write; `on_its_way` tells of writes of a group."""

    def __init__(
        self,
        store: Store,
        table: OffsetTable,
        put: Callable[[Iterable[StoreEntry]], object],
        apply: Callable[[OffsetWrite], None],
        on_its_way: Callable[[str], set[OffsetKey]],
        limit: int = LIMIT,
    ) -> None:
        self._store, self._table = store, table
        self._put, self._apply, self._on_its_way = put, apply, on_its_way
        self.limit = limit
        self.has_members: Callable[[str], bool] = nobody
        self.has_read: Callable[[str], None] = nothing
        """Called when a group's offsets have come."""
        self.is_mine: Callable[[str], bool] = everybody
        """Whether this broker has a group's shard. All three are set by whoever owns this."""
        self._here: dict[str, int] = {}
        """With the number of its shard; those used last come last."""
        self._reading: dict[str, PendingRead] = {}
        self._wanted: dict[str, bool] = {}
        """To be read in the background; True where it must be, however much is here already."""
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._here

    def is_all_here(self, group_id: str) -> None:
        """There is nothing of a group in the store that is not in the table: only a broker that is alone knows that
        without reading."""
        if self.is_mine(group_id):
            self._here[group_id] = keys.shard_of(group_id)

    async def load(self, group_id: str) -> None:
        """Returns when a group's offsets are in the table. Raises StoreError, also where its shard is another's."""
        if group_id in self._here:
            self._touch(group_id)
            return
        if not self.is_mine(group_id):
            raise StoreUnavailable(f"the shard of group {group_id} is not this broker's")
        reading = self._reading.get(group_id)
        if reading is None:
            reading = self._reading[group_id] = PendingRead()
            reading.task = asyncio.get_running_loop().create_task(self._read(group_id, reading))
            reading.task.add_done_callback(look_at_failure)
        assert reading.task is not None, "what is being read has a task"
        await asyncio.shield(reading.task)
        if group_id not in self._here:
            raise StoreUnavailable(f"the offsets of group {group_id} have to be read again")

    def want(self, group_ids: Iterable[str], must: bool = False) -> None:
        """Reads groups in the background, one at a time."""
        for group_id in group_ids:
            if must or (group_id not in self._here and group_id not in self._wanted):
                self._wanted[group_id] = must or self._wanted.get(group_id, False)
        if self._wanted and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read_wanted(), name="offsets of groups")

    def drop(self, group_id: str) -> None:
        """Leaves a group's offsets to the store."""
        self._here.pop(group_id, None)
        self._reading.pop(group_id, None)
        self._wanted.pop(group_id, None)
        self._table.remove_group(group_id)

    def drop_shard(self, number: int) -> None:
        """Leaves the offsets of a shard's groups to the store, also of those that have no record: what another broker
        does with them is not seen from here."""
        mine = [group_id for group_id, shard in self._here.items() if shard == number]
        mine += [group_id for group_id in (*self._reading, *self._wanted) if keys.shard_of(group_id) == number]
        for group_id in mine:
            self.drop(group_id)

    def forget_empty(self, group_id: str) -> None:
        """Of a group that has nothing, that alone is not kept: anybody may ask for any name."""
        if group_id not in self._table:
            self._here.pop(group_id, None)

    def applies(self, write: OffsetWrite) -> bool:
        """Whether a write that became durable is to be taken into the table now."""
        group_id = write[0].group_id
        if group_id in self._here:
            return True
        reading = self._reading.get(group_id)
        if reading is not None:
            reading.applied.append(write)
        return False

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- inside

    def _touch(self, group_id: str) -> None:
        self._here[group_id] = self._here.pop(group_id)

    async def _read(self, group_id: str, reading: PendingRead) -> None:
        try:
            listing = await self._store.range(keys.group_offsets(group_id))
            if self._reading.get(group_id) is not reading:
                return  # dropped meanwhile
            self._put(listing.entries)
            for write in reading.applied:
                self._apply(write)
            self._here[group_id] = keys.shard_of(group_id)
        finally:
            if self._reading.get(group_id) is reading:
                del self._reading[group_id]
        self._make_room(group_id)

    async def _read_wanted(self) -> None:
        try:
            while self._wanted:
                group_id, must = next(iter(self._wanted.items()))
                if must or len(self._table) < self.limit // 2:
                    try:
                        await self.load(group_id)
                    except StoreError as e:
                        log.warning("committed offsets cannot be read yet", group=group_id, reason=str(e))
                        await asyncio.sleep(RETRY_S)
                        continue
                self._wanted.pop(group_id, None)
                if must and group_id in self._here:
                    self.has_read(group_id)
        finally:
            self._task = None

    def _make_room(self, newest: str) -> None:
        if len(self._table) <= self.limit:
            return
        for group_id in [g for g, _ in zip(self._here, range(LOOKS), strict=False)]:
            if group_id == newest or self.has_members(group_id) or self._on_its_way(group_id):
                self._touch(group_id)  # it is in use
                continue
            self.drop(group_id)
            if len(self._table) <= self.limit:
                return


def look_at_failure(task: asyncio.Task[None]) -> None:
    """A failure is told to those who wait; where nobody does it is none."""
    with suppress(asyncio.CancelledError):
        task.exception()


def nobody(group_id: str) -> bool:
    return False


def everybody(group_id: str) -> bool:
    return True


def nothing(group_id: str) -> None:
    pass
