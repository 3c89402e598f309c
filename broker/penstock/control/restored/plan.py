"""What it takes to make a restored store the truth again: a pure function of what is stored and what brokers report.

Whatever happened after the backup is unknown to the store, and known to the brokers only in part. So nothing is
guessed: every epoch goes far above any that was seen, and each partition waits until the brokers that may have its
newest records are back, who then tell their log ends; the highest (last epoch, log end) leads, as after the loss of a
last replica.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from msgspec.structs import replace

from penstock.control.restored.reports import BrokerReport, ReplicaReport
from penstock.state.records import PartitionRecord, ProducerIdsRecord, ShardRecord, TransactionRecord

LEAP = 1000
"""How far epochs go above those that are known: there may have been some more, of which nobody is left to tell."""
PRODUCER_ID_LEAP = 1 << 32
USED_UP_EPOCH = (1 << 15) - 2
"""The last that a producer is given: whoever asks next gets a fresh producer id, and an abort has one above it."""
PREPARED = ("PrepareCommit", "PrepareAbort")
NEVER = 1
"""The epoch of ISR members in recovered partitions: no broker ever registers at the first revision of a store, so that
none of them counts as present."""

PartitionKey = tuple[UUID, int]


class CannotRecover(Exception):
    """The store is not to be recovered as asked; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class FoundReplica:
    """What the store holds, as of one look."""

    epoch: int
    """The newest epoch of a controller."""
    partitions: Mapping[PartitionKey, PartitionRecord]
    names: Mapping[UUID, str]
    min_insync: Mapping[UUID, int]
    """As topics have it set themselves, or all brokers; where it is missing the default holds."""
    shards: Mapping[int, ShardRecord]
    producer_ids: ProducerIdsRecord | None
    reports: Mapping[int, tuple[BrokerReport, list[ReplicaReport]]]
    transactions: Mapping[str, TransactionRecord] = field(default_factory=dict)
    """By key."""


@dataclass(frozen=True, slots=True)
class PartitionStep:
    """One partition before and after. `ends` are the (last epoch, log end) that brokers report."""

    key: PartitionKey
    before: PartitionRecord
    after: PartitionRecord
    ends: Mapping[int, tuple[int, int]]
    added: list[int]
    """Brokers that the record does not know as replicas, but which have more than those."""
    missing: list[int]
    """Replicas without which it is recovered, as was asked."""
    may_lose: bool
    """Whether those may have had acknowledged records that nobody else has."""


@dataclass(frozen=True, slots=True)
class UnknownReplica:
    """Data of a partition that the store does not know, or not as this broker's: it will be put aside there."""

    key: PartitionKey
    topic: str
    broker_id: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """All that is to be done."""

    epoch: int
    steps: list[PartitionStep]
    unknown: list[UnknownReplica]
    shards: Mapping[int, ShardRecord]
    producer_ids: ProducerIdsRecord
    transactions: Mapping[str, TransactionRecord] = field(default_factory=dict)
    """By key, those that are changed."""
    awaited: list[int] = field(default_factory=list)
    """Brokers that hold replicas by the records and have not reported: partitions wait until they are back."""


def plan(found: FoundReplica, without: Collection[int] = ()) -> RecoveryPlan:
    """`without` names brokers that are gone for good: nobody is to wait for them. Raises `CannotRecover`."""
    if not found.reports:
        raise CannotRecover(
            "no broker has reported what it has: start the brokers (they freeze, and report), then try again"
        )
    if present := sorted(set(without) & found.reports.keys()):
        raise CannotRecover(f"broker {present[0]} has reported, so it is not gone: leave it out of --without")
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
        epoch=max([found.epoch, *seen]) + LEAP,
        steps=steps,
        unknown=unknown_data(found, known, {step.key: step.after for step in steps}),
        shards={n: replace(shard, epoch=shard.epoch + LEAP, broker_epoch=0) for n, shard in found.shards.items()},
        producer_ids=ProducerIdsRecord(next_id=next_id + PRODUCER_ID_LEAP),
        transactions={
            key: used_up(record) for key, record in found.transactions.items() if record.state not in PREPARED
        },
        awaited=sorted(held - found.reports.keys() - set(without)),
    )


def used_up(record: TransactionRecord) -> TransactionRecord:
    """With an epoch that no producer of that id can have gone beyond, so that what is told of it is not refused.

    One that is decided is left: its markers belong to the epoch in which it was, and are refused if that is over.
    """
    return replace(record, epoch=USED_UP_EPOCH, last_epoch=-1, last_producer_id=-1)


def partition_step(
    key: PartitionKey,
    record: PartitionRecord,
    replicas: Mapping[int, ReplicaReport],
    without: Collection[int],
    min_insync: int,
) -> PartitionStep:
    """All replicas become the last ISR: whichever of them was in sync when the store's memory ends."""
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
            leader_epoch=max(seen) + LEAP,
            isr=last_isr or members,
            isr_epochs=[NEVER] * len(last_isr or members),
            eligible=[],
            last_isr=last_isr or members,
        ),
        ends=ends,
        added=added,
        missing=missing,
        # What was acknowledged is on min.insync.replicas of them, so on one of those that are left if fewer are gone.
        may_lose=len(set(missing) & set(before)) >= max(min(min_insync, len(before)), 1),
    )


def unknown_data(
    found: FoundReplica,
    known: Mapping[PartitionKey, Mapping[int, ReplicaReport]],
    after: Mapping[PartitionKey, PartitionRecord],
) -> list[UnknownReplica]:
    """Replicas that no record has, by topic."""
    unknown = []
    for key, replicas in known.items():
        record = after.get(key)
        for broker_id, replica in replicas.items():
            if record is None or broker_id not in record.replicas:
                name = replica.topic or found.names.get(key[0], "")
                unknown.append(UnknownReplica(key, name, broker_id, replica.end_offset))
    return sorted(unknown, key=lambda u: (u.topic, u.key, u.broker_id))
