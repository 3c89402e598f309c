"""Validates manual replica assignments and builds the records of new partitions. Called by `topic_admin`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from penstock.control.results import AdminError
from penstock.state import keys
from penstock.state.records import MAX_REPLICAS, PartitionRecord, encode
from penstock.state.store import Operation, PutOp
from penstock.wire.errors import ErrorCode


def check_manual(
    assignment: Sequence[Sequence[int]],
    brokers: Collection[int],
    replication_factor: int | None,
    absent: Collection[int] = (),
) -> None:
    """Raise `AdminError` unless each partition lists distinct, known brokers and all have the same number of replicas.

    The number of replicas must be `replication_factor` unless that is None. At least one replica of each partition must
    be on a registered broker (`brokers`); the others may be on `absent` ones.
    """
    for replicas in assignment:
        if not replicas:
            raise refused("The manual partition assignment includes an empty replica list.")
        if len(set(replicas)) < len(replicas):
            raise refused(f"The manual partition assignment lists a broker more than once: {list(replicas)[:20]}.")
        if len(replicas) > MAX_REPLICAS:
            raise refused(f"The manual partition assignment includes {len(replicas)} replicas: at most {MAX_REPLICAS}.")
        unknown = [broker for broker in replicas if broker not in brokers and broker not in absent]
        if unknown:
            raise refused(f"The manual partition assignment includes broker {unknown[0]}, which is not registered.")
        if not any(broker in brokers for broker in replicas):
            raise refused(f"The manual partition assignment lists only absent brokers: {list(replicas)}.")
        if replication_factor is None:
            replication_factor = len(replicas)
        elif len(replicas) != replication_factor:
            raise refused(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but the others"
                f" have {replication_factor}."
            )


def refused(message: str) -> AdminError:
    """Return the error for a replica assignment that is not valid."""
    return AdminError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def partition_puts(
    topic_id: UUID, first: int, assignment: Sequence[Sequence[int]], epochs: Mapping[int, int]
) -> list[Operation]:
    """Return the writes that create partitions numbered from `first`, led by the first replica that is registered.

    `epochs` are the broker epochs of the registered brokers; empty for a single broker. The ISR has the registered
    replicas.
    """
    values: dict[tuple[int, ...], bytes] = {}
    puts: list[Operation] = []
    for index, replicas in enumerate(assignment, first):
        value = values.get(tuple(replicas))
        if value is None:
            isr = [b for b in replicas if b in epochs] or list(replicas)
            record = PartitionRecord(
                replicas=list(replicas),
                leader=isr[0],
                isr=isr,
                isr_epochs=[epochs[b] for b in isr] if isr[0] in epochs else [],
            )
            value = values[tuple(replicas)] = encode(record)
        puts.append(PutOp(keys.partition(topic_id, index), value))
    return puts
