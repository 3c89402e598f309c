"""The writers of all shards of a broker: those that it owns take writes, the others refuse them. Used by `offsets`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.group.request_queue import LANES, RequestQueue
from penstock.group.shard_writer import Guard, ShardWriter
from penstock.state import keys
from penstock.state.store import Store

T = TypeVar("T")


class ShardWriters(Generic[T]):
    """One for each shard. What becomes of writes is told as `ShardWriter` does."""

    def __init__(
        self, store: Store, applied: Callable[[list[T]], None], uncertain: Callable[[list[T]], None], lanes: int = LANES
    ) -> None:
        self._applied, self._uncertain = applied, uncertain
        self._lanes: list[RequestQueue[T]] = [RequestQueue(store) for _ in range(lanes)]
        self._writers = [self._make(number, None) for number in range(keys.SHARD_COUNT)]
        for writer in self._writers:
            writer.close()
        self.lost: Callable[[int], None] = ignore
        """Called with the number of a shard when the store says that it is another's. Set by whoever owns this."""

    def _make(self, number: int, guard: Guard | None) -> ShardWriter[T]:
        lane = self._lanes[number % len(self._lanes)]
        return ShardWriter(lane, self._applied, guard, self._uncertain, lambda _: self.lost(number))

    def open(self, number: int, guard: Guard | None) -> None:
        """The shard is this broker's; each write compares its guard."""
        assert self._writers[number].is_closed, f"shard {number} has two tenures at once"
        self._writers[number] = self._make(number, guard)

    def close(self, number: int) -> None:
        """The shard is this broker's no longer."""
        self._writers[number].close()

    def of_group(self, group_id: str) -> ShardWriter[T]:
        return self._writers[keys.shard_of(group_id)]

    def of_shard(self, number: int) -> ShardWriter[T]:
        return self._writers[number]

    @property
    def transactions(self) -> int:
        return sum(lane.transactions for lane in self._lanes)

    def tokens_under_way(self) -> list[T]:
        """What is not durable yet, over all groups."""
        return [token for writer in self._writers for token in writer.tokens_under_way()]

    async def settle(self) -> None:
        """Waits until everything that was submitted is written or has failed."""
        for writer in self._writers:
            await writer.settle()


def ignore(number: int) -> None:
    """Nobody listens."""
