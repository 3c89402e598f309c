"""Leader election and ISR maintenance as pure functions from a partition's record to the next one.

The controller calls them for each partition that an event may affect, and writes the result on the condition that the
record has not changed. They are level-triggered: each considers the whole state, and None means no change.

An ISR member is (broker, epoch). It is present while that incarnation is registered. A broker that comes back is
another incarnation, which the leader admits again. If no ISR member is present, a replica that has all committed data
leads alone in a new leader epoch; if there is none, the partition waits (KIP-966, and stricter about data that was only
in the page cache).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.control.members import ReplicaCondition
from penstock.state.records import PartitionRecord
from penstock.state.view import PartitionView

NO_LEADER = -1
UNKNOWN_EPOCH = 0
"""ISR epoch that matches any registered incarnation."""

ReplicaConditionOf = Callable[[int, int | None], ReplicaCondition]
"""(broker, epoch in which it was in sync, None if unknown) → condition of its replica."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """The state of brokers and the partition's settings at the time of a decision."""

    epochs: Mapping[int, int]
    """Broker epochs of the registered brokers."""
    revision: int
    """Revision of `epochs`. A later epoch belongs to a registration that is not known yet, not to an ended one."""
    avoided: frozenset[int] = frozenset()
    """Brokers that lead only if no other can: draining or leaving."""
    replica_condition: ReplicaConditionOf = field(default=lambda broker, epoch: ReplicaCondition.REPLACED)
    min_insync: int = 1
    """The effective minimum, at most the number of replicas."""
    unclean_allowed: bool = False

    def is_present(self, broker: int, epoch: int) -> bool:
        """Return whether an ISR member is still the incarnation that joined the ISR."""
        if epoch > self.revision:
            return True
        known = self.epochs.get(broker)
        return known is not None and (known == epoch or epoch == UNKNOWN_EPOCH)


def record_of(view: PartitionView) -> PartitionRecord:
    """Return the stored form of a partition view."""
    return PartitionRecord(
        replicas=view.replicas,
        leader=view.leader,
        leader_epoch=view.leader_epoch,
        isr=view.isr,
        adding=view.adding,
        removing=view.removing,
        isr_epochs=view.isr_epochs,
        eligible=view.eligible,
        last_isr=view.last_isr,
    )


def isr_members(record: PartitionRecord | PartitionView) -> list[tuple[int, int]]:
    """Return the ISR as (broker, epoch); all epochs are unknown if their number does not match."""
    epochs = record.isr_epochs
    if len(epochs) != len(record.isr):
        epochs = [UNKNOWN_EPOCH] * len(record.isr)
    return list(zip(record.isr, epochs, strict=True))


def is_stable(view: PartitionView, facts: ReplicaFacts) -> bool:
    """Return whether the brokers give no reason to change a partition. A fast check that is true for most
    partitions."""
    if view.leader not in view.isr or view.eligible:
        return False
    return all(facts.is_present(broker, epoch) for broker, epoch in isr_members(view))


def reconcile(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """Return the record for the registered brokers; None if it needs no change.

    ISR members that are not present leave the ISR, unless none is present. A leader that is not present is replaced.
    """
    members = isr_members(record)
    present = [(broker, epoch) for broker, epoch in members if facts.is_present(broker, epoch)]
    new = reconcile_with_present(record, present, facts) if present else reconcile_without_present(record, facts)
    check_transition(record, new)
    return None if new == record else new


def reconcile_with_present(
    record: PartitionRecord, present: Sequence[tuple[int, int]], facts: ReplicaFacts
) -> PartitionRecord:
    """Implement `reconcile` with at least one ISR member present."""
    isr = [broker for broker, _ in present]
    leader = record.leader if record.leader in isr else choose_leader(record.replicas, isr, facts)
    known_epochs = [epoch for _, epoch in present] if record.isr_epochs else []
    return with_leader(
        replace(
            record,
            isr=isr,
            isr_epochs=known_epochs,
            eligible=remaining_eligible(record, isr, facts),
            last_isr=[],
        ),
        leader,
    )


def remaining_eligible(record: PartitionRecord, isr: Sequence[int], facts: ReplicaFacts) -> list[int]:
    """Return the replicas outside the ISR that have all committed data (KIP-966): nothing is committed while the ISR is
    below the minimum. A replica that came back incomplete is not one."""
    if len(isr) >= facts.min_insync:
        return []
    epochs = dict(isr_members(record))
    eligible = []
    for broker in dict.fromkeys([*record.eligible, *record.isr]):
        if broker in isr or broker not in record.replicas:
            continue
        is_back = broker in facts.epochs
        if not is_back or facts.replica_condition(broker, epochs.get(broker) or None) is ReplicaCondition.COMPLETE:
            eligible.append(broker)
    return eligible


def reconcile_without_present(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord:
    """Implement `reconcile` with no ISR member present."""
    epochs = dict(isr_members(record))
    # With a leader and enough in sync, more was committed than the eligible have: min.insync.replicas was lowered.
    was_enough = record.leader != NO_LEADER and len(record.isr) >= facts.min_insync
    had_all = [] if was_enough else record.eligible
    known = [broker for broker in record.replicas if broker in epochs or broker in had_all]
    back = {
        broker: facts.replica_condition(broker, epochs.get(broker) or None)
        for broker in known
        if broker in facts.epochs
    }
    complete = [broker for broker, condition in back.items() if condition is ReplicaCondition.COMPLETE]
    if complete:
        leader = choose_leader(record.replicas, [b for b in complete if b in epochs] or complete, facts)
        others = [
            b for b in known if b != leader and back.get(b, ReplicaCondition.COMPLETE) is ReplicaCondition.COMPLETE
        ]
        return with_sole_leader(record, leader, facts, others if facts.min_insync > 1 else [])
    if facts.unclean_allowed and (new := elect_unclean(record, facts)) is not None:
        return new
    eligible = [
        broker for broker in had_all if back.get(broker, ReplicaCondition.COMPLETE) is ReplicaCondition.COMPLETE
    ]
    last_isr = record.last_isr or known
    return with_leader(replace(record, eligible=eligible, last_isr=last_isr), NO_LEADER)


def waits_for_log_ends(record: PartitionRecord, facts: ReplicaFacts) -> bool:
    """Return whether every member of the last ISR is back with its directory, so that their logs can be compared."""
    if record.leader != NO_LEADER or not record.last_isr:
        return False
    epochs = dict(isr_members(record))
    return all(
        broker in facts.epochs
        and broker in record.replicas
        and facts.replica_condition(broker, epochs.get(broker) or None) is not ReplicaCondition.REPLACED
        for broker in record.last_isr
    )


def elect_highest(
    record: PartitionRecord, facts: ReplicaFacts, ends: Mapping[int, tuple[int, int]]
) -> PartitionRecord | None:
    """Elect the member of the last ISR with the highest (last epoch, log end), once `ends` has all of them."""
    if not waits_for_log_ends(record, facts) or any(broker not in ends for broker in record.last_isr):
        return None
    ranked = sorted(record.last_isr, key=record.replicas.index)
    leader = max(ranked, key=ends.__getitem__)
    new = with_sole_leader(record, leader, facts, [])
    check_transition(record, new)
    return new


def elect_unclean(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """Elect a registered replica although acknowledged records may be lost, preferring those that had the most.

    Only if the topic allows it, or on request. None if no replica is registered, or an ISR member is present.
    """
    if any(facts.is_present(broker, epoch) for broker, epoch in isr_members(record)):
        return None
    registered = [broker for broker in record.replicas if broker in facts.epochs]
    if not registered:
        return None
    epochs = dict(isr_members(record))
    knew = {*epochs, *record.eligible, *record.last_isr}
    kept = [
        b
        for b in registered
        if b in knew and facts.replica_condition(b, epochs.get(b) or None) is not ReplicaCondition.REPLACED
    ]
    # A replica that was not in sync has some data; a replaced directory has none.
    rest = [b for b in registered if b not in knew]
    return with_sole_leader(record, choose_leader(record.replicas, kept or rest or registered, facts), facts, [])


def with_sole_leader(record: PartitionRecord, leader: int, facts: ReplicaFacts, eligible: list[int]) -> PartitionRecord:
    """Return the record led by `leader` as the only ISR member, in a new leader epoch."""
    return replace(
        record,
        leader=leader,
        leader_epoch=record.leader_epoch + 1,
        isr=[leader],
        isr_epochs=[facts.epochs[leader]],
        eligible=eligible,
        last_isr=[],
    )


def choose_leader(replicas: Sequence[int], candidates: Iterable[int], facts: ReplicaFacts) -> int:
    """Return the first candidate in the order of replicas, avoided brokers last."""
    ordered = sorted(candidates, key=replicas.index)
    assert ordered, "there is a candidate"
    return next((broker for broker in ordered if broker not in facts.avoided), ordered[0])


def with_leader(record: PartitionRecord, leader: int) -> PartitionRecord:
    """Return the record led by `leader`; a change of leader increments the leader epoch."""
    if leader == record.leader:
        return record
    return replace(record, leader=leader, leader_epoch=record.leader_epoch + 1)


def hand_over_leadership(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """Replace a leader that is about to stop by another present ISR member; the ISR stays. None without change."""
    others = [b for b, epoch in isr_members(record) if b not in facts.avoided and facts.is_present(b, epoch)]
    if record.leader not in facts.avoided or not others:
        return None
    new = with_leader(record, choose_leader(record.replicas, others, facts))
    check_transition(record, new)
    return new


def elect_preferred(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """Elect the first replica if it is in sync, present and not avoided; None without change."""
    first = record.replicas[0]
    epoch = dict(isr_members(record)).get(first)
    if record.leader == first or epoch is None or first in facts.avoided or not facts.is_present(first, epoch):
        return None
    new = with_leader(record, first)
    check_transition(record, new)
    return new


def check_transition(old: PartitionRecord, new: PartitionRecord) -> None:
    """Assert the invariants of any change of a record by the controller: only a leader adds members to its ISR."""
    contradiction = new.contradiction()
    assert contradiction is None, contradiction
    assert new.isr, f"the ISR would be empty: {new}"
    if new.leader in (NO_LEADER, *old.isr):
        assert set(new.isr) <= set(old.isr), f"the controller would extend the ISR {old.isr} to {new.isr}"
    else:
        assert new.isr == [new.leader], f"a leader outside of the ISR {old.isr} would not lead alone: {new}"
    rise = new.leader_epoch - old.leader_epoch
    assert rise > 0 if new.leader != old.leader else rise >= 0, f"the leader epoch would change by {rise}: {new}"
