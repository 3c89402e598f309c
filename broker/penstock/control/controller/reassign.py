"""The steps of a replica reassignment as pure functions (KIP-455).

`replicas` has the target replicas, then those to remove (`removing`); new ones are in `adding`. A request is one write.
The leader then admits the new replicas to the ISR, and once all are in sync `complete_reassignment` drops the removed
ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from penstock.control.controller import leaders
from penstock.control.controller.leaders import (
    NO_LEADER,
    ReplicaFacts,
    check_transition,
    choose_leader,
    isr_members,
    with_leader,
)
from penstock.state.records import MAX_REPLICAS, PartitionRecord
from penstock.state.view import PartitionView


class RefusedReassignment(ValueError):
    """A replica list that is not valid, or a cancellation without an in-sync replica; the message says why."""


def original_replicas(record: PartitionRecord | PartitionView) -> list[int]:
    """Return the replicas without those being added: the result of a cancellation."""
    return [broker for broker in record.replicas if broker not in record.adding]


def target_replicas(record: PartitionRecord | PartitionView) -> list[int]:
    """Return the replicas that the reassignment leads to."""
    return [broker for broker in record.replicas if broker not in record.removing]


def is_reassigning(record: PartitionRecord | PartitionView) -> bool:
    """Return whether replicas are being added or removed."""
    return bool(record.adding or record.removing)


def check_target(replicas: Sequence[int], brokers: Collection[int]) -> None:
    """Raise `RefusedReassignment` for a replica list that is not valid; `brokers` are the registered ones."""
    if not replicas:
        raise RefusedReassignment("The list of replicas is empty; name at least one broker.")
    if len(replicas) > MAX_REPLICAS:
        raise RefusedReassignment(f"{len(replicas)} replicas exceed the limit of {MAX_REPLICAS} per partition.")
    if len(set(replicas)) < len(replicas):
        raise RefusedReassignment(f"The list of replicas names a broker more than once: {list(replicas)}.")
    unknown = [broker for broker in replicas if broker not in brokers]
    if unknown:
        raise RefusedReassignment(f"The list of replicas names broker {unknown[0]}, which is not registered.")


def start_reassignment(record: PartitionRecord, replicas: Sequence[int], facts: ReplicaFacts) -> PartitionRecord | None:
    """Return the record with `replicas` as the target, in place of any earlier target; None without change.

    Replicas that only the earlier target was adding are removed at once. Raises `RefusedReassignment` if no in-sync
    replica would be left.
    """
    before = original_replicas(record)
    adding = [broker for broker in replicas if broker not in before]
    removing = [broker for broker in before if broker not in replicas]
    new = with_replicas(record, [*replicas, *removing], adding, removing, facts)
    if not adding:
        new = complete_reassignment(new, facts) or new
    check_transition(record, new)
    return None if new == record else new


def cancel_reassignment(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord:
    """Return the record with the original replicas. Raises `RefusedReassignment` if there is no reassignment, or no
    in-sync replica would be left."""
    if not record.adding and not record.removing:
        raise RefusedReassignment("No reassignment is in progress.")
    new = with_replicas(record, original_replicas(record), [], [], facts)
    check_transition(record, new)
    return new


def complete_reassignment(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """Drop the removed replicas and elect the preferred leader once all added ones are in sync; None until then.

    It also waits while the remaining ISR is below the minimum for acks=all and the removed replicas still fill it.
    """
    members = dict(isr_members(record))
    target = target_replicas(record)
    staying = [b for b in record.isr if b in target and facts.is_present(b, members[b])]
    if not staying or any(broker not in staying for broker in record.adding):
        return None
    enough = min(facts.min_insync, len(target))
    if len(staying) < enough and any(b in record.removing and facts.is_present(b, e) for b, e in members.items()):
        return None
    new = with_replicas(record, target, [], [], facts)
    new = leaders.elect_preferred(new, facts) or new
    check_transition(record, new)
    return new


def with_replicas(
    record: PartitionRecord, replicas: list[int], adding: list[int], removing: list[int], facts: ReplicaFacts
) -> PartitionRecord:
    """Return the record with other replicas; removed ones leave the ISR and the leadership. Raises
    `RefusedReassignment` if the ISR would be empty."""
    members = [(broker, epoch) for broker, epoch in isr_members(record) if broker in replicas]
    if not members:
        raise RefusedReassignment(
            f"None of the replicas {replicas} is in sync, only {record.isr}; all records would be lost."
        )
    isr = [broker for broker, _ in members]
    leader = record.leader
    if leader not in isr:
        present = [broker for broker, epoch in members if facts.is_present(broker, epoch)]
        leader = choose_leader(replicas, present, facts) if present else NO_LEADER
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
    return with_leader(new, leader)
