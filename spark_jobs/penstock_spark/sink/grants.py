"""Decides which task may write to which partition, and from which sequence number. Sans-io, one for each transaction.

The sequence numbers of a producer id increase along a partition, so two tasks must not write to it at the same time. A
task releases a partition once its waiting batches for it are acknowledged; it never waits for another partition before
that. So no holder waits for a waiting task, and there is no deadlock. Requests are served in order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock_spark.sink.messages import Partition

SEQUENCES = 1 << 31


class PartitionGrant(NamedTuple):
    """A partition granted to the request `number` of `holder`."""

    holder: int
    number: int
    partition: Partition
    next_sequence: int


class WaitingTask(NamedTuple):
    """A request that waits for one of its candidates."""

    holder: int
    number: int
    candidates: Sequence[Partition]


class GrantNotHeld(Exception):
    """A task released a partition that it does not hold."""


class PartitionGrants:
    """Grants partitions. The caller sends the grants that `acquire` and `release` return to their holders."""

    def __init__(self) -> None:
        self.next_sequences: dict[Partition, int] = {}
        self.holders: dict[Partition, int] = {}
        self.waiting: list[WaitingTask] = []

    def acquire(self, holder: int, number: int, candidates: Sequence[Partition]) -> PartitionGrant | None:
        """Grant the first free candidate; None if the request must wait."""
        assert candidates, "a request without candidates"
        for partition in candidates:
            if partition not in self.holders:
                return self._give(WaitingTask(holder, number, candidates), partition)
        self.waiting.append(WaitingTask(holder, number, candidates))
        return None

    def release(self, holder: int, partition: Partition, next_sequence: int) -> PartitionGrant | None:
        """Release a partition and grant it to the oldest waiting request. Raises `GrantNotHeld`."""
        if self.holders.get(partition) != holder:
            raise GrantNotHeld(f"{partition[0]}-{partition[1]} was released by a task that does not hold it")
        if not 0 <= next_sequence < SEQUENCES:
            raise GrantNotHeld(f"{partition[0]}-{partition[1]} was released with sequence number {next_sequence}")
        del self.holders[partition]
        self.next_sequences[partition] = next_sequence
        for position, waiting in enumerate(self.waiting):
            if partition in waiting.candidates:
                del self.waiting[position]
                return self._give(waiting, partition)
        return None

    def _give(self, to: WaitingTask, partition: Partition) -> PartitionGrant:
        assert partition not in self.holders, f"{partition} would have two writers"
        self.holders[partition] = to.holder
        return PartitionGrant(to.holder, to.number, partition, self.next_sequences.get(partition, 0))
