"""The etcd of a cluster: what condition StateStore says, and when a lost member is replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed
from reconcile.cluster_tables import LONG_AGO, NOW, cluster, observed

from penstock_operator.ports.state_store import StateStoreMember, StateStoreReport, StateStoreStatus
from penstock_operator.reconcile.cluster.actions import (
    AddStoreMember,
    ApplyObject,
    PromoteStoreMember,
    RemoveStoreMember,
    RestartStorePod,
)
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedStorePod, read_store_pod
from penstock_operator.reconcile.cluster.reconcile import reconcile
from penstock_operator.reconcile.cluster.store import plan_store
from penstock_operator.reconcile.cluster.store_members import StorePlan
from penstock_operator.specs import companion

URLS = [f"http://p-etcd-{n}.ns.svc:2379" for n in range(3)]
PEERS = [f"http://p-etcd-{n}.ns.svc:2380" for n in range(3)]
COMPANION = {"endpoints": URLS, "managed": True, "statefulSet": "p-etcd"}
ENDPOINTS = dict(enumerate(URLS))
OWNED = {
    "name": "p-etcd-rejoin",
    "ownerReferences": [{"uid": "u"}],
    "annotations": {companion.PODS: "3"},
}
CLOSED = {"metadata": OWNED, "data": companion.bootstrap_data("p-etcd", ENDPOINTS, None)}
OPEN = {"metadata": OWNED, "data": companion.bootstrap_data("p-etcd", ENDPOINTS, 1)}
NONE: dict[str, Any] = {}


def member(n: int, *, name: str | None = None, number: int | None = None) -> StateStoreMember:
    return StateStoreMember(number or n + 1, f"p-etcd-{n}" if name is None else name, (PEERS[n],))


def report(
    answering: tuple[int, ...] = (0, 1, 2), listed: tuple[StateStoreMember, ...] | None = None, **more: Any
) -> StateStoreReport:
    """Return a report of these members; `listed` None: all three."""
    statuses = {URLS[n]: StateStoreStatus(n + 1, 1, 20_480) for n in answering}
    problems = {URLS[n]: f"{URLS[n]}: refused" for n in range(3) if n not in answering}
    listed = (member(0), member(1), member(2)) if listed is None else listed
    return StateStoreReport(statuses, problems, **{"members": listed, **more})


def store_pod(n: int, **more: Any) -> ObservedStorePod:
    return replace(
        ObservedStorePod(n, f"p-etcd-{n}", f"uid-{n}", is_ready=True, ready_since=LONG_AGO, node=f"node-{n}"), **more
    )


def lost(n: int) -> ObservedStorePod:
    return store_pod(n, is_ready=False, has_no_data=True, problem="CrashLoopBackOff")


PODS = (store_pod(0), store_pod(1), store_pod(2))
ONE_LOST = (store_pod(0), lost(1), store_pod(2))


ALL_LOST = (lost(0), lost(1), lost(2))


def plan(
    found: StateStoreReport | None, pods: tuple[ObservedStorePod, ...] = PODS, there: Any = CLOSED, **etcd: Any
) -> StorePlan:
    store = ObservedStore(found, "no Secret" if found is None else "", pods, there or None)
    return plan_store(cluster(etcd=etcd or COMPANION), observed(store=store))


def state(found: StorePlan) -> tuple[bool | None, str]:
    return found.is_healthy, found.reason


def test_a_healthy_etcd_is_left_alone() -> None:
    found = plan(report())
    assert state(found) == (True, "Healthy")
    assert found.message == "all 3 members are healthy; the database has less than 1 MiB"
    assert (found.actions, found.requeue_after_s) == ((), None)


@pytest.mark.parametrize(
    ("found", "pods", "expected", "words"),
    [
        (report(()), PODS, (None, "Unreachable"), "no member of etcd answers the operator: http://p-etcd-0"),
        (report((), members=None), ALL_LOST, (False, "QuorumLost"), "p-etcd-0: it has lost its data"),
        (report((2,), members=None, members_error="timed out"), PODS, (False, "QuorumLost"), "1 of 3 members answer"),
        (report((0, 1)), PODS, (False, "MemberNotReady"), "are healthy, which is a quorum; p-etcd-2 does not answer"),
        (report((0,)), PODS, (False, "MemberNotReady"), "1 of 3 members are healthy; p-etcd-1 does not answer"),
        (report(alarms=frozenset({"NOSPACE"})), PODS, (False, "NoSpace"), "rejects writes"),
        (report(alarms=frozenset({"NOSPACE", "CORRUPT"})), PODS, (False, "Corrupt"), "CORRUPT"),
        (
            report(listed=(member(0), member(1), member(2), StateStoreMember(9, "x", ("http://x:2380",)))),
            PODS, (False, "UnknownMember"), "1 members that are not pods",
        ),
    ],
)  # fmt: skip
def test_the_condition_is_never_true_before_it_is(
    found: StateStoreReport | None, pods: tuple[ObservedStorePod, ...], expected: Any, words: str
) -> None:
    made = plan(found, pods)
    assert state(made) == expected
    assert words in made.message
    assert made.requeue_after_s is not None, "its recovery may cause no event"
    assert not made.actions


@pytest.mark.parametrize(
    ("created", "before", "reason", "event"),
    [
        (NOW, "", "Forming", "Normal"),
        (NOW, "Forming", "Forming", None),
        (NOW, "Healthy", "MemberNotReady", "Warning"),
        (LONG_AGO, "Forming", "MemberNotReady", "Warning"),
    ],
)
def test_members_of_a_new_etcd_that_start_cause_no_warning(
    created: str, before: str, reason: str, event: str | None
) -> None:
    conditions = [{"type": "StateStore", "status": "False", "reason": before}] if before else []
    made = cluster(etcd=COMPANION, status={"conditions": conditions})
    made = changed(made, metadata=changed(made.metadata, creation_timestamp=created))
    plan = reconcile(made, observed(store=ObservedStore(report((0,)), pods=PODS, bootstrap=CLOSED)), image="i").plan
    assert [c.reason for c in plan.status.conditions if c.type == "StateStore"] == [reason]
    assert [e.type for e in plan.events if e.reason.startswith("StateStore")] == ([event] if event else [])


def test_an_etcd_that_the_operator_may_never_reach_is_asked_at_the_resync_only() -> None:
    without_secret = plan(None)
    assert (state(without_secret), without_secret.message) == ((None, "Unreachable"), "no Secret")
    external = plan(report(()), PODS, NONE, endpoints=URLS)
    assert state(external) == (None, "Unreachable")
    assert without_secret.requeue_after_s is external.requeue_after_s is None


def test_a_member_that_answers_as_another_one_or_without_a_leader_is_not_healthy() -> None:
    listed = (member(0), member(1, number=7), member(2))
    assert state(plan(report(listed=listed))) == (False, "MemberNotReady")
    statuses = {url: StateStoreStatus(n + 1, n != 1, 1) for n, url in enumerate(URLS)}
    assert state(plan(StateStoreReport(statuses, members=report().members))) == (False, "MemberNotReady")
    statuses = {url: StateStoreStatus(n + 1, 1, 1, errors=("x",) if n else ()) for n, url in enumerate(URLS)}
    assert state(plan(StateStoreReport(statuses, members=report().members))) == (False, "MemberNotReady")


def test_the_size_is_told_as_a_part_of_the_quota_where_etcd_tells_it() -> None:
    statuses = {url: StateStoreStatus(n + 1, 1, 31 << 20, 100 << 20) for n, url in enumerate(URLS)}
    assert plan(StateStoreReport(statuses, members=report().members)).message.endswith("31% of its quota")
    statuses = {url: StateStoreStatus(n + 1, 1, 31 << 20) for n, url in enumerate(URLS)}
    assert plan(StateStoreReport(statuses, members=report().members)).message.endswith("less than 32 MiB")


def test_a_lost_member_is_removed_added_and_started_in_this_order() -> None:
    without = (member(0), member(2))
    added = (member(0), replace(member(1, name="", number=9), is_learner=True), member(2))
    found = plan(report((0, 2)), ONE_LOST)
    assert state(found) == (False, "Replacing")
    assert found.actions == (RemoveStoreMember("p-etcd-1", URLS[0], 2),)
    assert plan(report((0, 2), without), ONE_LOST).actions == (AddStoreMember("p-etcd-1", URLS[0], PEERS[1]),)
    (opened,) = plan(report((0, 2), added), ONE_LOST).actions
    assert isinstance(opened, ApplyObject)
    assert opened.body["data"] == OPEN["data"]
    assert plan(report((0, 2), added), ONE_LOST, OPEN).actions == (
        RestartStorePod("p-etcd-1", "uid-1", "it can join etcd now"),
    )
    starting = (store_pod(0), store_pod(1, is_ready=False), store_pod(2))
    assert plan(report((0, 2), added), starting, OPEN).actions == (), "it is on its way"
    started = (member(0), replace(member(1), is_learner=True), member(2))
    closed, promoted = plan(report(listed=started), PODS, OPEN).actions
    assert isinstance(closed, ApplyObject)
    assert promoted == PromoteStoreMember("p-etcd-1", URLS[0], 2)
    (closed,) = plan(report(listed=(member(0), member(1, number=2), member(2))), PODS, OPEN).actions
    assert isinstance(closed, ApplyObject)
    assert closed.body["data"] == CLOSED["data"], "at its next start it must have data"


def test_only_the_member_that_joins_accepts_the_list_and_nobody_the_closed_one() -> None:
    assert OPEN["data"][companion.INITIAL_CLUSTER] == f"other-0={PEERS[0]},p-etcd-1={PEERS[1]},other-2={PEERS[2]}"
    assert "p-etcd" not in CLOSED["data"][companion.INITIAL_CLUSTER]
    assert CLOSED["data"][companion.INITIAL_STATE] == "existing"


@pytest.mark.parametrize(
    ("found", "pods", "words"),
    [
        (report((0, 2)), (store_pod(0), lost(1), store_pod(2, is_ready=False)), "member p-etcd-2 is not healthy"),
        (report((0, 2)), (store_pod(0), lost(1)), "member p-etcd-2 is not healthy"),
        (report((0,), members=(member(0), member(1), member(2))), ONE_LOST, "member p-etcd-2 is not healthy"),
        (report((0,)), (store_pod(0), lost(1), lost(2)), "p-etcd-2 is not healthy"),
        (report((0, 2), (member(0), member(2, number=8))), ONE_LOST, "p-etcd-2 is not healthy"),
    ],
)
def test_a_lost_member_waits_until_all_others_are_healthy(
    found: StateStoreReport, pods: tuple[ObservedStorePod, ...], words: str
) -> None:
    made = plan(found, pods)
    assert state(made) == (False, "MemberLost")
    assert words in made.message
    assert made.actions == ()


def test_a_member_that_is_down_for_another_reason_keeps_its_membership() -> None:
    for down in (store_pod(1, is_ready=False, problem="CrashLoopBackOff"), replace(lost(1), is_terminating=True)):
        made = plan(report((0, 2)), (store_pod(0), down, store_pod(2)))
        assert state(made) == (False, "MemberNotReady")
        assert "p-etcd-1: CrashLoopBackOff" in made.message
        assert made.actions == ()
    assert plan(report((0, 2)), (store_pod(0), store_pod(2))).actions == (), "without a pod"


def test_an_interrupted_replacement_goes_on_also_if_the_pod_tells_nothing_yet() -> None:
    found = plan(report((0, 2), (member(0), member(2))), (store_pod(0), store_pod(1, is_ready=False), store_pod(2)))
    assert found.actions == (AddStoreMember("p-etcd-1", URLS[0], PEERS[1]),)


def test_members_without_data_are_stopped_once_all_have_started_and_never_before() -> None:
    unpublished = tuple(replace(m, name="") for m in report().members or ())
    assert plan(report(listed=unpublished), PODS, NONE).actions == ()
    (made,) = plan(report(), PODS, NONE).actions
    assert isinstance(made, ApplyObject)
    assert (made.is_new, made.body["metadata"]["name"], made.body["data"]) == (True, "p-etcd-rejoin", CLOSED["data"])
    earlier = {"metadata": {**OWNED, "ownerReferences": [{"uid": "earlier"}]}, "data": CLOSED["data"]}
    assert plan(report(listed=unpublished), PODS, earlier).actions == (), "of a Cluster that was deleted"


def test_an_etcd_of_one_member_has_nobody_to_learn_from() -> None:
    one = {**COMPANION, "endpoints": URLS[:1]}
    found = StateStoreReport({URLS[0]: StateStoreStatus(1, 1, 1)}, members=(member(0),))
    made = plan(found, PODS[:1], NONE, **one)
    assert (state(made), made.actions) == ((True, "Healthy"), ())
    away = plan(StateStoreReport({}, {URLS[0]: "refused"}), (lost(0),), CLOSED, **one)
    assert (state(away), away.actions) == ((False, "QuorumLost"), ())


def test_an_etcd_of_somebody_else_is_told_about_and_never_touched() -> None:
    theirs = {"endpoints": URLS}
    assert state(plan(report(), ONE_LOST, NONE, **theirs)) == (True, "Healthy")
    down = plan(report((0, 2)), ONE_LOST, NONE, **theirs)
    assert (state(down), down.actions) == ((False, "MemberNotReady"), ())
    for listed in ((member(0), member(2)), (member(0), member(1, name=""), member(2))):
        assert plan(report((0, 2), listed), ONE_LOST, NONE, **theirs).actions == ()
    more = plan(report(listed=(*(report().members or ()), StateStoreMember(9, "x", ()))), PODS, NONE, **theirs)
    assert (state(more), more.message[:45]) == ((True, "Healthy"), "the etcd has 4 members, 1 of them not in etcd")
    assert plan_store(cluster(), observed()) == StorePlan(), "not observed"


@pytest.mark.parametrize("hosts", [["a", "b", "c"], ["p-etcd-0", "p-etcd-1", "p-etcd-3"], ["p-etcd-0"] * 2])
def test_endpoints_that_are_not_those_of_the_pods_are_only_read(hosts: list[str]) -> None:
    found = cluster(etcd={**COMPANION, "endpoints": [f"http://{host}.ns.svc:2379" for host in hosts]})
    assert companion.member_endpoints(found) is None


def body(name: str = "p-etcd-1", *, owner: str = "p-etcd", **container: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": "x", "ownerReferences": [{"kind": "StatefulSet", "name": owner}]},
        "spec": {"nodeName": "n"},
        "status": {"containerStatuses": [{"name": "etcd", **container}]},
    }


REFUSED = {"terminated": {"message": f'..."error":"{companion.NO_DATA} \\"p-etcd-1\\" in the initial cluster"'}}


@pytest.mark.parametrize(
    ("container", "is_lost"),
    [
        ({"state": REFUSED}, True),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": REFUSED}, True),
        ({"state": {"running": {}}, "lastState": REFUSED}, False),
        ({"state": {"terminated": {"message": "killed"}}, "lastState": REFUSED}, False),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1}}}, False),
        ({}, False),
    ],
)
def test_a_member_is_lost_if_its_last_start_said_so(container: dict[str, Any], is_lost: bool) -> None:
    found = read_store_pod("p-etcd", body(**container))
    assert found is not None
    assert found.has_no_data is is_lost


def test_pods_of_others_are_no_members() -> None:
    for other in (body("c-broker-1"), body("p-etcd-x"), body("p-etcd-01"), body("p-etcd-1", owner="other")):
        assert read_store_pod("p-etcd", other) is None
