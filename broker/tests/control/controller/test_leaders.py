"""Leaders and ISRs, from every possible state of a record and its brokers."""

from __future__ import annotations

from dataclasses import replace as with_facts

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.control.controller import leaders, reassign
from penstock.control.controller.leaders import NO_LEADER, ReplicaFacts
from penstock.control.members import ReplicaCondition
from penstock.state.records import PartitionRecord

COMPLETE, MAY_BE_INCOMPLETE, REPLACED = (
    ReplicaCondition.COMPLETE,
    ReplicaCondition.MAY_BE_INCOMPLETE,
    ReplicaCondition.REPLACED,
)


def facts_of(
    epochs: dict[int, int], replica_condition: dict[int, ReplicaCondition] | None = None, **more
) -> ReplicaFacts:
    known = replica_condition or {}
    return ReplicaFacts(epochs, 100, replica_condition=lambda broker, epoch: known.get(broker, REPLACED), **more)


def record_of(isr: list[int], leader: int | None = None, **more) -> PartitionRecord:
    """Return a record with replicas 1, 2, 3, each in sync since epoch 10 + its id."""
    values = {
        "replicas": [1, 2, 3],
        "leader": isr[0] if leader is None else leader,
        "leader_epoch": 5,
        "isr": isr,
        "isr_epochs": [10 + broker for broker in isr],
        **more,
    }
    return PartitionRecord(**values)


ALL = {1: 11, 2: 12, 3: 13}


def without(*brokers: int) -> dict[int, int]:
    return {broker: epoch for broker, epoch in ALL.items() if broker not in brokers}


def test_where_all_are_there_nothing_changes() -> None:
    assert leaders.reconcile(record_of([1, 2, 3]), facts_of(ALL)) is None


def test_a_leader_that_died_is_followed_by_the_first_replica_in_sync() -> None:
    new = leaders.reconcile(record_of([3, 2, 1], leader=1), facts_of(without(1)))
    assert new is not None
    assert (new.leader, new.leader_epoch, new.isr, new.isr_epochs) == (2, 6, [3, 2], [13, 12])


def test_a_follower_that_died_leaves_the_isr_and_the_leader_epoch_stays() -> None:
    new = leaders.reconcile(record_of([1, 2, 3]), facts_of(without(3)))
    assert new is not None
    assert (new.leader, new.leader_epoch, new.isr) == (1, 5, [1, 2])


def test_a_leader_that_was_restarted_is_another_incarnation_and_does_not_go_on_leading() -> None:
    new = leaders.reconcile(record_of([1, 2, 3]), facts_of({**ALL, 1: 50}, {1: COMPLETE}))
    assert new is not None
    assert (new.leader, new.leader_epoch, new.isr) == (2, 6, [2, 3])


def test_an_epoch_that_is_newer_than_what_is_known_of_brokers_is_not_taken_for_an_old_one() -> None:
    record = record_of([1, 2], isr_epochs=[11, 101])
    assert leaders.reconcile(record, facts_of(without(2))) is None


def test_replicas_that_drain_or_leave_lead_only_where_no_other_can() -> None:
    avoided = facts_of(without(1), avoided=frozenset({2}))
    assert leaders.reconcile(record_of([1, 2, 3]), avoided).leader == 3
    assert leaders.reconcile(record_of([1, 2]), avoided).leader == 2


def test_the_last_member_stays_in_the_isr_without_a_leader() -> None:
    new = leaders.reconcile(record_of([2]), facts_of(without(2)))
    assert new is not None
    assert (new.leader, new.leader_epoch, new.isr, new.isr_epochs) == (NO_LEADER, 6, [2], [12])
    assert new.last_isr == [2]
    assert leaders.reconcile(new, facts_of(without(2))) is None


def test_the_last_member_that_has_everything_leads_again_in_a_new_epoch() -> None:
    waiting = record_of([2], leader=NO_LEADER, last_isr=[2])
    new = leaders.reconcile(waiting, facts_of({**ALL, 2: 50}, {2: COMPLETE}))
    assert new is not None
    assert (new.leader, new.leader_epoch, new.isr, new.isr_epochs, new.last_isr) == (2, 6, [2], [50], [])


@pytest.mark.parametrize("replica_condition", [MAY_BE_INCOMPLETE, REPLACED])
def test_a_last_member_that_may_have_lost_something_does_not_lead_by_itself(
    replica_condition: ReplicaCondition,
) -> None:
    waiting = record_of([2], leader=NO_LEADER, last_isr=[2, 3])
    assert leaders.reconcile(waiting, facts_of({1: 11, 2: 50}, {2: replica_condition})) is None


def test_the_highest_leads_when_each_of_the_last_isr_is_back_and_has_told() -> None:
    waiting = record_of([2], leader=NO_LEADER, last_isr=[2, 3], eligible=[3])
    facts = facts_of({1: 11, 2: 50, 3: 51}, {2: MAY_BE_INCOMPLETE, 3: MAY_BE_INCOMPLETE})
    assert leaders.waits_for_log_ends(waiting, facts)
    assert leaders.elect_highest(waiting, facts, {2: (4, 90)}) is None
    assert leaders.elect_highest(waiting, facts, {2: (4, 90), 3: (5, 10)}).leader == 3
    assert leaders.elect_highest(waiting, facts, {2: (5, 90), 3: (5, 10)}).leader == 2
    assert not leaders.waits_for_log_ends(waiting, facts_of({2: 50}, {2: MAY_BE_INCOMPLETE}))
    replaced = facts_of({2: 50, 3: 51}, {2: MAY_BE_INCOMPLETE, 3: REPLACED})
    assert not leaders.waits_for_log_ends(waiting, replaced)
    assert leaders.elect_highest(waiting, replaced, {2: (4, 90), 3: (0, 0)}) is None


def test_who_leaves_an_isr_that_is_too_small_to_commit_stays_eligible() -> None:
    facts = facts_of({1: 11}, min_insync=2)
    new = leaders.reconcile(record_of([1, 2, 3]), facts)
    assert new is not None
    assert (new.isr, new.eligible) == ([1], [2, 3])
    enough = leaders.reconcile(record_of([1, 2, 3]), facts_of(without(3), min_insync=2))
    assert enough.eligible == []


def test_an_eligible_replica_leads_where_the_isr_is_gone() -> None:
    record = record_of([1], eligible=[3])
    new = leaders.reconcile(record, facts_of({2: 12, 3: 60}, {3: COMPLETE}, min_insync=2))
    assert new is not None
    assert (new.leader, new.isr, new.isr_epochs, new.eligible) == (3, [3], [60], [1])


def test_who_is_eligible_ends_with_a_lowered_min_insync_while_somebody_leads_and_not_while_nobody_does() -> None:
    led = record_of([1], eligible=[2, 3])
    back = {"epochs": without(1), "replica_condition": {2: COMPLETE, 3: COMPLETE}}
    new = leaders.reconcile(led, facts_of(**back, min_insync=1))
    assert (new.leader, new.isr, new.eligible, new.last_isr) == (NO_LEADER, [1], [], [1])
    assert leaders.reconcile(new, facts_of(**back, min_insync=2)) is None
    waiting = record_of([1], leader=NO_LEADER, eligible=[2, 3], last_isr=[1, 2, 3])
    assert leaders.reconcile(waiting, facts_of(**back, min_insync=1)).leader == 2


def test_an_eligible_replica_that_came_back_with_less_is_eligible_no_longer() -> None:
    record = record_of([1], eligible=[2, 3])
    new = leaders.reconcile(record, facts_of({1: 11, 3: 60}, {3: MAY_BE_INCOMPLETE}, min_insync=2))
    assert new is not None
    assert new.eligible == [2]


def test_an_unclean_election_happens_only_where_it_is_allowed_and_prefers_who_had_the_most() -> None:
    record = record_of([2], leader=NO_LEADER, last_isr=[2])
    assert leaders.reconcile(record, facts_of({1: 11, 3: 13})) is None
    new = leaders.reconcile(record, facts_of({1: 11, 3: 13}, unclean_allowed=True))
    assert (new.leader, new.leader_epoch, new.isr, new.last_isr) == (1, 6, [1], [])
    came_back = facts_of({1: 11, 2: 50}, {2: MAY_BE_INCOMPLETE}, unclean_allowed=True)
    assert leaders.reconcile(record, came_back).leader == 2


def test_a_leadership_is_handed_over_with_the_isr_as_it_is() -> None:
    facts = facts_of(ALL, avoided=frozenset({1}))
    new = leaders.hand_over_leadership(record_of([1, 2, 3]), facts)
    assert (new.leader, new.leader_epoch, new.isr) == (2, 6, [1, 2, 3])
    assert leaders.hand_over_leadership(record_of([1]), facts) is None
    assert leaders.hand_over_leadership(record_of([1, 2, 3], leader=2), facts) is None


def test_the_preferred_replica_leads_again_when_it_is_in_sync() -> None:
    assert leaders.elect_preferred(record_of([1, 2], leader=2), facts_of(ALL)).leader == 1
    assert leaders.elect_preferred(record_of([2, 3], leader=2), facts_of(ALL)) is None
    assert leaders.elect_preferred(record_of([1, 2], leader=2), facts_of({**ALL, 1: 50})) is None
    assert leaders.elect_preferred(record_of([1, 2], leader=2), facts_of(ALL, avoided=frozenset({1}))) is None


def test_a_record_without_epochs_belongs_to_whoever_is_registered() -> None:
    """A broker without a cluster writes records without epochs."""
    assert leaders.reconcile(record_of([1], isr_epochs=[]), facts_of({1: 99})) is None


@st.composite
def situations(draw):
    """Draw a record of at most five replicas and any state of the brokers."""
    replicas = draw(st.permutations(range(5)))[: draw(st.integers(1, 5))]
    isr = draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    outside = [broker for broker in replicas if broker not in isr]
    epochs = {broker: 10 + broker for broker in range(5)}
    record = PartitionRecord(
        replicas=replicas,
        leader=draw(st.sampled_from([*isr, NO_LEADER])),
        leader_epoch=draw(st.integers(0, 3)),
        isr=isr,
        isr_epochs=[epochs[broker] for broker in isr],
        eligible=draw(st.lists(st.sampled_from(outside), unique=True)) if outside else [],
        last_isr=draw(st.lists(st.sampled_from(replicas), unique=True)),
    )
    registered = draw(st.sets(st.integers(0, 5)))
    restarted = draw(st.sets(st.integers(0, 5)))
    conditions = draw(st.fixed_dictionaries({b: st.sampled_from(ReplicaCondition) for b in range(6)}))
    facts = ReplicaFacts(
        {broker: (90 if broker in restarted else 10 + broker) for broker in registered},
        100,
        frozenset(draw(st.sets(st.integers(0, 5)))),
        lambda broker, epoch: conditions[broker] if epoch != 10 + broker or broker in restarted else COMPLETE,
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )
    return record, facts, conditions


def holds(old: PartitionRecord, new: PartitionRecord) -> None:
    assert new.isr
    assert len(new.isr_epochs) == len(new.isr)
    assert new.leader == NO_LEADER or new.leader in new.isr
    assert set(new.isr) <= set(new.replicas)
    assert not set(new.eligible) & set(new.isr)
    assert new.leader_epoch >= old.leader_epoch
    if new.leader != old.leader:
        assert new.leader_epoch > old.leader_epoch


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 6, deadline=None)
@given(situation=situations())
def test_whatever_brokers_do_the_record_stays_possible_and_comes_to_rest(situation) -> None:
    record, facts, _ = situation
    new = leaders.reconcile(record, facts)
    if new is None:
        return
    holds(record, new)
    assert new.replicas == record.replicas
    again = leaders.reconcile(new, facts)
    assert again is None, "what was settled is settled"


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 6, deadline=None)
@given(situation=situations())
def test_nobody_leads_who_may_lack_something_unless_the_topic_allows_it(situation) -> None:
    record, facts, conditions = situation
    new = leaders.reconcile(record, with_facts(facts, unclean_allowed=False)) or record
    if new.leader == NO_LEADER or new.leader == record.leader:
        return
    in_sync = dict(leaders.isr_members(record))
    stayed = facts.is_present(new.leader, in_sync.get(new.leader, -1))
    trusted = conditions[new.leader] is COMPLETE or facts.epochs.get(new.leader) == 10 + new.leader
    assert stayed or (new.leader in {*record.isr, *record.eligible} and trusted)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 6, deadline=None)
@given(situation=situations(), target=st.lists(st.integers(0, 5), min_size=1, unique=True))
def test_a_reassignment_keeps_the_isr_within_the_replicas_at_each_step(situation, target) -> None:
    record, facts, _ = situation
    try:
        new = reassign.start_reassignment(record, target, facts)
    except reassign.RefusedReassignment:
        return
    if new is None:
        return
    holds(record, new)
    if new.adding or new.removing:
        assert reassign.target_replicas(new) == target
        assert set(reassign.original_replicas(new)) == set(reassign.original_replicas(record))
        try:
            back = reassign.cancel_reassignment(new, facts)
        except reassign.RefusedReassignment:
            pass
        else:
            holds(new, back)
            assert set(back.replicas) == set(reassign.original_replicas(record))
        all_in_sync = replace(
            new,
            isr=[b for b in new.replicas if b in facts.epochs],
            isr_epochs=[facts.epochs[b] for b in new.replicas if b in facts.epochs],
        )
        has_leader = all_in_sync.isr and all_in_sync.leader in all_in_sync.isr
        if has_leader and (end := reassign.complete_reassignment(all_in_sync, facts)):
            holds(all_in_sync, end)
            assert end.replicas == target
            assert not end.adding
            assert not end.removing


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"isr": [1, 2, 3], "isr_epochs": [11, 12, 13]}, "the controller would extend the ISR"),
        ({"isr": [3, 1], "isr_epochs": [13, 11], "leader": 3, "leader_epoch": 6}, "would not lead alone"),
        ({"leader": 2}, "the leader epoch would change by 0"),
        ({"leader_epoch": 4}, "the leader epoch would change by -1"),
        ({"leader": 3}, "leader 3 is not in isr"),
    ],
)
def test_what_the_controller_never_writes(changes: dict[str, object], reason: str) -> None:
    record = record_of([1, 2])
    with pytest.raises(AssertionError, match=reason):
        leaders.check_transition(record, replace(record, **changes))
