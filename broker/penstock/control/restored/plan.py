"""Plans the recovery of a restored store: a pure function of the store's content and the brokers' reports.

The store has lost what happened after the backup, and brokers know only a part of it. So nothing is guessed: every
epoch increases far above any observed one, and each partition waits until the brokers that may have its newest records
are back and report their log ends. The highest (last epoch, log end) then leads, as after the loss of all replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from msgspec.structs import replace

from penstock.control.restored.reports import BrokerReport, ReplicaReport
from penstock.state.records import PartitionRecord, ProducerIdsRecord, ShardRecord, TransactionRecord

EPOCH_LEAP = 1000
"""Increase of epochs above the known ones; there may have been later ones that no broker reports."""
PRODUCER_ID_LEAP = 1 << 32
EXHAUSTED_EPOCH = (1 << 15) - 2
"""The last epoch of a producer id: the next InitProducerId allocates a new id, and an abort has one epoch above it."""
PREPARED = ("PrepareCommit", "PrepareAbort")
UNREGISTERED_EPOCH = 1
"""Epoch of ISR members in recovered partitions. No broker ever registers at revision 1, so none counts as present."""

PartitionKey = tuple[UUID, int]


class CannotRecover(Exception):
    """The recovery is not possible; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class RecoveryInput:
    """The content of the store at one point in time."""

    epoch: int
    """Newest controller epoch."""
    partitions: Mapping[PartitionKey, PartitionRecord]
    names: Mapping[UUID, str]
    min_insync: Mapping[UUID, int]
    """As set for topics or all brokers; the default where it is missing."""
    shards: Mapping[int, ShardRecord]
    producer_ids: ProducerIdsRecord | None
    reports: Mapping[int, tuple[BrokerReport, list[ReplicaReport]]]
    transactions: Mapping[str, TransactionRecord] = field(default_factory=dict)
    """Transactions by key."""


@dataclass(frozen=True, slots=True)
class PartitionStep:
    """One partition before and after. `ends` has the reported (last epoch, log end) by broker."""

    key: PartitionKey
    before: PartitionRecord
    after: PartitionRecord
    ends: Mapping[int, tuple[int, int]]
    added: list[int]
    """Brokers that have more of the partition than its replicas but are not replicas."""
    missing: list[int]
    """Replicas that the recovery gives up (`--without`)."""
    may_lose: bool
    """Whether missing replicas may have had acknowledged records that no other replica has."""


@dataclass(frozen=True, slots=True)
class UnknownReplica:
    """Replica data that the store does not assign to its broker, which will quarantine it."""

    key: PartitionKey
    topic: str
    broker_id: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """All changes of a recovery."""

    epoch: int
    steps: list[PartitionStep]
    unknown: list[UnknownReplica]
    shards: Mapping[int, ShardRecord]
    producer_ids: ProducerIdsRecord
    transactions: Mapping[str, TransactionRecord] = field(default_factory=dict)
    """Changed transactions by key."""
    awaited: list[int] = field(default_factory=list)
    """Brokers with replicas that have not reported: their partitions wait until they are back."""


def plan_recovery(found: RecoveryInput, without: Collection[int] = ()) -> RecoveryPlan:
    """Plan the recovery; `without` are brokers that will not come back. Raises `CannotRecover`."""
    if not found.reports:
        raise CannotRecover(
            "no broker has reported its replicas; start the brokers (they freeze and report), then try again"
        )
    if present := sorted(set(without) & found.reports.keys()):
        raise CannotRecover(f"broker {present[0]} has reported, so it is running; remove it from --without")
    known: dict[PartitionKey, dict[int, ReplicaReport]] = {}
    for broker_id, (_, replicas) in found.reports.items():
        for replica in replicas:
            known.setdefault((replica.topic_id, replica.partition), {})[broker_id] = replica
    steps = [
        partition_step(key, record, known.get(key, {}), without, found.min_insync.get(key[0], 1))
        for key, record in sorted(found.partitions.items())
    ]
    held = {broker for record in found.partitions.values() for broker in record.replicas}
    seen = [report.epoch for report, _ in found.reports.values()]
    next_id = found.producer_ids.next_id if found.producer_ids is not None else 0
    return RecoveryPlan(
        epoch=max([found.epoch, *seen]) + EPOCH_LEAP,
        steps=steps,
        unknown=unknown_data(found, known, {step.key: step.after for step in steps}),
        shards={n: replace(shard, epoch=shard.epoch + EPOCH_LEAP, broker_epoch=0) for n, shard in found.shards.items()},
        producer_ids=ProducerIdsRecord(next_id=next_id + PRODUCER_ID_LEAP),
        transactions={
            key: with_exhausted_epoch(record)
            for key, record in found.transactions.items()
            if record.state not in PREPARED
        },
        awaited=sorted(held - found.reports.keys() - set(without)),
    )


def with_exhausted_epoch(record: TransactionRecord) -> TransactionRecord:
    """Return the transaction with an epoch that no producer of its id can exceed, so that its markers are accepted.

    A prepared transaction stays as it is: its markers belong to the epoch of its decision and are refused if that has
    passed.
    """
    return replace(record, epoch=EXHAUSTED_EPOCH, last_epoch=-1, last_producer_id=-1)


def partition_step(
    key: PartitionKey,
    record: PartitionRecord,
    replicas: Mapping[int, ReplicaReport],
    without: Collection[int],
    min_insync: int,
) -> PartitionStep:
    """Return the step for one partition. All replicas become the last ISR, since any may have been in sync."""
    ends = {broker: (replica.last_epoch, replica.end_offset) for broker, replica in replicas.items()}
    highest = max([ends[broker] for broker in record.replicas if broker in ends], default=(-1, 0))
    added = sorted(broker for broker in ends if broker not in record.replicas and ends[broker] > highest)
    members = [*record.replicas, *added]
    missing = [broker for broker in record.replicas if broker in without]
    last_isr = [broker for broker in members if broker not in missing]
    seen = [record.leader_epoch, *(max(r.last_epoch, r.seen_epoch) for r in replicas.values())]
    before = [broker for broker in record.replicas if broker not in record.adding]
    return PartitionStep(
        key=key,
        before=record,
        after=replace(
            record,
            replicas=members,
            removing=[*record.removing, *added],
            leader=-1,
            leader_epoch=max(seen) + EPOCH_LEAP,
            isr=last_isr or members,
            isr_epochs=[UNREGISTERED_EPOCH] * len(last_isr or members),
            eligible=[],
            last_isr=last_isr or members,
        ),
        ends=ends,
        added=added,
        missing=missing,
        # Acknowledged records are on min.insync.replicas of them, so also on a remaining one if fewer are missing.
        may_lose=len(set(missing) & set(before)) >= max(min(min_insync, len(before)), 1),
    )


def unknown_data(
    found: RecoveryInput,
    known: Mapping[PartitionKey, Mapping[int, ReplicaReport]],
    after: Mapping[PartitionKey, PartitionRecord],
) -> list[UnknownReplica]:
    """Return the replicas that no record has, sorted by topic."""
    unknown = []
    for key, replicas in known.items():
        record = after.get(key)
        for broker_id, replica in replicas.items():
            if record is None or broker_id not in record.replicas:
                name = replica.topic or found.names.get(key[0], "")
                unknown.append(UnknownReplica(key, name, broker_id, replica.end_offset))
    return sorted(unknown, key=lambda u: (u.topic, u.key, u.broker_id))
