"""The coordinator shards that this broker owns: with an embedded store all of them, in a cluster those that the view
assigns to it (`assigned_shards`).

`coordinator`, `offset_loading` and `txn.service` listen to keep the state of each owned shard. Created by `node`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from penstock.group.coordinator_shard import CoordinatorShard
from penstock.group.listeners import ShardListener
from penstock.group.shard_writer import LocalShardGuard
from penstock.runtime.logging import get_logger
from penstock.state import keys
from penstock.state.store import Store, StoreEntry
from penstock.wire.errors import ErrorCode

log = get_logger(__name__)


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
    def is_loading(self) -> bool:
        """Whether any owned shard is still loading."""
        return any(shard is not None and shard.is_loading for shard in self._shards)

    def error(self, number: int) -> ErrorCode:
        """Return the error that prevents this broker from serving the shard, or NONE.

        NOT_COORDINATOR makes every client look up the coordinator again.
        """
        shard = self._shards[number]
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
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
            for listener, states in zip(self._listeners, found, strict=True):
                listener.on_acquired(shard, [entries[number] for entries in states])

    def owner_of(self, number: int) -> int:
        """Return this broker."""
        return self._broker_id

    async def read_revisions(self) -> Mapping[int, int]:
        """Return nothing: an embedded store has no shard records."""
        return {}

    async def _read_by_shard(self, prefix: str) -> list[list[StoreEntry]]:
        by_shard: list[list[StoreEntry]] = [[] for _ in range(keys.SHARD_COUNT)]
        for entry in (await self._store.range(prefix)).entries:
            number = entry.key[len(prefix) :].partition("/")[0]
            if number.isdecimal() and int(number) < keys.SHARD_COUNT:
                by_shard[int(number)].append(entry)
            else:
                log.error("key of an unknown shard", key=entry.key)
        return by_shard
