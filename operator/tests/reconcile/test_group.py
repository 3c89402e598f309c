"""ConsumerGroup: desired × observed → actions and status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from penstock_operator.model.common import ClusterRef, Condition, ObjectMeta
from penstock_operator.model.group import (
    ConsumerGroup,
    ConsumerGroupSpec,
    ConsumerGroupStatus,
    GroupDeadLetters,
    OffsetReset,
    ResetStatus,
    StartingOffsets,
)
from penstock_operator.ports.brokers import (
    DELETION_POLICY,
    OWNER,
    RESET_ID,
    ObservedDeadLetters,
    ObservedGroupState,
    ObservedOffset,
)
from penstock_operator.reconcile.group.names import (
    discovered,
    hashed_name,
    is_discovered,
    is_taken_over,
    plain_name,
    winners,
)
from penstock_operator.reconcile.group.reconcile import coarse_seconds, reconcile
from penstock_operator.reconcile.group.reset import offset_queries, range_partitions, topics_to_describe
from penstock_operator.reconcile.group.types import CommitOffsets, GroupSettingsPatch, ObservedGroup

AT, LATER = "2026-11-21T08:00:00Z", "2026-11-21T09:00:00Z"


def wanted(status: ConsumerGroupStatus | None = None, **spec: Any) -> ConsumerGroup:
    return ConsumerGroup(
        metadata=ObjectMeta(name="billing", namespace="ns", uid="u1", generation=3),
        spec=ConsumerGroupSpec(cluster_ref=ClusterRef(name="c"), **spec),
        status=status or ConsumerGroupStatus(),
    )


def state(
    *offsets: ObservedOffset, members: int = 0, reported: str | None = None, **settings: str
) -> ObservedGroupState:
    names = {"owner": OWNER, "policy": DELETION_POLICY, "reset": RESET_ID}
    shown = reported or ("Stable" if members else "Empty")
    return ObservedGroupState(
        "billing", shown, members, offsets, {names[key]: value for key, value in settings.items()}
    )


def at(
    topic: str, partition: int, committed: int, end: int, lag_ms: int | None = None, start: int = 0
) -> ObservedOffset:
    return ObservedOffset(topic, partition, committed, max(0, end - max(committed, start)), lag_ms)


HERE = (at("orders", 0, 10, 15, 4_000), at("orders", 1, 5, 5, 0), at("bills", 0, 0, 2, None))
RESET, ANOTHER = OffsetReset(id="one", to="earliest"), OffsetReset(id="two", to="earliest")
LATEST_ORDERS = OffsetReset(id="r", to="latest", topics=("orders",))
PLAN = ResetStatus(id="one", phase="Planned", changes=("orders-0: 10 → 0",), total_changes=3)
PLANNED = ConsumerGroupStatus(reset=PLAN)
ANEW = ResetStatus(id="one", phase="Planned", changes=("orders-0: none → 9",), total_changes=1)
PLANNED_ANEW = ConsumerGroupStatus(reset=ANEW)
IDLE, BUSY = ObservedGroupState("billing", "Empty", 0, HERE), ObservedGroupState("billing", "Stable", 2, HERE)
EARLY = {("orders", 0): 0, ("orders", 1): 0, ("bills", 0): 0}


def conditions(status: ConsumerGroupStatus) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in status.conditions}


@pytest.mark.parametrize(
    ("seen", "ready", "healthy"),
    [
        (ObservedGroup(state(*HERE, members=2)), ("True", "Known"), ("True", "Consuming")),
        (ObservedGroup(state(*HERE)), ("True", "Known"), ("False", "NotConsuming")),
        (ObservedGroup(state(at("orders", 0, 5, 5))), ("True", "Known"), ("True", "CaughtUp")),
        (ObservedGroup(state(members=1, reported="PreparingRebalance")), ("True", "Known"), ("True", "Consuming")),
        (ObservedGroup(None), ("True", "Absent"), ("Unknown", "Absent")),
        (ObservedGroup(state(reported="Dead", owner="u1")), ("True", "Absent"), ("Unknown", "Absent")),
        (
            ObservedGroup(error="no broker answers"),
            ("Unknown", "BrokersUnreachable"),
            ("Unknown", "BrokersUnreachable"),
        ),
        (ObservedGroup(is_cluster_known=False), ("False", "ClusterNotFound"), ("Unknown", "ClusterNotFound")),
        (ObservedGroup(state(*HERE), winner="older"), ("False", "Conflict"), ("False", "NotConsuming")),
    ],
)
def test_conditions_say_what_is_seen(seen: ObservedGroup, ready: tuple[str, str], healthy: tuple[str, str]) -> None:
    plan = reconcile(wanted(), seen, AT)
    assert conditions(plan.status) == {"Ready": ready, "Healthy": healthy}
    assert plan.actions == ()
    assert {c.observed_generation for c in plan.status.conditions} == {3}
    assert plan.status.observed_generation == 3


def test_columns_are_sums_over_what_was_committed() -> None:
    status = reconcile(wanted(), ObservedGroup(state(*HERE, members=2)), AT).status
    assert (status.state, status.members, status.lag, status.lag_seconds) == ("Stable", 2, 7, 4)
    assert status.topic_names == "bills,orders"
    assert [(t.topic, t.partitions, t.lag, t.lag_seconds) for t in status.topics] == [
        ("bills", 1, 2, None),
        ("orders", 2, 5, 4),
    ]


def test_what_cannot_be_seen_keeps_its_numbers_and_says_so() -> None:
    before = reconcile(wanted(), ObservedGroup(state(*HERE)), AT).status
    after = reconcile(wanted(before), ObservedGroup(error="no broker answers"), LATER).status
    assert (after.lag, after.state) == (7, "Empty")
    assert conditions(after)["Ready"] == ("Unknown", "BrokersUnreachable")


def test_a_group_of_a_hibernated_cluster_keeps_its_numbers_and_says_why() -> None:
    before = reconcile(wanted(), ObservedGroup(state(*HERE)), AT).status
    hibernated = ObservedGroup(error='Cluster "c" is hibernated', is_hibernated=True)
    after = reconcile(wanted(before), hibernated, LATER).status
    assert (after.lag, after.state) == (7, "Empty")
    assert conditions(after)["Ready"] == ("Unknown", "ClusterHibernated")


def test_nothing_new_is_the_same_status_to_the_last_field() -> None:
    seen = ObservedGroup(state(*HERE, members=1))
    first = reconcile(wanted(), seen, AT).status
    assert reconcile(wanted(first), seen, LATER).status == first


def test_an_absent_group_stays_and_says_absent() -> None:
    status = reconcile(wanted(), ObservedGroup(None), AT).status
    assert (status.state, status.members, status.lag) == ("Absent", 0, None)


def test_ages_that_merely_grow_change_seldom() -> None:
    assert len({coarse_seconds(ms) for ms in range(0, 3_600_000, 1_000)}) < 140
    assert coarse_seconds(12_345) == 12


# Resets


def go(desired: ConsumerGroup, seen: ObservedGroup) -> Any:
    return reconcile(desired, seen, AT)


@pytest.mark.parametrize(
    ("desired", "seen", "phase", "says", "commits"),
    [
        # planned first, then applied
        (wanted(reset=RESET), ObservedGroup(IDLE, offsets=EARLY), "Planned", "", False),
        (wanted(PLANNED, reset=RESET), ObservedGroup(IDLE, offsets=EARLY), "Planned", "", True),
        # members
        (wanted(reset=RESET), ObservedGroup(BUSY, offsets=EARLY), "Refused", "2 members", False),
        (wanted(PLANNED, reset=RESET), ObservedGroup(BUSY, offsets=EARLY), "Refused", "when the group is empty", False),
        (
            wanted(PLANNED, reset=RESET),
            ObservedGroup(state(*HERE, reported="PreparingRebalance"), offsets=EARLY),
            "Refused",
            "members",
            False,
        ),
        # dry run
        (
            wanted(PLANNED, reset=OffsetReset(id="one", to="earliest", dry_run=True)),
            ObservedGroup(IDLE, offsets=EARLY),
            "Planned",
            "dryRun",
            False,
        ),
        (wanted(PLANNED, reset=RESET, paused=True), ObservedGroup(IDLE, offsets=EARLY), "Planned", "paused", False),
        # applied, according to the brokers or to the status
        (wanted(PLANNED, reset=RESET), ObservedGroup(state(*HERE, reset="one")), "Done", "", False),
        (wanted(reset=RESET), ObservedGroup(state(*HERE, reset="one")), "Done", "already done", False),
        (
            wanted(ConsumerGroupStatus(reset=ResetStatus(id="one", phase="Done")), reset=RESET),
            ObservedGroup(state(*HERE)),
            "Done",
            "",
            False,
        ),
        # another id is another request
        (wanted(PLANNED, reset=ANOTHER), ObservedGroup(IDLE, offsets=EARLY), "Planned", "", False),
        # nothing to set
        (wanted(reset=RESET), ObservedGroup(None), "Failed", "no offsets", False),
        (
            wanted(reset=OffsetReset(id="one", to="earliest", topics=("nope",))),
            ObservedGroup(state(*HERE)),
            "Failed",
            "topic nope does not exist",
            False,
        ),
        # a group that does not exist yet, with named topics
        (
            wanted(PLANNED_ANEW, reset=OffsetReset(id="one", to="latest", topics=("orders",))),
            ObservedGroup(None, partitions={"orders": 1}, offsets={("orders", 0): 9}),
            "Planned",
            "",
            True,
        ),
    ],
)  # fmt: skip
def test_a_reset_goes_through_its_phases(
    desired: ConsumerGroup, seen: ObservedGroup, phase: str, says: str, commits: bool
) -> None:
    plan = go(desired, seen)
    assert plan.status.reset.phase == phase
    assert says in plan.status.reset.message
    if commits:
        commit, settings = plan.actions
        assert isinstance(commit, CommitOffsets)
        assert commit.offsets == seen.offsets
        assert settings == GroupSettingsPatch({RESET_ID: desired.spec.reset.id}), "the id is written after the offsets"
    else:
        assert plan.actions == ()


@pytest.mark.parametrize(
    ("bills", "members", "phase", "actions"),
    [(1, 0, "Planned", 2), (1, 1, "Failed", 0), (0, 1, "Planned", 1), (7, 0, "Failed", 0)],
)
def test_a_commit_that_was_half_done_is_done_again_only_while_nobody_can_have_read(
    bills: int, members: int, phase: str, actions: int
) -> None:
    changes = ("bills-0: 1 → 0", "orders-0: 10 → 0")
    told = ConsumerGroupStatus(reset=ResetStatus(id="one", phase="Planned", changes=changes, total_changes=2))
    group = state(at("orders", 0, 0, 15), at("bills", 0, bills, 2), members=members)
    plan = go(wanted(told, reset=RESET), ObservedGroup(group, offsets={("orders", 0): 0, ("bills", 0): 0}))
    assert plan.status.reset.phase == phase
    assert len(plan.actions) == actions


def test_a_reset_is_done_to_its_end_when_it_broke_off_anywhere() -> None:
    """The steps are the plan, the offsets, the id: reconciliation resumes after each step, and does nothing after the
    last."""
    desired, group = wanted(reset=RESET), state(*HERE)
    steps = []
    for _ in range(6):
        plan = go(desired, ObservedGroup(group, offsets=EARLY))
        steps.append((plan.status.reset.phase, len(plan.actions)))
        desired = wanted(plan.status, reset=RESET)
        if plan.actions and len(steps) >= 4:  # The operator dies twice between the commit and the id.
            group = state(*HERE, reset="one")
    assert steps == [("Planned", 0), ("Planned", 2), ("Planned", 2), ("Planned", 2), ("Done", 0), ("Done", 0)]


def test_the_plan_names_each_change_and_the_first_hundred_only() -> None:
    many = tuple(at("t", partition, 7, 9) for partition in range(150))
    plan = go(wanted(reset=RESET), ObservedGroup(state(*many), offsets={("t", p): 0 for p in range(150)}))
    assert plan.status.reset.changes[0] == "t-0: 7 → 0"
    assert (len(plan.status.reset.changes), plan.status.reset.total_changes) == (100, 150)
    assert [h.reason for h in plan.events] == ["ResetPlanned"]


@pytest.mark.parametrize(
    ("reset", "asked"),
    [
        (OffsetReset(id="r", to="earliest"), {("orders", 0): -2, ("orders", 1): -2, ("bills", 0): -2}),
        (LATEST_ORDERS, {("orders", 0): -1, ("orders", 1): -1, ("orders", 2): -1}),
        (OffsetReset(id="r", to="latest", topics=("orders",), partitions=(2, 9)), {("orders", 2): -1}),
        (
            OffsetReset(id="r", to="timestamp", timestamp="2026-11-21T08:00:00Z", topics=("bills",)),
            {("bills", 0): 1_795_248_000_000},
        ),
    ],
)
def test_what_has_to_be_known_for_a_reset_is_asked(reset: OffsetReset, asked: dict[tuple[str, int], int]) -> None:
    partitions = {"orders": 3, "bills": 1}
    assert offset_queries(wanted(reset=reset), state(*HERE), partitions) == asked
    assert topics_to_describe(wanted(reset=reset), None) == set(reset.topics)


def test_an_offset_by_number_is_kept_inside_of_the_log() -> None:
    reset = OffsetReset(id="one", to="offset", offset=50, topics=("orders",))
    desired = wanted(PLANNED, reset=reset)
    assert range_partitions(desired, None, {"orders": 2}) == (("orders", 0), ("orders", 1))
    seen = ObservedGroup(
        state(*HERE), partitions={"orders": 2}, ranges={("orders", 0): (60, 90), ("orders", 1): (0, 20)}
    )  # fmt: skip
    assert go(desired, seen).actions[0].offsets == {("orders", 0): 60, ("orders", 1): 20}


def test_done_is_told_once() -> None:
    plan = go(wanted(PLANNED, reset=RESET), ObservedGroup(state(*HERE, reset="one")))
    assert [h.reason for h in plan.events] == ["ResetDone"]
    assert go(wanted(plan.status, reset=RESET), ObservedGroup(state(*HERE, reset="one"))).events == ()


# Starting offsets, ownership


START = StartingOffsets(topics=("orders",), at="latest")


@pytest.mark.parametrize(
    ("group", "paused", "commits"),
    [
        (None, False, True),
        (state(reported="Empty"), False, True),
        (state(*HERE), False, False),
        (state(members=1), False, False),
        (state(reported="PreparingRebalance"), False, False),
        (None, True, False),
    ],
)
def test_starting_offsets_are_for_a_group_that_has_none(
    group: ObservedGroupState | None, paused: bool, commits: bool
) -> None:
    desired = wanted(starting_offsets=START, paused=paused)
    offsets = offset_queries(desired, group, {"orders": 2})
    plan = reconcile(desired, ObservedGroup(group, partitions={"orders": 2}, offsets=offsets), AT)
    assert [type(action) for action in plan.actions] == ([CommitOffsets] if commits else [])


@pytest.mark.parametrize(
    ("policy", "group", "settings"),
    [
        ("Delete", state(*HERE), {OWNER: "u1", DELETION_POLICY: "Delete"}),
        ("Delete", state(*HERE, owner="other", policy="Delete"), {OWNER: "u1", DELETION_POLICY: "Delete"}),
        ("Delete", state(*HERE, owner="u1", policy="Delete"), None),
        ("Delete", None, None),
        ("Retain", state(*HERE), None),
        ("Retain", state(*HERE, owner="u1", policy="Delete"), {OWNER: None, DELETION_POLICY: None}),
        ("Retain", state(*HERE, owner="before-the-restore", policy="Delete"), {OWNER: None, DELETION_POLICY: None}),
    ],
)
def test_the_group_knows_whose_end_is_its_own(policy: Any, group: ObservedGroupState | None, settings: Any) -> None:
    plan = reconcile(wanted(deletion_policy=policy), ObservedGroup(group), AT)
    assert plan.actions == ((GroupSettingsPatch(settings),) if settings else ())


# Names


def test_ids_that_are_names_keep_them_and_others_get_readable_ones() -> None:
    assert plain_name("billing-v2.eu") == "billing-v2.eu"
    for odd in ("Billing", "a_b", "", "-a", "a..b", "x" * 254, "grüße", "a/b", "a\n"):
        assert plain_name(odd) is None
        name = hashed_name("c", odd)
        assert plain_name(name) == name, odd
        assert name != hashed_name("c2", odd)
    assert hashed_name("c", "My_App (EU)").startswith("my-app-eu-")
    assert hashed_name("c", "a_b") != hashed_name("c", "a-b")


CLUSTER = {"metadata": {"name": "c", "namespace": "ns", "uid": "cu"}}


def test_a_discovered_object_is_taken_over_by_whoever_applies_a_manifest_over_it() -> None:
    body = discovered(CLUSTER, "billing", "billing")
    assert is_discovered(body)
    assert "groupId" not in body["spec"]
    assert body["metadata"]["ownerReferences"][0]["uid"] == "cu"
    defaulted = {**body, "spec": {**body["spec"], "deletionPolicy": "Retain", "paused": False}}
    assert is_discovered(defaulted)
    for spec in ({"deletionPolicy": "Delete"}, {"reset": {"id": "a", "to": "latest"}}, {"paused": True}):
        assert is_taken_over({**body, "spec": {**body["spec"], **spec}})
    mine = {**body["metadata"], "managedFields": [{"manager": "penstock-operator"}]}
    assert is_discovered({**body, "metadata": mine})
    theirs = {**mine, "managedFields": [*mine["managedFields"], {"manager": "kubectl"}]}
    assert not is_discovered({**body, "metadata": theirs})


def test_of_two_objects_for_a_group_the_applied_and_then_the_older_one_has_it() -> None:
    def one(uid: str, created: str) -> ConsumerGroup:
        meta = ObjectMeta(name=uid, namespace="ns", uid=uid, creation_timestamp=created)
        return ConsumerGroup(metadata=meta, spec=ConsumerGroupSpec(cluster_ref=ClusterRef(name="c"), group_id="g"))

    found, old, new = one("found", "2020"), one("old", "2021"), one("new", "2022")
    assert winners([(found, True), (new, False), (old, False)])["g"] is old
    assert winners([(found, True)])["g"] is found


def test_of_two_objects_made_in_the_same_second_the_one_that_has_had_the_group_keeps_it() -> None:
    def one(uid: str, *reasons: str) -> ConsumerGroup:
        meta = ObjectMeta(name=uid, namespace="ns", uid=uid, creation_timestamp="2026-01-01T00:00:00Z")
        told = tuple(Condition(type="Ready", status="True", reason=reason) for reason in reasons)
        spec = ConsumerGroupSpec(cluster_ref=ClusterRef(name="c"), group_id="g")
        return ConsumerGroup(metadata=meta, spec=spec, status=ConsumerGroupStatus(conditions=told))

    first = one("b", "Known")
    for other in (one("a"), one("c"), one("a", "Conflict")):
        for pair in ([first, other], [other, first]):
            assert winners([(group, False) for group in pair])["g"] is first
    assert winners([(one("b"), False), (new := one("a"), False)])["g"] is new


def test_fields_that_a_newer_schema_fills_in_are_nobodys_say() -> None:
    body = discovered(CLUSTER, "billing", "billing")
    assert is_discovered({**body, "spec": {**body["spec"], "priority": "Normal"}})


def test_a_time_before_1970_is_no_word_of_the_protocol() -> None:
    reset = OffsetReset(id="r", to="timestamp", timestamp="1969-12-31T23:59:59.999Z")
    assert set(offset_queries(wanted(reset=reset), state(*HERE), {}).values()) == {0}


def test_a_partition_that_does_not_tell_where_it_ends_hides_neither_the_group_nor_the_others() -> None:
    offline = ObservedOffset("bills", 0, 7, None)
    status = reconcile(wanted(), ObservedGroup(state(HERE[0], offline)), AT).status
    assert (status.lag, status.topic_names) == (5, "bills,orders")
    assert conditions(status)["Ready"] == ("True", "Known")
    assert conditions(status)["Healthy"] == ("Unknown", "LagUnknown")


def test_the_words_of_one_failure_after_another_are_no_news() -> None:
    first = reconcile(wanted(), ObservedGroup(error="groups: broker 1 refused"), AT).status
    assert reconcile(wanted(first), ObservedGroup(error="groups: broker 2 timed out"), LATER).status == first
    other = reconcile(wanted(first), ObservedGroup(error="there is no Service yet"), LATER).status
    assert other.conditions[0].message == "there is no Service yet"


def configured(*names: str) -> ConsumerGroupStatus:
    return ConsumerGroupStatus(configured=names)


def test_settings_are_set_and_those_that_were_removed_from_the_object_are_reset() -> None:
    settings = {"share.delivery.count.limit": "3", "share.session.timeout.ms": "50000", "consumer.x": "1"}
    there = replace(state(*HERE), settings=settings)
    desired = wanted(
        configured("share.session.timeout.ms"),
        config={"share.delivery.count.limit": "7", "share.auto.offset.reset": "earliest"},
    )
    plan = reconcile(desired, ObservedGroup(there), AT)
    assert plan.actions == (
        GroupSettingsPatch(
            {
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": "7",
                "share.session.timeout.ms": None,
            }
        ),
    )
    assert plan.status.configured == ("share.auto.offset.reset", "share.delivery.count.limit")
    reached = replace(there, settings={**desired.spec.config, "consumer.x": "1"})
    assert reconcile(msgspec.structs.replace(desired, status=plan.status), ObservedGroup(reached), AT).actions == ()


def test_a_group_has_settings_before_it_exists_but_not_while_the_object_is_paused() -> None:
    config = {"share.auto.offset.reset": "earliest"}
    assert reconcile(wanted(config=config), ObservedGroup(None), AT).actions == (GroupSettingsPatch(config),)
    paused = reconcile(wanted(config=config, paused=True), ObservedGroup(None), AT)
    assert (paused.actions, paused.status.configured) == ((), ())


def test_a_group_of_another_type_than_the_object_says_is_not_ready() -> None:
    shared = replace(state(*HERE), group_type="share")
    assert conditions(reconcile(wanted(type="share"), ObservedGroup(shared), AT).status)["Ready"] == ("True", "Known")
    status = reconcile(wanted(type="consumer"), ObservedGroup(shared), AT).status
    assert conditions(status)["Ready"] == ("False", "TypeMismatch")
    assert status.type == "share"


@pytest.mark.parametrize(
    ("spec", "group", "is_share"),
    [
        ({"type": "share"}, None, True),
        ({}, None, False),
        ({}, ObservedGroupState("billing", "Empty", 0, (), {}, "share"), True),
        ({}, ObservedGroupState("billing", "Empty", 0, ()), False),
    ],
)
def test_starting_offsets_are_those_of_the_groups_type(
    spec: dict[str, Any], group: ObservedGroupState | None, is_share: bool
) -> None:
    start = StartingOffsets(topics=("orders",))
    observed = ObservedGroup(group, partitions={"orders": 1}, offsets={("orders", 0): 4})
    plan = reconcile(wanted(starting_offsets=start, **spec), observed, AT)
    assert plan.actions == (CommitOffsets({("orders", 0): 4}, is_share),)


def test_dead_letters_are_shown_with_the_time_of_the_first() -> None:
    letters = ObservedDeadLetters("dlq.orders", 3, 1_795_000_000_000)
    status = reconcile(wanted(), ObservedGroup(replace(state(*HERE), dead_letters=letters)), AT).status
    assert status.dead_letters == GroupDeadLetters(topic="dlq.orders", depth=3, oldest="2026-11-18T11:06:40Z")
