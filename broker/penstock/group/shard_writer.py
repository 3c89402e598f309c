"""Batches the writes of coordinator shards: writes collect while a transaction is in flight, and share the next one.

Used by `offsets` and `coordinator`; `request_queue` sends the transactions. All keys of a group are in one shard, so
its writes take effect in submission order. Each compares the shard's guard: a coordinator that lost the shard cannot
write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, Protocol, TypeVar

from penstock.state import keys
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, CompareTarget, Operation, PutOp, Store

MAX_PENDING = 20_000
"""Maximum number of pending keys per shard; further writes fail at once, and can be retried."""

T = TypeVar("T")


class TransactionQueue(Protocol[T]):
    """Sends the transactions: `request_queue.RequestQueue`."""

    def wake(self, writer: ShardWriter[T]) -> None:
        """Schedule a shard that has pending writes."""

    async def drain(self, writer: ShardWriter[T]) -> None:
        """Wait until a shard has no pending and no in-flight writes."""


@dataclass(slots=True)
class ShardGuard:
    """The conditions of all writes of one ownership term of a shard.

    `fence_revision` is the revision of the shard's fence. After a write with an unknown outcome, `is_fence_stale` is
    set, and the fence is rewritten before the next write: if the earlier write is still in flight, it then fails and
    cannot undo later ones.
    """

    number: int
    epoch: int
    revision: int
    fence_revision: int = 0
    is_fence_stale: bool = False

    def ownership_compares(self) -> list[Compare]:
        """Return the condition that the shard's record is unchanged."""
        return [Compare(keys.shard(self.number), CompareTarget.MOD_REVISION, self.revision)]

    def write_compares(self) -> list[Compare]:
        """Return the conditions that the shard's record and its fence are unchanged."""
        fence = Compare(keys.shard_fence(self.number), CompareTarget.MOD_REVISION, self.fence_revision)
        return [*self.ownership_compares(), fence]

    async def is_current(self, store: Store) -> bool:
        """Return whether this broker still owns the shard, by a linearizable read. Raises StoreError."""
        return (await store.txn(self.ownership_compares(), [])).succeeded

    def on_unknown_outcome(self) -> bool:
        """Handle a write without a response. Returns whether it may still take effect."""
        self.is_fence_stale = True
        return True


class LocalShardGuard(ShardGuard):
    """The guard of a shard in an embedded store, which no other broker can own: writes have no conditions."""

    __slots__ = ()

    def __init__(self, number: int) -> None:
        super().__init__(number, epoch=0, revision=0)

    def ownership_compares(self) -> list[Compare]:
        """Return no conditions."""
        return []

    def write_compares(self) -> list[Compare]:
        """Return no conditions."""
        return []

    async def is_current(self, store: Store) -> bool:
        """Return True."""
        return True

    def on_unknown_outcome(self) -> bool:
        """Return False: a write that the embedded store fails has no later effect."""
        return False


@dataclass(slots=True)
class WriteRequest(Generic[T]):
    """The keys of one `submit` call. `failed` are the indexes of those that did not become durable."""

    done: asyncio.Future[list[int]]
    left: int
    failed: list[int] = field(default_factory=list)

    def complete_key(self, index: int, ok: bool) -> None:
        """Record the outcome of one key; the last one resolves the future."""
        assert self.left > 0, f"key {index} of a write completes twice"
        self.left -= 1
        if not ok:
            self.failed.append(index)
        if not self.left and not self.done.done():
            self.done.set_result(self.failed)


@dataclass(slots=True)
class KeyWrite(Generic[T]):
    """A write of one key, its token, and the waiting requests. `tied` are the keys that must be in the same
    transaction."""

    operation: Operation
    token: T
    waiting: list[tuple[WriteRequest[T], int]]
    tied: set[str] = field(default_factory=set)

    @property
    def size_bytes(self) -> int:
        """Size of key and value."""
        operation = self.operation
        return len(operation.key) + (len(operation.value) if isinstance(operation, PutOp) else 0)


class ShardWriter(Generic[T]):
    """The writes of one ownership term of a shard; the last write of a key wins.

    `applied` is called with the tokens of durable writes, before their futures resolve; `uncertain` with tokens of
    writes with an unknown outcome; `lost` when the store assigns the shard to another broker.
    """

    def __init__(
        self,
        queue: TransactionQueue[T],
        applied: Callable[[list[T]], None],
        guard: ShardGuard,
        uncertain: Callable[[list[T]], None],
        lost: Callable[[int], None],
    ) -> None:
        self.guard = guard
        self.is_closed = False
        """Whether the ownership term is over: further writes fail."""
        self.in_flight: dict[str, KeyWrite[T]] = {}
        self.pending: dict[str, KeyWrite[T]] = {}
        self._queue = queue
        self._applied, self._uncertain, self._lost = applied, uncertain, lost

    def submit(
        self, writes: Sequence[tuple[Operation, T]], ties: Sequence[tuple[str, str]] = ()
    ) -> asyncio.Future[list[int]]:
        """Write each (operation, token). The result is the indexes of the failed ones.

        Each pair of keys in `ties` is written in one transaction.
        """
        done: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        pending = self.pending
        if not writes or self.is_closed or (pending and len(pending) + len(writes) > MAX_PENDING):
            done.set_result(list(range(len(writes))))
            return done
        write: WriteRequest[T] = WriteRequest(done, len(writes))
        for index, (operation, token) in enumerate(writes):
            slot = pending.get(operation.key)
            if slot is None:
                pending[operation.key] = KeyWrite(operation, token, [(write, index)])
            else:
                slot.operation, slot.token = operation, token
                slot.waiting.append((write, index))
        for one, other in ties:
            pending[one].tied.add(other)
            pending[other].tied.add(one)
        self._queue.wake(self)
        return done

    def outstanding_tokens(self) -> list[T]:
        """Return the tokens of all writes that are not durable yet."""
        return [slot.token for writes in (self.in_flight, self.pending) for slot in writes.values()]

    def is_writing(self, key: str) -> bool:
        """Return whether a write of the key is outstanding."""
        return key in self.pending or key in self.in_flight

    def close(self) -> None:
        """End the ownership term. Pending writes fail; in-flight writes complete with the store's result."""
        self.is_closed = True
        self.fail_pending()

    async def drain(self) -> None:
        """Wait until all submitted writes have succeeded or failed."""
        await self._queue.drain(self)

    # --- for the queue

    def pop_writes(self, keys_left: int, bytes_left: int) -> list[KeyWrite[T]]:
        """Move the next pending writes that fit to `in_flight`, tied ones together, and return them.

        An empty transaction accepts the first group of writes even if it exceeds the limits, up to `keys_left` keys.
        """
        assert not self.in_flight, f"a transaction of {len(self.in_flight)} keys of the shard is in flight"
        for key in self.pending:
            if key in self.in_flight:
                continue
            together = self._with_tied(key)
            bytes_left -= sum(slot.size_bytes for slot in together.values())
            if len(self.in_flight) + len(together) > keys_left or bytes_left < 0:
                if self.in_flight or keys_left < MAX_TXN_OPERATIONS:
                    break
                together = dict(islice(together.items(), keys_left))
            self.in_flight |= together
        for key in self.in_flight:
            del self.pending[key]
        return list(self.in_flight.values())

    def _with_tied(self, key: str) -> dict[str, KeyWrite[T]]:
        """Return a pending write with all that are directly or indirectly tied to it."""
        found: dict[str, KeyWrite[T]] = {}
        left = [key]
        while left:
            slot = self.pending.get(key := left.pop())
            if slot is not None and key not in found:
                found[key] = slot
                left += slot.tied
        return found

    def complete(self, writes: list[KeyWrite[T]]) -> None:
        """Complete writes that are durable."""
        if not self.is_closed:
            self._applied([slot.token for slot in writes])
        complete_writes(writes, ok=True)

    def fail(self, writes: list[KeyWrite[T]], is_certain: bool) -> None:
        """Fail writes. `is_certain` is False if they may be durable all the same."""
        if not is_certain and self.guard.on_unknown_outcome() and not self.is_closed:
            self._uncertain([slot.token for slot in writes])
        complete_writes(writes, ok=False)

    def fail_pending(self) -> None:
        """Fail all pending writes."""
        writes, self.pending = list(self.pending.values()), {}
        complete_writes(writes, ok=False)

    def handle_lost(self) -> None:
        """Fail all writes and notify the coordinator: the store assigns the shard to another broker."""
        was_closed = self.is_closed
        self.close()
        if not was_closed:
            self._lost(self.guard.number)


def complete_writes(writes: list[KeyWrite[T]], ok: bool) -> None:
    """Report the outcome of the writes to all requests that wait for them."""
    for slot in writes:
        for write, index in slot.waiting:
            write.complete_key(index, ok)
        slot.waiting = []
