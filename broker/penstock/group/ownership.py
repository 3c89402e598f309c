"""Tracks the coordinator shards that the view assigns to this broker, and loads or resigns them as it changes.

With an embedded store, this broker owns all shards. Created by `coordinator`, which fills the loaded shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from penstock.group.coordinator_shard import CoordinatorShard
from penstock.group.listeners import ShardListener
from penstock.group.request_queue import read_fence, renew_fence
from penstock.group.shard_writer import ShardGuard
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import Store, StoreEntry, StoreError, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

MAX_CONCURRENT_LOADS = 4
"""Concurrent shard loads: after a broker fails, each remaining broker acquires many shards at once."""
RETRY_S = 1.0


class ShardMembership(Protocol):
    """The registration of this broker process (`control.membership.Registration`)."""

    @property
    def epoch(self) -> int:
        """The revision of the registration, which identifies this incarnation; -1 before it."""

    def may_serve(self) -> bool:
        """Return whether the broker's lease is certainly valid."""


class ShardOwnership:
    """The shards that this broker owns.

    `on_acquired` is called with a loaded shard and the records of its groups, `on_resigned` with a shard that is no
    longer owned. The listeners are notified after it.
    """

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        broker_id: int,
        membership: ShardMembership,
        on_acquired: Callable[[CoordinatorShard, list[StoreEntry]], None],
        on_resigned: Callable[[CoordinatorShard], None],
    ) -> None:
        self._store, self._view = store, view
        self._broker_id, self._membership = broker_id, membership
        self._on_acquired, self._on_resigned = on_acquired, on_resigned
        self._shards: list[CoordinatorShard | None] = [None] * keys.SHARD_COUNT
        self._listeners: list[ShardListener] = []
        self._loads = asyncio.Semaphore(MAX_CONCURRENT_LOADS)
        self._retries: set[asyncio.TimerHandle] = set()
        self._revisions: dict[int, int] = {}
        """The revision of the last acquired record of each shard."""
        self._closed = False

    def start(self) -> None:
        """Acquire the assigned shards, and subscribe to further assignments."""
        self._view.subscribe_shards(self.check_shards)
        self.check_shards(range(keys.SHARD_COUNT))

    def add_listener(self, listener: ShardListener) -> None:
        """Notify the listener of each shard. Resigns and reloads the shards that are owned already."""
        self._listeners.append(listener)
        if not self._closed:
            for number in [shard.number for shard in self._shards if shard is not None]:
                self.resign(number)
                self.check_shards([number])

    def close(self) -> None:
        """Resign all shards."""
        self._closed = True
        for retry in self._retries:
            retry.cancel()
        self._retries.clear()
        for number in range(keys.SHARD_COUNT):
            self.resign(number)

    def get(self, number: int) -> CoordinatorShard | None:
        """Return the shard if this broker owns it, loaded or not."""
        return self._shards[number]

    def __iter__(self) -> Iterator[CoordinatorShard]:
        return (shard for shard in self._shards if shard is not None and not shard.is_loading)

    @property
    def is_loading(self) -> bool:
        """Whether any owned shard is still loading."""
        return any(shard is not None and shard.is_loading for shard in self._shards)

    def error(self, number: int) -> ErrorCode:
        """Return the error that prevents this broker from serving the shard, or NONE.

        NOT_COORDINATOR makes every client look up the coordinator again; it is also returned when the lease may have
        expired.
        """
        shard = self._shards[number]
        if shard is None or not self._membership.may_serve():
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.is_loading else ErrorCode.NONE

    def check_shards(self, numbers: Iterable[int]) -> None:
        """Compare the shards' assignments in the view with the owned shards: acquire or resign."""
        for number in [] if self._closed else numbers:
            if not 0 <= number < keys.SHARD_COUNT:
                continue  # an invalid key in the store
            guard = self._assigned_guard(number)
            shard = self._shards[number]
            if shard is not None and shard.guard is not None:
                if guard is not None and guard.revision == shard.guard.revision:
                    continue
                self.resign(number)
            if guard is not None:
                self._acquire(number, guard)

    def verify_revision(self, number: int, revisions: Mapping[int, int]) -> ErrorCode:
        """Compare the record by which this broker owns the shard with the store's revisions.

        Takes the result of `ShardRevisions.read`. Returns NOT_COORDINATOR, and resigns the shard, if another record has
        replaced it.
        """
        shard = self._shards[number]
        if shard is None or shard.guard is None or revisions.get(number) == shard.guard.revision:
            return ErrorCode.NONE
        self.handle_lost(number)
        return ErrorCode.NOT_COORDINATOR

    def handle_lost(self, number: int) -> None:
        """Resign a shard that the store assigns to another broker. The view may lag, so the assignment is checked again
        after `RETRY_S`."""
        self.resign(number)
        if not self._closed:
            handle: asyncio.TimerHandle

            def check_again() -> None:
                self._retries.discard(handle)
                self.check_shards([number])

            handle = asyncio.get_running_loop().call_later(RETRY_S, check_again)
            self._retries.add(handle)

    def resign(self, number: int) -> None:
        """Stop serving the shard: cancel its load and notify the listeners."""
        shard, self._shards[number] = self._shards[number], None
        if shard is None:
            return
        if shard.loading is not None:
            shard.loading.cancel()
        self._on_resigned(shard)
        for listener in self._listeners:
            listener.on_resigned(number)

    # --- internal

    def _assigned_guard(self, number: int) -> ShardGuard | None:
        shard = self._view.shards.get(number)
        if shard is None or shard.broker_id != self._broker_id or shard.broker_epoch != self._membership.epoch:
            return None
        return ShardGuard(number, shard.epoch, shard.revision)

    def _acquire(self, number: int, guard: ShardGuard) -> None:
        assert self._shards[number] is None, f"shard {number} is acquired, but was not resigned"
        # After a second acquisition by the same record, a write of the first may still be in flight with an equal
        # guard.
        guard.is_fence_stale = self._revisions.get(number) == guard.revision
        self._revisions[number] = guard.revision
        shard = self._shards[number] = CoordinatorShard(number, guard)
        shard.loading = asyncio.get_running_loop().create_task(self._load(shard, guard), name=f"load shard {number}")

    async def _load(self, shard: CoordinatorShard, guard: ShardGuard) -> None:
        """Read the shard's groups. Previous owners cannot write: the record that their guards compare is gone."""
        while True:
            async with self._loads:
                try:
                    if not guard.is_fence_stale:
                        await read_fence(self._store, guard)
                    elif not await renew_fence(self._store, guard):
                        raise StoreUnavailable("another broker owns the shard")
                    entries = (await self._store.range(keys.groups(shard.number))).entries
                    found = [(listener, await listener.read(shard.number)) for listener in self._listeners]
                    break
                except StoreError as e:
                    log.warning("cannot read coordinator shard: retrying", shard=shard.number, reason=str(e))
            await asyncio.sleep(RETRY_S)
        assert self._shards[shard.number] is shard, f"shard {shard.number} was resigned while it was loaded"
        shard.loading = None
        self._on_acquired(shard, entries)
        for listener, read in found:
            listener.on_acquired(shard, read)


class SingleMember:
    """`ShardMembership` of a broker with an embedded store, which no other broker can depose."""

    epoch = -1

    def may_serve(self) -> bool:
        """Return True: there is no lease."""
        return True


class LocalShardOwnership(ShardOwnership):
    """Ownership of a broker with an embedded store: it owns all shards while it runs, without guards."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        on_acquired: Callable[[CoordinatorShard, list[StoreEntry]], None],
        on_resigned: Callable[[CoordinatorShard], None],
    ) -> None:
        super().__init__(store, view, -1, SingleMember(), on_acquired, on_resigned)

    def start(self) -> None:
        """Create all shards; `fill` loads them."""
        for number in range(keys.SHARD_COUNT):
            self._shards[number] = CoordinatorShard(number, None)

    def add_listener(self, listener: ShardListener) -> None:
        """Notify the listener of resignations only: it reads its state when it starts."""
        self._listeners.append(listener)

    def fill(self, entries: Iterable[StoreEntry]) -> None:
        """Load all shards from the records of all groups."""
        entries_of_shard: list[list[StoreEntry]] = [[] for _ in range(keys.SHARD_COUNT)]
        for entry in entries:
            entries_of_shard[keys.shard_of(keys.group_of(entry.key))].append(entry)
        for shard, found in zip(self._shards, entries_of_shard, strict=True):
            assert shard is not None, "a single broker owns all shards"
            self._on_acquired(shard, found)
