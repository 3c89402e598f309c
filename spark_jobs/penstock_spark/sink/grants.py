"""Which task may write to which partition, and from which sequence: sans-io, one for each transaction.

Batches of one producer id carry sequences that rise along a partition, so two tasks must not write to it at once.
A task that holds a partition gives it back when what it had in hand for it is acknowledged by the brokers; that never
depends on getting another partition. So nobody who holds waits for one who waits, and there is no deadlock; those who
wait are served in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock_spark.sink.messages import Partition

SEQUENCES = 1 << 31


class PartitionGrant(NamedTuple):
    """For the request `number` of `holder`."""

    holder: int
    number: int
    partition: Partition
    next_sequence: int


class WaitingTask(NamedTuple):
    holder: int
    number: int
    candidates: Sequence[Partition]


class GrantNotHeld(Exception):
    """A task gave back what it does not have."""


class PartitionGrants:
    """Call `acquire` and `release`; what they return is to be told to its holder."""

    def __init__(self) -> None:
        self.next_sequences: dict[Partition, int] = {}
        self.holders: dict[Partition, int] = {}
        self.waiting: list[WaitingTask] = []

    def acquire(self, holder: int, number: int, candidates: Sequence[Partition]) -> PartitionGrant | None:
        """The first candidate that is free; None where the request has to wait."""
        assert candidates, "a task asked for no partition"
        for partition in candidates:
            if partition not in self.holders:
                return self._give(WaitingTask(holder, number, candidates), partition)
        self.waiting.append(WaitingTask(holder, number, candidates))
        return None

    def release(self, holder: int, partition: Partition, next_sequence: int) -> PartitionGrant | None:
        """Takes a partition back and gives it to who waits longest for it. Raises `GrantNotHeld`."""
        if self.holders.get(partition) != holder:
            raise GrantNotHeld(f"{partition[0]}-{partition[1]} was given back by a task that does not hold it")
        if not 0 <= next_sequence < SEQUENCES:
            raise GrantNotHeld(f"{partition[0]}-{partition[1]} was given back with sequence {next_sequence}")
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
