"""Changes a partition's replicas: pure functions for the steps of a reassignment (KIP-455).

`replicas` has the replicas that are wanted, then those that are to go (`removing`); those to come are in `adding`. The
wish is one write. The leaders then admit who has caught up, and when all that come are in sync, `completed` drops those
that go. Nothing else changes a set of replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from penstock.control.controller import leaders
from penstock.control.controller.leaders import NO_LEADER, ReplicaFacts, check, choose, isr_members, led_by
from penstock.state.records import MAX_REPLICAS, PartitionRecord
from penstock.state.view import PartitionView


class RefusedReassignment(ValueError):
    """Replicas that cannot be, or a cancellation that would lose the last one in sync; the message says why."""


def original(record: PartitionRecord | PartitionView) -> list[int]:
    """The replicas without those that are being added: what a cancellation goes back to."""
    return [broker for broker in record.replicas if broker not in record.adding]


def target(record: PartitionRecord | PartitionView) -> list[int]:
    """The replicas that are wanted."""
    return [broker for broker in record.replicas if broker not in record.removing]


def is_under_way(record: PartitionRecord | PartitionView) -> bool:
    """Whether replicas are being added or are to go."""
    return bool(record.adding or record.removing)


def check_target(wanted: Sequence[int], brokers: Collection[int]) -> None:
    """Raises `RefusedReassignment` for replicas that cannot be; `brokers` are those that are registered."""
    if not wanted:
        raise RefusedReassignment("The list of replicas is empty: name at least one broker.")
    if len(wanted) > MAX_REPLICAS:
        raise RefusedReassignment(f"{len(wanted)} replicas are more than the {MAX_REPLICAS} that a partition can have.")
    if len(set(wanted)) < len(wanted):
        raise RefusedReassignment(f"The list of replicas names a broker twice: {list(wanted)}.")
    unknown = [broker for broker in wanted if broker not in brokers]
    if unknown:
        raise RefusedReassignment(f"The list of replicas names broker {unknown[0]}, which is not registered.")


def started(record: PartitionRecord, wanted: Sequence[int], facts: ReplicaFacts) -> PartitionRecord | None:
    """The record with a wish for `wanted`, in place of any wish before; None where it is what is there already.

    Replicas that an earlier wish was adding and that this one does not want go at once. Raises `RefusedReassignment`
    where that would leave nobody in sync.
    """
    before = original(record)
    adding = [broker for broker in wanted if broker not in before]
    removing = [broker for broker in before if broker not in wanted]
    new = with_replicas(record, [*wanted, *removing], adding, removing, facts)
    if not adding:
        new = completed(new, facts) or new
    check(record, new)
    return None if new == record else new


def cancelled(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord:
    """Back to what was there before. Raises `RefusedReassignment` where nothing is under way, or nobody is in sync."""
    if not record.adding and not record.removing:
        raise RefusedReassignment("Nothing is being reassigned.")
    new = with_replicas(record, original(record), [], [], facts)
    check(record, new)
    return new


def completed(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """Without those that go, and led by the preferred replica, once all that come are in sync; None until then.

    It also waits where those that stay would be too few for acks=all, if those that go still make them enough.
    """
    members = dict(isr_members(record))
    wanted = target(record)
    staying = [b for b in record.isr if b in wanted and facts.is_present(b, members[b])]
    if not staying or any(broker not in staying for broker in record.adding):
        return None
    enough = min(facts.min_insync, len(wanted))
    if len(staying) < enough and any(b in record.removing and facts.is_present(b, e) for b, e in members.items()):
        return None
    new = with_replicas(record, wanted, [], [], facts)
    new = leaders.preferred(new, facts) or new
    check(record, new)
    return new


def with_replicas(
    record: PartitionRecord, replicas: list[int], adding: list[int], removing: list[int], facts: ReplicaFacts
) -> PartitionRecord:
    """Whoever is no replica any more is neither in sync nor leader. Raises `RefusedReassignment` if nobody is left."""
    members = [(broker, epoch) for broker, epoch in isr_members(record) if broker in replicas]
    if not members:
        raise RefusedReassignment(
            f"None of the replicas {replicas} would be in sync, as only {record.isr} are: what is stored would be lost."
        )
    isr = [broker for broker, _ in members]
    leader = record.leader
    if leader not in isr:
        present = [broker for broker, epoch in members if facts.is_present(broker, epoch)]
        leader = choose(replicas, present, facts) if present else NO_LEADER
    new = replace(
        record,
        replicas=replicas,
        adding=adding,
        removing=removing,
        isr=isr,
        isr_epochs=[epoch for _, epoch in members] if record.isr_epochs else [],
        eligible=[broker for broker in record.eligible if broker in replicas and broker not in isr],
        last_isr=[broker for broker in record.last_isr if broker in replicas] if leader == NO_LEADER else [],
    )
    return led_by(new, leader)
