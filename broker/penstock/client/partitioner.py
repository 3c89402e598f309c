"""Which partition a record goes to. Sans-io; the producer asks once for each record.

murmur2 (Austin Appleby's, with the seed that the Java client uses) makes keys land where every other Kafka client puts
them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

MASK = 0xFFFFFFFF
SEED = 0x9747B28C
M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """The unsigned 32-bit murmur2 hash of `data`."""
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
    """The partition of a key, as the Java client's default partitioner has it."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


PartitionFunction = Callable[[str, bytes | None, bytes | None, int], int]
"""(topic, key, value, number of partitions) → partition."""


class Partitioner(Protocol):
    """Chooses partitions; `batch_closed` tells that a batch for `partition` was completed."""

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int: ...

    def batch_closed(self, topic: str, partition: int, partition_count: int) -> None: ...


class StickyPartitioner:
    """Stays with one partition until a batch for it is complete, then goes to another (KIP-480). Keys are ignored."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 (spreads load, guards nothing)
        self._current: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        current = self._current.get(topic, -1)
        if not 0 <= current < partition_count:
            current = self._current[topic] = self._rng.randrange(partition_count)
        return current

    def batch_closed(self, topic: str, partition: int, partition_count: int) -> None:
        if self._current.get(topic) != partition or partition_count < 2:
            return
        other = self._rng.randrange(partition_count - 1)
        self._current[topic] = other + (other >= partition)


class RoundRobinPartitioner:
    """One record to each partition in turn, whatever the key."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        return turn % partition_count

    def batch_closed(self, topic: str, partition: int, partition_count: int) -> None:
        pass


REMEMBERED_KEYS = 4096


class KeyHashPartitioner:
    """The default: murmur2 of the key; records without one stick to a partition for a batch."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._sticky = StickyPartitioner(rng)
        self._hashes: dict[bytes, int] = {}
        self.batch_closed = self._sticky.batch_closed

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if key is None:
            return self._sticky.choose(topic, key, value, partition_count)
        hashed = self._hashes.get(key)
        if hashed is None:
            if len(self._hashes) >= REMEMBERED_KEYS:
                self._hashes.clear()
            hashed = self._hashes[key] = murmur2(key) & 0x7FFFFFFF
        return hashed % partition_count


class FunctionPartitioner:
    """A function of the user's; what it returns is checked."""

    def __init__(self, function: PartitionFunction) -> None:
        self._function = function

    def choose(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        chosen = self._function(topic, key, value, partition_count)
        if not 0 <= chosen < partition_count:
            raise ValueError(f"the partitioner chose partition {chosen} of {topic!r}, which has {partition_count}")
        return chosen

    def batch_closed(self, topic: str, partition: int, partition_count: int) -> None:
        pass


def make_partitioner(choice: str | PartitionFunction) -> Partitioner:
    """ "murmur2", "round_robin", "sticky", or a function. Raises ValueError for another name."""
    if callable(choice):
        return FunctionPartitioner(choice)
    known: dict[str, Callable[[], Partitioner]] = {
        "murmur2": KeyHashPartitioner,
        "round_robin": RoundRobinPartitioner,
        "sticky": StickyPartitioner,
    }
    if choice not in known:
        raise ValueError(f"unknown partitioner {choice!r}: choose one of {', '.join(known)}, or give a function")
    return known[choice]()
