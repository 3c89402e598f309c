"""Who leads a partition, and who is in sync, when brokers come and go: pure functions from a record to the next one.

The controller calls these for each partition that an event may concern, and writes what comes out on the condition
that nothing changed meanwhile; so each looks at the whole state (level-triggered), and None means that all is well.

A replica in the ISR is (broker, epoch). It counts as present while that very incarnation is registered. Whoever comes
back is another incarnation: it is admitted again by the leader, unless nobody in sync is left to lead. Then a replica
that has all that counted leads in a new leader epoch, alone in sync, and if there is none, the partition waits (KIP-966
and, for what may be lost with a page cache, stricter).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from penstock.control.members import Standing
from penstock.state.records import PartitionRecord
from penstock.state.view import PartitionView

NO_LEADER = -1
UNKNOWN_EPOCH = 0
"""In place of an ISR epoch where there is none: of whichever incarnation is registered."""

JudgeStanding = Callable[[int, int | None], Standing]
"""(broker, the epoch in which it counted, None if unknown) → what is left of the partition there."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What is true of brokers and of a partition's settings while its record is looked at."""

    epochs: Mapping[int, int]
    """The brokers that are registered, and the epoch of each."""
    revision: int
    """Of `epochs`: an epoch after it belongs to a registration that is not known yet, so not to one that ended."""
    avoided: frozenset[int] = frozenset()
    """Brokers that lead only where no other can: draining, or leaving."""
    standing: JudgeStanding = field(default=lambda broker, epoch: Standing.REPLACED)
    min_insync: int = 1
    """As it takes effect: at most the number of replicas."""
    unclean_allowed: bool = False

    def is_present(self, broker: int, epoch: int) -> bool:
        """Whether a member of an ISR is still the incarnation that entered it."""
        if epoch > self.revision:
            return True
        known = self.epochs.get(broker)
        return known is not None and (known == epoch or epoch == UNKNOWN_EPOCH)


def record_of(view: PartitionView) -> PartitionRecord:
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
    """The ISR as (broker, epoch); where there is not one epoch for each member, none of them is known."""
    epochs = record.isr_epochs
    if len(epochs) != len(record.isr):
        epochs = [UNKNOWN_EPOCH] * len(record.isr)
    return list(zip(record.isr, epochs, strict=True))


def is_settled(view: PartitionView, facts: ReplicaFacts) -> bool:
    """Whether brokers give no reason to change a partition; quick, and right for nearly all that are asked about."""
    if view.leader not in view.isr or view.eligible:
        return False
    return all(facts.is_present(broker, epoch) for broker, epoch in isr_members(view))


def settle(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """The record as the brokers that are there make it; None where it is right as it is.

    Members of the ISR that are not present leave it, unless none is; a leader that is not present is replaced.
    """
    members = isr_members(record)
    present = [(broker, epoch) for broker, epoch in members if facts.is_present(broker, epoch)]
    new = with_present(record, present, facts) if present else without_present(record, facts)
    check(record, new)
    return None if new == record else new


def with_present(record: PartitionRecord, present: Sequence[tuple[int, int]], facts: ReplicaFacts) -> PartitionRecord:
    """As `settle`, where somebody of the ISR is there."""
    isr = [broker for broker, _ in present]
    leader = record.leader if record.leader in isr else choose(record.replicas, isr, facts)
    known_epochs = [epoch for _, epoch in present] if record.isr_epochs else []
    return led_by(
        replace(
            record,
            isr=isr,
            isr_epochs=known_epochs,
            eligible=still_eligible(record, isr, facts),
            last_isr=[],
        ),
        leader,
    )


def still_eligible(record: PartitionRecord, isr: Sequence[int], facts: ReplicaFacts) -> list[int]:
    """Replicas out of the ISR that have all that is committed: nothing is, while the ISR is too small (KIP-966).

    One that came back with less than it had is none of them any more.
    """
    if len(isr) >= facts.min_insync:
        return []
    epochs = dict(isr_members(record))
    eligible = []
    for broker in dict.fromkeys([*record.eligible, *record.isr]):
        if broker in isr or broker not in record.replicas:
            continue
        is_back = broker in facts.epochs
        if not is_back or facts.standing(broker, epochs.get(broker) or None) is Standing.KEEPS:
            eligible.append(broker)
    return eligible


def without_present(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord:
    """As `settle`, where nobody of the ISR is there as it was: the last replica."""
    epochs = dict(isr_members(record))
    # Under a leader with enough in sync, more was committed than the eligible have: min.insync.replicas was lowered.
    was_enough = record.leader != NO_LEADER and len(record.isr) >= facts.min_insync
    had_all = [] if was_enough else record.eligible
    known = [broker for broker in record.replicas if broker in epochs or broker in had_all]
    back = {broker: facts.standing(broker, epochs.get(broker) or None) for broker in known if broker in facts.epochs}
    complete = [broker for broker, standing in back.items() if standing is Standing.KEEPS]
    if complete:
        leader = choose(record.replicas, [b for b in complete if b in epochs] or complete, facts)
        others = [b for b in known if b != leader and back.get(b, Standing.KEEPS) is Standing.KEEPS]
        return alone(record, leader, facts, others if facts.min_insync > 1 else [])
    if facts.unclean_allowed and (new := unclean(record, facts)) is not None:
        return new
    eligible = [broker for broker in had_all if back.get(broker, Standing.KEEPS) is Standing.KEEPS]
    last_isr = record.last_isr or known
    return led_by(replace(record, eligible=eligible, last_isr=last_isr), NO_LEADER)


def waits_for_log_ends(record: PartitionRecord, facts: ReplicaFacts) -> bool:
    """Whether all that can be asked is there: each of the last ISR is back, with the directory that it had."""
    if record.leader != NO_LEADER or not record.last_isr:
        return False
    epochs = dict(isr_members(record))
    return all(
        broker in facts.epochs
        and broker in record.replicas
        and facts.standing(broker, epochs.get(broker) or None) is not Standing.REPLACED
        for broker in record.last_isr
    )


def with_highest(
    record: PartitionRecord, facts: ReplicaFacts, ends: Mapping[int, tuple[int, int]]
) -> PartitionRecord | None:
    """Led by the member of the last ISR with the highest (last epoch, log end), once all of them have told theirs."""
    if not waits_for_log_ends(record, facts) or any(broker not in ends for broker in record.last_isr):
        return None
    ranked = sorted(record.last_isr, key=record.replicas.index)
    leader = max(ranked, key=ends.__getitem__)
    new = alone(record, leader, facts, [])
    check(record, new)
    return new


def unclean(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """Led by whoever is there, though acknowledged records may be lost: only where the topic allows it, or by request.

    Those that had the most come first. None where nobody is there, or an ISR member is present and no loss is needed.
    """
    if any(facts.is_present(broker, epoch) for broker, epoch in isr_members(record)):
        return None
    there = [broker for broker in record.replicas if broker in facts.epochs]
    if not there:
        return None
    epochs = dict(isr_members(record))
    knew = {*epochs, *record.eligible, *record.last_isr}
    kept = [b for b in there if b in knew and facts.standing(b, epochs.get(b) or None) is not Standing.REPLACED]
    # A replica that was not in sync has something; a directory that was replaced has nothing.
    rest = [b for b in there if b not in knew]
    return alone(record, choose(record.replicas, kept or rest or there, facts), facts, [])


def alone(record: PartitionRecord, leader: int, facts: ReplicaFacts, eligible: list[int]) -> PartitionRecord:
    """Led by `leader` in its present incarnation, in sync alone; always in a new leader epoch."""
    return replace(
        record,
        leader=leader,
        leader_epoch=record.leader_epoch + 1,
        isr=[leader],
        isr_epochs=[facts.epochs[leader]],
        eligible=eligible,
        last_isr=[],
    )


def choose(replicas: Sequence[int], candidates: Iterable[int], facts: ReplicaFacts) -> int:
    """The first in the order of preference, before all that are better avoided."""
    ordered = sorted(candidates, key=replicas.index)
    assert ordered, "a leader is chosen among those who can lead"
    return next((broker for broker in ordered if broker not in facts.avoided), ordered[0])


def led_by(record: PartitionRecord, leader: int) -> PartitionRecord:
    """With another leader the leader epoch rises."""
    if leader == record.leader:
        return record
    return replace(record, leader=leader, leader_epoch=record.leader_epoch + 1)


def handed_over(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """Led by another where the leader is about to stop and another in sync may lead; the ISR stays as it is."""
    others = [b for b, epoch in isr_members(record) if b not in facts.avoided and facts.is_present(b, epoch)]
    if record.leader not in facts.avoided or not others:
        return None
    new = led_by(record, choose(record.replicas, others, facts))
    check(record, new)
    return new


def preferred(record: PartitionRecord, facts: ReplicaFacts) -> PartitionRecord | None:
    """Led by its first replica, where that is in sync, there, and not better avoided; None where nothing changes."""
    first = record.replicas[0]
    epoch = dict(isr_members(record)).get(first)
    if record.leader == first or epoch is None or first in facts.avoided or not facts.is_present(first, epoch):
        return None
    new = led_by(record, first)
    check(record, new)
    return new


def check(old: PartitionRecord, new: PartitionRecord) -> None:
    """What must be true of any change, whoever asked for it."""
    assert new.isr, "an ISR is never written empty"
    assert not new.isr_epochs or len(new.isr_epochs) == len(new.isr), "an ISR has the epoch of each member"
    assert new.leader == NO_LEADER or new.leader in new.isr, f"the leader {new.leader} is in sync: {new.isr}"
    assert set(new.isr) <= set(new.replicas), f"in sync are replicas: {new.isr} of {new.replicas}"
    assert new.leader == old.leader or new.leader_epoch > old.leader_epoch, "another leader has a new leader epoch"
    assert new.leader_epoch >= old.leader_epoch, "leader epochs rise"
