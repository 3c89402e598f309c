"""Selects the partition of each record. No I/O; called by the producer for each record.

Uses murmur2 with the Java client's seed, so that keys map to the same partitions as with other Kafka clients.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

MASK = 0xFFFFFFFF
SEED = 0x9747B28C
M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit murmur2 hash of `data` (Austin Appleby)."""
    size = len(data)
    h = (SEED ^ size) & MASK
    whole = size & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * M & MASK
        k = (k ^ k >> 24) * M & MASK
        h = h * M & MASK ^ k
    if whole != size:
        h = (h ^ int.from_bytes(data[whole:], "little")) * M & MASK
    h = (h ^ h >> 13) * M & MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a key, as the Java client's default partitioner does."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


PartitionFunction = Callable[[str, bytes | None, bytes | None, int], int]
"""Maps (topic, key, value, partition count) to a partition."""


class Partitioner(Protocol):
    """Selects partitions; `batch_closed` is called when a batch of `partition` is complete."""

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return the partition of a record."""

    def batch_closed(self, topic: str, partition: int, partition_count: int) -> None:
        """Handle the completion of a batch."""


class StickyPartitioner:
    """Uses one partition until its batch is complete, then another one (KIP-480). Ignores keys."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 (spreads load, guards nothing)
        self._current: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return the topic's current partition."""
        current = self._current.get(topic, -1)
        if not 0 <= current < partition_count:
            current = self._current[topic] = self._rng.randrange(partition_count)
        return current

    def batch_closed(self, topic: str, partition: int, partition_count: int) -> None:
        """Switch to another random partition."""
        if self._current.get(topic) != partition or partition_count < 2:
            return
        other = self._rng.randrange(partition_count - 1)
        self._current[topic] = other + (other >= partition)


class RoundRobinPartitioner:
    """Distributes records over the partitions in turn. Ignores keys."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return the next partition in turn."""
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        return turn % partition_count

    def batch_closed(self, topic: str, partition: int, partition_count: int) -> None:
        """Do nothing."""


MAX_CACHED_KEYS = 4096


class KeyHashPartitioner:
    """The default: murmur2 of the key; records without a key use the sticky partitioner."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._sticky = StickyPartitioner(rng)
        self._hashes: dict[bytes, int] = {}
        self.batch_closed = self._sticky.batch_closed

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return the partition by key; hashes of recent keys are cached."""
        if key is None:
            return self._sticky.choose(topic, key, value, partition_count)
        hashed = self._hashes.get(key)
        if hashed is None:
            if len(self._hashes) >= MAX_CACHED_KEYS:
                self._hashes.clear()
            hashed = self._hashes[key] = murmur2(key) & 0x7FFFFFFF
        return hashed % partition_count


class FunctionPartitioner:
    """Calls a user's function and checks its result."""

    def __init__(self, function: PartitionFunction) -> None:
        self._function = function

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return the function's result. Raises ValueError if there is no such partition."""
        chosen = self._function(topic, key, value, partition_count)
        if not 0 <= chosen < partition_count:
            raise ValueError(
                f'the partitioner returned partition "{chosen}" of topic "{topic}", which has {partition_count}'
            )
        return chosen

    def batch_closed(self, topic: str, partition: int, partition_count: int) -> None:
        """Do nothing."""


def make_partitioner(choice: str | PartitionFunction) -> Partitioner:
    """Return a partitioner by name ("murmur2", "round_robin", "sticky"), or for a function. Raises ValueError."""
    if callable(choice):
        return FunctionPartitioner(choice)
    known: dict[str, Callable[[], Partitioner]] = {
        "murmur2": KeyHashPartitioner,
        "round_robin": RoundRobinPartitioner,
        "sticky": StickyPartitioner,
    }
    if choice not in known:
        raise ValueError(f'unknown partitioner "{choice}"; use one of {", ".join(known)}, or a function')
    return known[choice]()
