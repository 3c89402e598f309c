"""Which brokers hold a new partition: as the client says, checked, or in turn over the brokers there are."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from penstock.control.results import AdminError
from penstock.state import keys
from penstock.state.records import PartitionRecord, encode
from penstock.state.store import Operation, Put
from penstock.wire.errors import ErrorCode


def check_manual(assignment: Sequence[Sequence[int]], brokers: Sequence[int], replication_factor: int | None) -> None:
    """Raises `AdminError` unless each partition names distinct, known brokers, the same number of them for each.

    That number is `replication_factor` where it is not None.
    """
    for replicas in assignment:
        if not replicas:
            raise refused("The manual partition assignment includes an empty replica list.")
        if len(set(replicas)) < len(replicas):
            raise refused(f"The manual partition assignment includes a broker twice: {list(replicas)[:20]}.")
        unknown = [broker for broker in replicas if broker not in brokers]
        if unknown:
            raise refused(f"The manual partition assignment includes broker {unknown[0]}, which is not registered.")
        if replication_factor is None:
            replication_factor = len(replicas)
        elif len(replicas) != replication_factor:
            raise refused(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but the others"
                f" have {replication_factor}."
            )


def refused(message: str) -> AdminError:
    return AdminError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def in_turn(first: int, count: int, replication_factor: int, brokers: Sequence[int]) -> list[list[int]]:
    """Replicas for partitions `first` and on: each partition begins one broker later, so that leaders are spread.

    Raises `AdminError` where there are too few brokers.
    """
    if not brokers:
        raise AdminError(ErrorCode.LEADER_NOT_AVAILABLE, "No broker has registered yet: try again.")
    if replication_factor > len(brokers):
        raise AdminError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): only {len(brokers)} broker(s) are there.",
        )
    ordered = sorted(brokers)
    turns = [[ordered[(turn + i) % len(ordered)] for i in range(replication_factor)] for turn in range(len(ordered))]
    return [turns[index % len(ordered)] for index in range(first, first + count)]


def partition_puts(topic_id: UUID, first: int, assignment: Sequence[Sequence[int]]) -> list[Operation]:
    """New partitions, led by their first replica, with all replicas in sync."""
    values: dict[tuple[int, ...], bytes] = {}
    puts: list[Operation] = []
    for index, replicas in enumerate(assignment, first):
        value = values.get(tuple(replicas))
        if value is None:
            record = PartitionRecord(replicas=list(replicas), leader=replicas[0], isr=list(replicas))
            value = values[tuple(replicas)] = encode(record)
        puts.append(Put(keys.partition(topic_id, index), value))
    return puts
