"""The writers of all shards. Those of shards that this broker owns accept writes, the others reject them.

Used by `offsets`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.group.request_queue import QUEUE_COUNT, RequestQueue
from penstock.group.shard_writer import LocalShardGuard, ShardGuard, ShardWriter
from penstock.state import keys
from penstock.state.store import Store

T = TypeVar("T")


class ShardWriters(Generic[T]):
    """One `ShardWriter` per shard, with the same callbacks. `on_lost` is called with the number of a shard that the
    store assigns to another broker."""

    def __init__(
        self,
        store: Store,
        applied: Callable[[list[T]], None],
        uncertain: Callable[[list[T]], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._applied, self._uncertain, self._on_lost = applied, uncertain, on_lost
        self._queues: list[RequestQueue[T]] = [RequestQueue(store) for _ in range(QUEUE_COUNT)]
        self._writers = [self._make(LocalShardGuard(number)) for number in range(keys.SHARD_COUNT)]
        for writer in self._writers:
            writer.close()

    def _make(self, guard: ShardGuard) -> ShardWriter[T]:
        queue = self._queues[guard.number % len(self._queues)]
        return ShardWriter(queue, self._applied, guard, self._uncertain, self._on_lost)

    def open(self, guard: ShardGuard) -> None:
        """Accept writes for an acquired shard; each write compares `guard`."""
        assert self._writers[guard.number].is_closed, f"shard {guard.number} is open already"
        self._writers[guard.number] = self._make(guard)

    def close(self, number: int) -> None:
        """Reject further writes for a resigned shard."""
        self._writers[number].close()

    def for_group(self, group_id: str) -> ShardWriter[T]:
        """Return the writer of the group's shard."""
        return self._writers[keys.shard_of(group_id)]

    def for_shard(self, number: int) -> ShardWriter[T]:
        """Return the writer of the shard."""
        return self._writers[number]

    @property
    def transactions(self) -> int:
        """Number of transactions sent, for the metrics."""
        return sum(queue.transactions for queue in self._queues)

    def outstanding_tokens(self) -> list[T]:
        """Return the tokens of all writes that are not durable yet."""
        return [token for writer in self._writers for token in writer.outstanding_tokens()]

    async def drain(self) -> None:
        """Wait until all submitted writes have succeeded or failed."""
        for writer in self._writers:
            await writer.drain()
