"""Writes of one coordinator shard on their way to the store: collected while a transaction is in flight, then sent
together in the next. Used by `offsets` and `coordinator`.

A group's keys are all in one shard, so its writes take effect in the order in which they were submitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from zlib import crc32

from penstock.runtime.logging import get_logger
from penstock.state.store import MAX_TXN_OPERATIONS, Operation, Put, Store, StoreError, StoreUnavailable

log = get_logger(__name__)

SHARDS = 64
"""Of all groups; fixed, since every broker must find the same shard for a group."""
MAX_TXN_BYTES = 1 << 20
"""Of keys and values that are put into one transaction together; a single write may be larger."""

T = TypeVar("T")


def shard_of(group_id: str) -> int:
    return crc32(group_id.encode()) % SHARDS


@dataclass(slots=True)
class Write(Generic[T]):
    """Some keys that a caller waits for together. `failed` are the indexes of those that did not become durable."""

    done: asyncio.Future[list[int]]
    left: int
    failed: list[int] = field(default_factory=list)

    def end(self, index: int, ok: bool) -> None:
        self.left -= 1
        if not ok:
            self.failed.append(index)
        if not self.left and not self.done.done():
            self.done.set_result(self.failed)


@dataclass(slots=True)
class Slot(Generic[T]):
    """What a key is to become, what to call that in memory, and who waits for it."""

    operation: Operation
    token: T
    waiting: list[tuple[Write[T], int]]


class ShardWriter(Generic[T]):
    """One transaction in flight; the last write of a key wins. `applied` is called with what became durable."""

    def __init__(self, store: Store, applied: Callable[[list[T]], None]) -> None:
        self._store = store
        self._applied = applied
        self._pending: dict[str, Slot[T]] = {}
        self._in_flight: dict[str, Slot[T]] = {}
        self._task: asyncio.Task[None] | None = None
        self.transactions = 0
        """Transactions so far, for the metrics."""

    def submit(self, writes: Sequence[tuple[Operation, T]]) -> asyncio.Future[list[int]]:
        """Writes each (operation, token); the result names by index those that failed."""
        done: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        if not writes:
            done.set_result([])
            return done
        write: Write[T] = Write(done, len(writes))
        pending = self._pending
        for index, (operation, token) in enumerate(writes):
            slot = pending.get(operation.key)
            if slot is None:
                pending[operation.key] = Slot(operation, token, [(write, index)])
            else:
                slot.operation, slot.token = operation, token
                slot.waiting.append((write, index))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())
        return done

    def tokens_under_way(self) -> list[T]:
        """What is not durable yet."""
        return [slot.token for slots in (self._in_flight, self._pending) for slot in slots.values()]

    async def close(self) -> None:
        """Waits until everything is written or has failed."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        try:
            while self._pending:
                self._in_flight = self._take()
                await self._write(list(self._in_flight.values()))
                self._in_flight = {}
        finally:
            self._task = None
            stranded = [*self._in_flight.values(), *self._pending.values()]  # none, but for a defect
            self._in_flight, self._pending = {}, {}
            self._end(stranded, ok=False)

    def _take(self) -> dict[str, Slot[T]]:
        batch: dict[str, Slot[T]] = {}
        size_bytes = 0
        for key, slot in self._pending.items():
            size_bytes += len(key) + (len(slot.operation.value) if isinstance(slot.operation, Put) else 0)
            if len(batch) == MAX_TXN_OPERATIONS or (batch and size_bytes > MAX_TXN_BYTES):
                break
            batch[key] = slot
        for key in batch:
            del self._pending[key]
        return batch

    async def _write(self, slots: list[Slot[T]]) -> None:
        self.transactions += 1
        try:
            await self._store.txn((), [slot.operation for slot in slots])
        except StoreUnavailable as e:
            log.warning("cannot write group state", keys=len(slots), error=str(e))
            self._end(slots, ok=False)
        except (StoreError, ValueError) as e:
            if len(slots) > 1:
                middle = len(slots) // 2
                await self._write(slots[:middle])
                await self._write(slots[middle:])
            else:
                log.error("the store refuses a key of a group", key=slots[0].operation.key, error=str(e))
                self._end(slots, ok=False)
        except Exception as e:
            log.exception("writing group state failed", keys=len(slots), error=repr(e))
            self._end(slots, ok=False)
        else:
            self._applied([slot.token for slot in slots])
            self._end(slots, ok=True)

    def _end(self, slots: list[Slot[T]], ok: bool) -> None:
        for slot in slots:
            for write, index in slot.waiting:
                write.end(index, ok)


class ShardWriters(Generic[T]):
    """The writers of all shards."""

    def __init__(self, store: Store, applied: Callable[[list[T]], None]) -> None:
        self._writers: list[ShardWriter[T]] = [ShardWriter(store, applied) for _ in range(SHARDS)]

    def of_group(self, group_id: str) -> ShardWriter[T]:
        return self._writers[shard_of(group_id)]

    @property
    def transactions(self) -> int:
        return sum(writer.transactions for writer in self._writers)

    def tokens_under_way(self) -> list[T]:
        """What is not durable yet, over all groups."""
        return [token for writer in self._writers for token in writer.tokens_under_way()]

    async def close(self) -> None:
        """Waits until everything is written or has failed."""
        for writer in self._writers:
            await writer.close()
