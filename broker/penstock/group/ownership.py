"""Which coordinator shards are this broker's: takes them up as the view gives them, gives them up as it takes them.

Where there is one broker it has them all. Made by `coordinator`, which fills what is taken up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from penstock.group.pending import ShardFollower
from penstock.group.request_queue import read_fence, renew_fence
from penstock.group.shard_tenancy import ShardTenancy
from penstock.group.shard_writer import Guard
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import Store, StoreEntry, StoreError, StoreUnavailable
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

LOADS = 4
"""Shards that are read at the same time: with a dead broker's, each survivor gets many at once."""
RETRY_S = 1.0


class ShardMembership(Protocol):
    """This run of the broker, as registered (`control.membership.Registration`)."""

    @property
    def epoch(self) -> int:
        """The revision at which it registered, which names this incarnation; -1 before."""

    def may_serve(self) -> bool:
        """Whether its lease surely holds."""


class ShardOwnership:
    """`taken` is called with a shard's tenure and its groups' records, `resigned` when the tenure is over; then those
    who follow are told."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        broker_id: int,
        membership: ShardMembership,
        taken: Callable[[ShardTenancy, list[StoreEntry]], None],
        resigned: Callable[[ShardTenancy], None],
    ) -> None:
        self._store, self._view = store, view
        self._broker_id, self._membership = broker_id, membership
        self._taken, self._resigned = taken, resigned
        self._tenures: list[ShardTenancy | None] = [None] * keys.SHARD_COUNT
        self._followers: list[ShardFollower] = []
        self._loads = asyncio.Semaphore(LOADS)
        self._retries: set[asyncio.TimerHandle] = set()
        self._revisions: dict[int, int] = {}
        """Of the last tenure of each shard."""
        self._closed = False

    def start(self) -> None:
        """Takes up what the view gives this broker, now and from now on."""
        self._view.subscribe_shards(self.look)
        self.look(range(keys.SHARD_COUNT))

    def follow(self, follower: ShardFollower) -> None:
        """Tells somebody of each shard, from now on; those that were taken up before are taken up anew."""
        self._followers.append(follower)
        if not self._closed:
            for number in [tenure.number for tenure in self._tenures if tenure is not None]:
                self.resign(number)
                self.look([number])

    def close(self) -> None:
        """Gives up everything."""
        self._closed = True
        for retry in self._retries:
            retry.cancel()
        self._retries.clear()
        for number in range(keys.SHARD_COUNT):
            self.resign(number)

    def of_shard(self, number: int) -> ShardTenancy | None:
        """The tenure of a shard that is this broker's, loaded or not."""
        return self._tenures[number]

    def __iter__(self) -> Iterator[ShardTenancy]:
        return (tenure for tenure in self._tenures if tenure is not None and not tenure.is_loading)

    @property
    def is_loading(self) -> bool:
        return any(tenure is not None and tenure.is_loading for tenure in self._tenures)

    def error(self, number: int) -> ErrorCode:
        """Why this broker cannot answer for a shard, or NONE.

        A broker whose lease may have ended sends clients away with the error that all of them take for what it is.
        """
        tenure = self._tenures[number]
        if tenure is None or not self._membership.may_serve():
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if tenure.is_loading else ErrorCode.NONE

    def look(self, numbers: Iterable[int]) -> None:
        """These shards may have changed hands."""
        for number in [] if self._closed else numbers:
            if not 0 <= number < keys.SHARD_COUNT:
                continue  # somebody's invention
            guard = self._given(number)
            tenure = self._tenures[number]
            if tenure is not None and tenure.guard is not None:
                if guard is not None and guard.revision == tenure.guard.revision:
                    continue
                self.resign(number)
            if guard is not None:
                self._take(number, guard)

    def compare(self, number: int, revisions: Mapping[int, int]) -> ErrorCode:
        """NOT_COORDINATOR where a shard's record in the store (`Confirmation.revisions`) is not the one by which this
        broker has it: then it has it no longer. Else NONE."""
        tenure = self._tenures[number]
        if tenure is None or tenure.guard is None or revisions.get(number) == tenure.guard.revision:
            return ErrorCode.NONE
        self.lost(number)
        return ErrorCode.NOT_COORDINATOR

    def lost(self, number: int) -> None:
        """The store says that a shard is another's; the view will in a moment, or the shard is looked at again."""
        self.resign(number)
        if not self._closed:
            handle: asyncio.TimerHandle

            def look_again() -> None:
                self._retries.discard(handle)
                self.look([number])

            handle = asyncio.get_running_loop().call_later(RETRY_S, look_again)
            self._retries.add(handle)

    def resign(self, number: int) -> None:
        tenure, self._tenures[number] = self._tenures[number], None
        if tenure is None:
            return
        if tenure.loading is not None:
            tenure.loading.cancel()
        self._resigned(tenure)
        for follower in self._followers:
            follower.resigned(number)

    # --- inside

    def _given(self, number: int) -> Guard | None:
        shard = self._view.shards.get(number)
        if shard is None or shard.broker_id != self._broker_id or shard.broker_epoch != self._membership.epoch:
            return None
        return Guard(number, shard.epoch, shard.revision)

    def _take(self, number: int, guard: Guard) -> None:
        # A second tenure by the same record: something may be under way from the first, and would pass for this one's.
        guard.is_fence_old = self._revisions.get(number) == guard.revision
        self._revisions[number] = guard.revision
        tenure = self._tenures[number] = ShardTenancy(number, guard)
        tenure.loading = asyncio.get_running_loop().create_task(self._load(tenure, guard), name=f"load shard {number}")

    async def _load(self, tenure: ShardTenancy, guard: Guard) -> None:
        """Reads the groups of a shard. Its writers before are shut out: they compare a record that is no more."""
        while True:
            async with self._loads:
                try:
                    if not guard.is_fence_old:
                        await read_fence(self._store, guard)
                    elif not await renew_fence(self._store, guard):
                        raise StoreUnavailable("the store says that it is another's")
                    entries = (await self._store.range(keys.groups(tenure.number))).entries
                    found = [(follower, await follower.read(tenure.number)) for follower in self._followers]
                    break
                except StoreError as e:
                    log.warning("a coordinator shard cannot be read yet", shard=tenure.number, reason=str(e))
            await asyncio.sleep(RETRY_S)
        tenure.loading = None
        self._taken(tenure, entries)
        for follower, read in found:
            follower.taken(tenure, read)


class SingleMember:
    """Implements `ShardMembership` for the broker of an embedded store, which nobody can take anything from."""

    epoch = -1

    def may_serve(self) -> bool:
        return True


class LocalShardOwnership(ShardOwnership):
    """The one broker of an embedded store: all shards are its own for as long as it runs, and nothing is compared."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        taken: Callable[[ShardTenancy, list[StoreEntry]], None],
        resigned: Callable[[ShardTenancy], None],
    ) -> None:
        super().__init__(store, view, -1, SingleMember(), taken, resigned)

    def start(self) -> None:
        for number in range(keys.SHARD_COUNT):
            self._tenures[number] = ShardTenancy(number, None)

    def follow(self, follower: ShardFollower) -> None:
        """There is nothing to tell but the end: who follows reads everything at once when it starts."""
        self._followers.append(follower)

    def fill(self, entries: Iterable[StoreEntry]) -> None:
        """All groups of all shards."""
        of_shard: list[list[StoreEntry]] = [[] for _ in range(keys.SHARD_COUNT)]
        for entry in entries:
            of_shard[keys.shard_of(keys.group_of(entry.key))].append(entry)
        for tenure, found in zip(self._tenures, of_shard, strict=True):
            assert tenure is not None, "all shards are this broker's"
            self._taken(tenure, found)
