"""Follows the coordinator shards that the view assigns to this broker, and loads or resigns them as it changes. Created
by `node` in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from penstock.group.coordinator_shard import CoordinatorShard
from penstock.group.ownership import ShardOwnership, ShardStates, read_states
from penstock.group.request_queue import read_fence, renew_fence
from penstock.group.shard_revisions import ShardRevisions
from penstock.group.shard_writer import ShardGuard
from penstock.replica.membership import BrokerMembership
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.store import Store, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode

MAX_CONCURRENT_LOADS = 4
"""Concurrent shard loads: after a broker fails, each remaining broker acquires many shards at once."""
RETRY_S = 1.0


class AssignedShardOwnership(ShardOwnership):
    """The shards that the controller has assigned to this incarnation of the broker."""

    is_shared = True

    def __init__(self, store: Store, view: ClusterView, broker_id: int, membership: BrokerMembership) -> None:
        super().__init__(store)
        self._view, self._broker_id, self._membership = view, broker_id, membership
        self.revisions = ShardRevisions(store)
        self._loads = asyncio.Semaphore(MAX_CONCURRENT_LOADS)
        self._retries: set[asyncio.TimerHandle] = set()
        self._acquired_revisions: dict[int, int] = {}
        """The revision of the last acquired record of each shard."""

    async def start(self) -> None:
        """Acquire the assigned shards, and subscribe to further assignments. Returns before any shard is loaded."""
        self._view.subscribe_shards(self.check_shards)
        self.check_shards(range(keys.SHARD_COUNT))

    def close(self) -> None:
        """Resign all shards."""
        for retry in self._retries:
            retry.cancel()
        self._retries.clear()
        super().close()

    def owner_of(self, number: int) -> int:
        """Return the id of the broker that owns a shard by the view, -1 if none does now."""
        broker = self._view.shard_owner(number)
        return -1 if broker is None else broker.broker_id

    async def read_revisions(self) -> Mapping[int, int]:
        """Read the revisions of the shards' records; see `ShardOwnership`."""
        return await self.revisions.read()

    def error(self, number: int) -> ErrorCode:
        """Return the error that prevents this broker from serving the shard, or NONE; see `ShardOwnership`.

        NOT_COORDINATOR also if the lease may have expired.
        """
        return super().error(number) if self._membership.may_serve() else ErrorCode.NOT_COORDINATOR

    def check_shards(self, numbers: Iterable[int]) -> None:
        """Compare the shards' assignments in the view with the owned shards: acquire or resign."""
        for number in [] if self._closed else numbers:
            if not 0 <= number < keys.SHARD_COUNT:
                continue  # an invalid key in the store
            guard = self._assigned_guard(number)
            shard = self._shards[number]
            if shard is not None:
                if guard is not None and guard.revision == shard.guard.revision:
                    continue
                self.resign(number)
            if guard is not None:
                self._acquire(number, guard)

    def handle_lost(self, number: int) -> None:
        """Resign a shard that the store assigns to another broker. The view may lag, so the assignment is checked again
        after `RETRY_S`."""
        super().handle_lost(number)
        if not self._closed:
            handle: asyncio.TimerHandle

            def check_again() -> None:
                self._retries.discard(handle)
                self.check_shards([number])

            handle = asyncio.get_running_loop().call_later(RETRY_S, check_again)
            self._retries.add(handle)

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
        guard.is_fence_stale = self._acquired_revisions.get(number) == guard.revision
        self._acquired_revisions[number] = guard.revision
        shard = self._shards[number] = CoordinatorShard(number, guard)
        shard.loading = spawn(self._load(shard), f"load shard {number}")

    async def _read(self, shard: CoordinatorShard) -> ShardStates:
        """Read the shard's state. Previous owners cannot write: the record that their guards compare is gone."""
        async with self._loads:
            if not shard.guard.is_fence_stale:
                await read_fence(self._store, shard.guard)
            elif not await renew_fence(self._store, shard.guard):
                raise StoreUnavailable("another broker owns the shard")
            return await read_states(self._store, self._listeners, shard.number)
