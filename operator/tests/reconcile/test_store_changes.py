"""Changes of etcd's member list: their steps are safe for each combination of members, wish and health."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from reconcile.cluster_tables import LONG_AGO, cluster

from penstock_operator.ports.state_store import StateStoreMember, StateStoreReport, StateStoreStatus
from penstock_operator.reconcile.cluster.actions import (
    AddStoreMember,
    MoveStoreLeader,
    PromoteStoreMember,
    RemoveStoreMember,
    ScaleStore,
)
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedStorePod
from penstock_operator.reconcile.cluster.store_changes import growth_blocker, plan_changes
from penstock_operator.reconcile.cluster.store_members import CompanionMember, StorePlan, companion_members
from penstock_operator.specs import companion

SET = "p-etcd"
URLS = [f"http://{SET}-{n}.ns.svc:2379" for n in range(5)]


def listed(n: int, **more: Any) -> StateStoreMember:
    made = StateStoreMember(n + 1, f"{SET}-{n}", (companion.peer_url(URLS[n]),))
    return replace(made, **more)


def state(
    wanted: int, members: tuple[StateStoreMember, ...], away: tuple[int, ...] = (), leader: int = 0, **more: Any
) -> tuple[ObservedStore, list[CompanionMember]]:
    """Return an etcd of which the members `away` do not answer, and whose pods are those of its members."""
    ordinals = [member.member_id - 1 for member in members]
    answering = [n for n in ordinals if n not in away and members[ordinals.index(n)].name]
    statuses = {URLS[n]: StateStoreStatus(n + 1, leader + 1, 1) for n in answering}
    report = StateStoreReport(statuses, {URLS[n]: "refused" for n in away}, members=members)
    pods = tuple(
        ObservedStorePod(n, f"{SET}-{n}", f"uid-{n}", is_ready=n in answering, ready_since=LONG_AGO) for n in ordinals
    )
    bootstrap = {"metadata": {"annotations": {companion.PODS: str(max(ordinals) + 1)}}}
    store = ObservedStore(report, pods=pods, bootstrap=bootstrap, **{"replicas": len(ordinals), **more})
    etcd = {"endpoints": URLS[:wanted], "managed": True, "statefulSet": SET}
    return store, companion_members(cluster(etcd=etcd), store, report, dict(enumerate(URLS[:wanted])))


def plan(found: tuple[ObservedStore, list[CompanionMember]], hosts: frozenset[str] | None = None) -> StorePlan | None:
    return plan_changes(SET, *found, hosts, may_join=True)


def states() -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield (wanted, members, members away)."""
    for wanted, members in product((1, 3, 5), range(1, 6)):
        for flags in product((False, True), repeat=members):
            yield wanted, members, tuple(n for n in range(members) if flags[n])


@pytest.mark.parametrize("leader", range(5))
def test_no_step_takes_a_member_that_the_quorum_needs_in_any_state(leader: int) -> None:
    steps = set[str]()
    for wanted, members, away in states():
        if leader >= members or len(away) > (members - 1) // 2:
            continue  # without a quorum, etcd has no member list
        found = plan(state(wanted, tuple(map(listed, range(members))), away, leader))
        actions = found.actions if found is not None else ()
        assert len(actions) <= 1, "one step at a time"
        for action in actions:
            steps.add(type(action).__name__)
            match action:
                case AddStoreMember(name):
                    assert not away, "a member is added while all are healthy"
                    assert name == f"{SET}-{members}"
                    assert members < wanted
                case RemoveStoreMember(_, _, member_id):
                    assert member_id > wanted
                    left = [n for n in range(members) if n + 1 != member_id]
                    healthy = [n for n in left if n not in away]
                    assert len(healthy) > len(left) // 2
                    assert len(healthy) == len(left) or member_id - 1 in away
                    assert member_id != leader + 1
                case MoveStoreLeader(_, endpoint, member_id):
                    assert endpoint == URLS[leader]
                    assert leader >= wanted > member_id - 1
                    assert member_id - 1 not in away
                case _:
                    raise AssertionError(action)
        if not away and members != wanted:
            assert actions, "a healthy etcd gets the members that are wanted"
        if members == wanted:
            assert found is None
    expected = {"AddStoreMember": leader < 4, "MoveStoreLeader": leader > 0, "RemoveStoreMember": True}
    assert steps == {step for step, is_possible in expected.items() if is_possible}


def test_members_that_were_not_observed_yet_do_not_count_for_the_quorum() -> None:
    found = plan(state(1, tuple(map(listed, range(5))), (1, 2, 3, 4)))
    assert found is not None
    assert found.actions == ()
    assert "waits: member p-etcd-1, p-etcd-2, p-etcd-3 is not healthy" in found.message


def test_a_learner_is_promoted_before_the_next_member_is_added() -> None:
    found = plan(state(5, (*map(listed, range(3)), listed(3, is_learner=True))))
    assert found is not None
    assert found.reason == "Joining"
    assert found.actions == (PromoteStoreMember(f"{SET}-3", URLS[0], 4),)


def test_the_pod_of_a_member_starts_after_the_member_was_added() -> None:
    store, members = state(5, (*map(listed, range(3)), listed(3, name="", is_learner=True)))
    store = replace(store, pods=store.pods[:3], replicas=3)
    members = [replace(each, pod=None) if each.ordinal == 3 else each for each in members]
    found = plan((store, members))
    assert found is not None
    assert found.actions == (ScaleStore(SET, 4),)
    assert plan_changes(SET, store, members, None, may_join=False) == replace(found, actions=())


def test_the_pod_of_a_removed_member_stops_before_the_next_member_is_removed() -> None:
    found = plan(state(1, (listed(0), listed(1)), replicas=3))
    assert found is not None
    assert found.actions == (ScaleStore(SET, 2),)


@pytest.mark.parametrize(
    ("hosts", "more", "words"),
    [
        (frozenset({"p-etcd-2.ns.svc"}), {}, "does not have the name p-etcd-3.ns.svc"),
        (None, {"replicas": None}, "StatefulSet p-etcd cannot be read"),
        (None, {"next_claim": "data-p-etcd-3"}, "kubectl delete pvc data-p-etcd-3"),
        (frozenset({"p-etcd-3.ns.svc"}), {}, ""),
    ],
)
def test_a_member_that_could_not_start_is_not_added(
    hosts: frozenset[str] | None, more: dict[str, Any], words: str
) -> None:
    found = state(5, tuple(map(listed, range(3))), **more)
    made = plan(found, hosts)
    assert made is not None
    assert (made.reason, bool(made.actions)) == (("ResizeRefused", False) if words else ("Resizing", True))
    assert words in made.message
    assert words in growth_blocker(SET, found[0], found[1][3], hosts)
