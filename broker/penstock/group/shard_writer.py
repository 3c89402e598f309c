"""Writes of coordinator shards on their way to the store: collected while a transaction is in flight, then sent
together in the next. Used by `offsets` and `coordinator`; the transactions are made in `lanes`.

A group's keys are all in one shard, so its writes take effect in the order in which they were submitted. Each carries
its shard's guard: a coordinator that lost the shard writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, Protocol, TypeVar

from penstock.state import keys
from penstock.state.store import MAX_TXN_OPERATIONS, Compare, CompareTarget, Operation, PutOp

MAX_PENDING = 20_000
"""Keys of one shard that may wait for their transaction; beyond, a write is refused at once, to be tried again."""

T = TypeVar("T")


class Carrier(Protocol[T]):
    """Who makes the transactions: a lane."""

    def wake(self, writer: ShardWriter[T]) -> None:
        """A shard has something to write."""

    async def settle(self, writer: ShardWriter[T]) -> None:
        """Returns when a shard has nothing left to write."""


@dataclass(slots=True)
class Guard:
    """One broker's tenure of a shard: what each of its writes compares.

    `fence_revision` is that of the shard's fence. After a write of which nobody knows whether it was done, the fence is
    changed before anything else is written (`is_fence_old`): should the write still be under way, it fails then, and
    cannot undo what came after it.
    """

    number: int
    epoch: int
    revision: int
    fence_revision: int = 0
    is_fence_old: bool = False

    def ownership(self) -> Compare:
        return Compare(keys.shard(self.number), CompareTarget.MOD_REVISION, self.revision)

    def fence(self) -> Compare:
        return Compare(keys.shard_fence(self.number), CompareTarget.MOD_REVISION, self.fence_revision)


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
    """What a key is to become, what to call that in memory, and who waits for it. `tied` are the keys that go into the
    same transaction."""

    operation: Operation
    token: T
    waiting: list[tuple[Write[T], int]]
    tied: set[str] = field(default_factory=set)

    @property
    def size_bytes(self) -> int:
        operation = self.operation
        return len(operation.key) + (len(operation.value) if isinstance(operation, PutOp) else 0)


def nothing(*what: object) -> None:
    """Nobody wants to know."""


class ShardWriter(Generic[T]):
    """The writes of one tenure of a shard; the last write of a key wins.

    `applied` is called with what became durable, before those who wait are told; `uncertain` with what may or may not
    be, `lost` when the store says that the shard is another's. Without a guard there is no other broker.
    """

    def __init__(
        self,
        lane: Carrier[T],
        applied: Callable[[list[T]], None],
        guard: Guard | None = None,
        uncertain: Callable[[list[T]], None] = nothing,
        lost: Callable[[ShardWriter[T]], None] = nothing,
    ) -> None:
        self.guard = guard
        self.is_closed = False
        """Whether the tenure is over: nothing more is taken."""
        self.in_flight: dict[str, Slot[T]] = {}
        self.pending: dict[str, Slot[T]] = {}
        self._lane = lane
        self._applied, self._uncertain, self._lost = applied, uncertain, lost

    def submit(
        self, writes: Sequence[tuple[Operation, T]], ties: Sequence[tuple[str, str]] = ()
    ) -> asyncio.Future[list[int]]:
        """Writes each (operation, token); the result names by index those that failed.

        `ties` are pairs of keys among them of which both become durable, or none.
        """
        done: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        pending = self.pending
        if not writes or self.is_closed or (pending and len(pending) + len(writes) > MAX_PENDING):
            done.set_result(list(range(len(writes))))
            return done
        write: Write[T] = Write(done, len(writes))
        for index, (operation, token) in enumerate(writes):
            slot = pending.get(operation.key)
            if slot is None:
                pending[operation.key] = Slot(operation, token, [(write, index)])
            else:
                slot.operation, slot.token = operation, token
                slot.waiting.append((write, index))
        for one, other in ties:
            pending[one].tied.add(other)
            pending[other].tied.add(one)
        self._lane.wake(self)
        return done

    def tokens_under_way(self) -> list[T]:
        """What is not durable yet."""
        return [slot.token for slots in (self.in_flight, self.pending) for slot in slots.values()]

    def is_writing(self, key: str) -> bool:
        return key in self.pending or key in self.in_flight

    def close(self) -> None:
        """Ends the tenure: what was not sent yet fails, what is in flight ends as the store says."""
        self.is_closed = True
        self.fail_pending()

    async def settle(self) -> None:
        """Waits until everything that was submitted is written or has failed."""
        await self._lane.settle(self)

    # --- for the lane

    def take(self, keys_left: int, bytes_left: int) -> list[Slot[T]]:
        """The next writes that fit, tied ones together. What comes first in a transaction that is still empty is taken
        even if it is too large for any: of that, as much as a transaction may have keys."""
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

    def _with_tied(self, key: str) -> dict[str, Slot[T]]:
        """A pending write and those that must not be parted from it."""
        found: dict[str, Slot[T]] = {}
        left = [key]
        while left:
            slot = self.pending.get(key := left.pop())
            if slot is not None and key not in found:
                found[key] = slot
                left += slot.tied
        return found

    def done(self, slots: list[Slot[T]]) -> None:
        """These are durable."""
        if not self.is_closed:
            self._applied([slot.token for slot in slots])
        end(slots, ok=True)

    def failed(self, slots: list[Slot[T]], is_certain: bool) -> None:
        """These are not durable, or with `is_certain` False not known to be."""
        if not is_certain and self.guard is not None:
            self.guard.is_fence_old = True
            if not self.is_closed:
                self._uncertain([slot.token for slot in slots])
        end(slots, ok=False)

    def fail_pending(self) -> None:
        slots, self.pending = list(self.pending.values()), {}
        end(slots, ok=False)

    def lost(self) -> None:
        """The shard is another's: everything fails, and its coordinator is told."""
        was_closed = self.is_closed
        self.close()
        if not was_closed:
            self._lost(self)


def end(slots: list[Slot[T]], ok: bool) -> None:
    for slot in slots:
        for write, index in slot.waiting:
            write.end(index, ok)
        slot.waiting = []
