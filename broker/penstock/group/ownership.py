"""The coordinator shards that this broker owns: with an embedded store all of them, in a cluster those that the view
assigns to it (`assigned_shards`).

`coordinator`, `offset_loading` and `txn.service` listen to keep the state of each owned shard. Created by `node`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from penstock.group.coordinator_shard import CoordinatorShard, key_of
from penstock.group.listeners import ShardListener
from penstock.group.shard_writer import LocalShardGuard
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import report, spawn
from penstock.state import keys
from penstock.state.store import Store, StoreEntry, StoreError, StoreUnavailable
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)

MIN_RETRY_S = 1.0
MAX_RETRY_S = 30.0
"""The delay before a failed load is repeated. It doubles up to the maximum, except while the store is unavailable."""

ShardStates = Sequence[Sequence[list[StoreEntry]]]
"""The state of a shard: for each listener, the entries of each of its prefixes."""


class ShardOwnership(ABC):
    """The shards that this broker owns. Listeners are notified in the order in which they were added."""

    is_shared: bool
    """Whether other brokers own shards too and may take one over: reads that decide are confirmed by the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shards: list[CoordinatorShard | None] = [None] * keys.SHARD_COUNT
        self._listeners: list[ShardListener] = []
        self._closed = False

    def add_listener(self, listener: ShardListener) -> None:
        """Notify the listener of each shard. Call before `start`."""
        self._listeners.append(listener)

    @abstractmethod
    async def start(self) -> None:
        """Start to acquire shards. Raises StoreError."""

    @abstractmethod
    def owner_of(self, number: int) -> int:
        """Return the id of the broker that owns a shard, -1 if none does now."""

    @abstractmethod
    async def read_revisions(self) -> Mapping[int, int]:
        """Return the revisions of the shards' records, read linearizably after the call; a shard without a record is
        left out. Raises StoreError."""

    def close(self) -> None:
        """Resign all shards."""
        self._closed = True
        for number in range(keys.SHARD_COUNT):
            self.resign(number)

    def get(self, number: int) -> CoordinatorShard | None:
        """Return the shard if this broker owns it, loaded or not."""
        return self._shards[number]

    def __iter__(self) -> Iterator[CoordinatorShard]:
        return (shard for shard in self._shards if shard is not None and not shard.is_loading)

    @property
    def failed(self) -> list[int]:
        """The numbers of the owned shards whose last load has failed."""
        return [shard.number for shard in self._shards if shard is not None and shard.has_failed]

    @property
    def loading_error(self) -> ErrorCode:
        """The error of requests that need all owned shards, or NONE."""
        if self.failed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_loading = any(shard is not None and shard.is_loading for shard in self._shards)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NONE

    def error(self, number: int) -> ErrorCode:
        """Return the error that prevents this broker from serving the shard, or NONE.

        NOT_COORDINATOR makes every client look up the coordinator again.
        """
        shard = self._shards[number]
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        if shard.has_failed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.is_loading else ErrorCode.NONE

    def verify_revision(self, number: int, revisions: Mapping[int, int]) -> ErrorCode:
        """Compare the record by which this broker owns the shard with the result of `read_revisions`.

        Returns NOT_COORDINATOR, and resigns the shard, if another record has replaced it.
        """
        shard = self._shards[number]
        if shard is None or revisions.get(number, 0) == shard.guard.revision:
            return ErrorCode.NONE
        self.handle_lost(number)
        return ErrorCode.NOT_COORDINATOR

    def handle_lost(self, number: int) -> None:
        """Resign a shard that the store assigns to another broker."""
        self.resign(number)

    def resign(self, number: int) -> None:
        """Stop serving the shard: cancel its load and notify the listeners."""
        shard, self._shards[number] = self._shards[number], None
        if shard is None:
            return
        if shard.loading is not None:
            shard.loading.cancel()
        for listener in self._listeners:
            listener.on_resigned(shard)

    # --- loading

    @abstractmethod
    async def _read(self, shard: CoordinatorShard) -> ShardStates:
        """Read the state of an owned shard. Raises StoreError."""

    async def _load(self, shard: CoordinatorShard) -> None:
        """Load a shard, with back-off until that succeeds."""
        retry_s = MIN_RETRY_S
        while True:
            try:
                states = await self._read(shard)
            except StoreUnavailable as e:
                log.warning("cannot read coordinator shard: retrying", shard=shard.number, reason=str(e))
            except StoreError as e:
                shard.has_failed = True
                log.error("cannot read coordinator shard: retrying", shard=shard.number, reason=str(e))
            else:
                assert self._shards[shard.number] is shard, f"shard {shard.number} was resigned while it was loaded"
                if self._install(shard, states):
                    return
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, MAX_RETRY_S) if shard.has_failed else MIN_RETRY_S

    def _install(self, shard: CoordinatorShard, states: ShardStates) -> bool:
        """Load a shard from its state. Returns False if a listener has failed, by a bug or a state that it cannot
        bear: the shard is as it was before then, and the others are served."""
        try:
            for listener, found in zip(self._listeners, states, strict=True):
                listener.on_acquired(shard, found)
        except Exception as e:
            report("cannot load coordinator shard: retrying", e, shard=shard.number, key=key_of(e))
            self._reset(shard)
            return False
        shard.loading, shard.has_failed = None, False
        log.debug("coordinator shard acquired", shard=shard.number, groups=len(shard.groups))
        return True

    def _reset(self, shard: CoordinatorShard) -> None:
        """Drop what listeners have loaded of a shard."""
        shard.is_loading = shard.has_failed = True
        shard.guard.on_unknown_outcome()  # a listener may have started a write
        for listener in self._listeners:
            try:
                listener.on_resigned(shard)
            except Exception as e:  # the others must drop theirs
                report("cannot drop coordinator shard", e, shard=shard.number)


class LocalShardOwnership(ShardOwnership):
    """Ownership with an embedded store: this broker owns all shards while it runs, and no read needs confirmation."""

    is_shared = False

    def __init__(self, store: Store, broker_id: int) -> None:
        super().__init__(store)
        self._broker_id = broker_id

    async def start(self) -> None:
        """Load all shards, with one read for each kind of state. Raises StoreError."""
        found = [[await self._read_by_shard(prefix) for prefix in listener.prefixes] for listener in self._listeners]
        for number in range(keys.SHARD_COUNT):
            shard = self._shards[number] = CoordinatorShard(number, LocalShardGuard(number))
            if not self._install(shard, [[entries[number] for entries in states] for states in found]):
                shard.loading = spawn(self._load(shard), f"load shard {number}")

    def owner_of(self, number: int) -> int:
        """Return this broker."""
        return self._broker_id

    async def read_revisions(self) -> Mapping[int, int]:
        """Return nothing: an embedded store has no shard records."""
        return {}

    async def _read(self, shard: CoordinatorShard) -> ShardStates:
        """Read the state of one shard. Raises StoreError."""
        return await read_states(self._store, self._listeners, shard.number)

    async def _read_by_shard(self, prefix: str) -> list[list[StoreEntry]]:
        by_shard: list[list[StoreEntry]] = [[] for _ in range(keys.SHARD_COUNT)]
        for entry in (await self._store.range(prefix)).entries:
            number = entry.key[len(prefix) :].partition("/")[0]
            if number.isdecimal() and int(number) < keys.SHARD_COUNT:
                by_shard[int(number)].append(entry)
            else:
                log.error("key of an unknown shard", key=entry.key)
        return by_shard


async def read_states(store: Store, listeners: Sequence[ShardListener], number: int) -> ShardStates:
    """Read the state that each listener keeps of a shard. Raises StoreError."""
    return [
        [(await store.range(f"{prefix}{number}/")).entries for prefix in listener.prefixes] for listener in listeners
    ]
