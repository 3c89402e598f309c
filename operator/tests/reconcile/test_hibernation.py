"""Hibernation as a table: the phase, what stops and starts, and when it waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed
from reconcile.cluster_tables import LONG_AGO, NOW, away, cluster, observed, part, pod, reported, topics

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.state_store import StateStoreMember, StateStoreReport
from penstock_operator.reconcile.cluster.actions import ScaleStore
from penstock_operator.reconcile.cluster.hibernation import STEP_INTERVAL_S, HibernationPlan, plan_hibernation
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedStorePod
from penstock_operator.reconcile.cluster.scale import ScalePlan
from penstock_operator.specs import names
from penstock_operator.specs.cluster_annotations import HIBERNATED, ClusterAnnotations

URLS = [f"http://p-etcd-{n}.ns.svc:2379" for n in range(3)]
COMPANION = {"endpoints": URLS, "managed": True, "statefulSet": "p-etcd"}
PODS = [pod(0), pod(1), pod(2)]
MEMBERS = tuple(ObservedStorePod(n, f"p-etcd-{n}", f"uid-{n}", is_ready=True) for n in range(3))
QUORUM = StateStoreReport(members=(StateStoreMember(1, "p-etcd-0", ()),))
ALL = reported([0, 1, 2], topics(t=part([0, 1, 2])))


def wish(text: str | None = "true", **spec: Any) -> Cluster:
    made = cluster(**{"etcd": COMPANION, **spec})
    annotations = {names.HIBERNATE: text} if text is not None else {}
    return changed(made, metadata=changed(made.metadata, annotations=annotations))


def plan(
    desired: Cluster, seen: ObservedCluster, recorded: str = "", scale: ScalePlan | None = None, moving: str = ""
) -> HibernationPlan:
    notes = ClusterAnnotations(hibernation=recorded, moving=moving)
    return plan_hibernation(desired, seen, notes, scale or ScalePlan(3))


def test_a_cluster_without_the_annotation_is_awake() -> None:
    assert plan(wish(None), observed(PODS, ALL)) == HibernationPlan()
    assert plan(wish("false"), observed(PODS, ALL)) == HibernationPlan()


@pytest.mark.parametrize(
    ("seen", "more", "blocker"),
    [
        (observed(PODS, ALL), {"scale": ScalePlan(4, leaving=frozenset({3}))}, "broker 3 is being removed"),
        (observed(PODS, ALL), {"moving": "broker 3 added"}, "replicas move (broker 3 added)"),
        (observed(PODS, ALL), {"desired": wish(paused=True)}, "spec.paused is true"),
        (observed(PODS, reported([0, 1], topics(t=part([0, 1], adding=(1,))))), {}, "1 partitions are being"),
        (observed(PODS, reported([0, 1], draining=[1])), {}, "broker 1 is being drained"),
        (observed(PODS, reported([0, 1], draining=[1], removable=[1])), {}, ""),
        (observed(PODS), {}, ""),
    ],
)
def test_it_waits_for_what_it_would_interrupt(seen: ObservedCluster, more: dict[str, Any], blocker: str) -> None:
    found = plan(**{"desired": wish(), **more}, seen=seen)
    assert found.phase == ("Postponed" if blocker else "Hibernating")
    assert found.requeue_after_s == STEP_INTERVAL_S
    assert blocker in found.message
    assert found.are_brokers_stopped == (not blocker)


def test_a_wish_that_waits_while_the_cluster_starts_does_not_forget_since_when() -> None:
    found = plan(wish(), observed(PODS, ALL), LONG_AGO, moving="broker 3 added")
    assert (found.phase, found.record) == ("Postponed", LONG_AGO)


def test_once_it_has_begun_nothing_takes_it_back_but_the_annotation() -> None:
    found = plan(wish(), observed(PODS, ALL), HIBERNATED, moving="broker 3 added")
    assert (found.phase, found.record) == ("Hibernating", HIBERNATED)


@pytest.mark.parametrize(
    ("seen", "phase", "actions", "is_store_stopped"),
    [
        (observed(PODS, ALL, replicas=3), "Hibernating", (), False),
        (observed([pod(2, is_terminating=True)], replicas=0), "Hibernating", (), False),
        (observed(replicas=3, store=ObservedStore(QUORUM, pods=MEMBERS, replicas=3)), "Hibernating", (), False),
        (observed(store=ObservedStore(QUORUM, pods=MEMBERS, replicas=3)), "Hibernating", (), False),
        (observed(replicas=0, store=ObservedStore(QUORUM, pods=MEMBERS, replicas=3)), "Hibernating", (0,), True),
        (observed(replicas=0, store=ObservedStore(None, pods=MEMBERS, replicas=0)), "Hibernating", (), True),
        (observed(replicas=0, store=ObservedStore(None, replicas=0)), "Hibernated", (), True),
        (observed(replicas=0, store=ObservedStore(None)), "Hibernated", (), True),
    ],
)
def test_etcd_stops_when_no_broker_is_left(
    seen: ObservedCluster, phase: str, actions: tuple[int, ...], is_store_stopped: bool
) -> None:
    found = plan(wish(), seen, HIBERNATED)
    assert (found.phase, found.actions) == (phase, tuple(ScaleStore("p-etcd", n) for n in actions))
    assert found.are_brokers_stopped
    assert found.is_store_stopped is is_store_stopped
    assert found.is_stopping
    assert (found.requeue_after_s is None) == (phase == "Hibernated")


def test_an_etcd_that_is_not_the_clusters_own_is_neither_stopped_nor_awaited() -> None:
    own = {"endpoints": ["http://etcd:2379"]}
    found = plan(wish(etcd=own), observed(replicas=0), HIBERNATED)
    assert (found.phase, found.is_store_stopped, found.actions) == ("Hibernated", False, ())
    found = plan(wish(None, etcd=own), observed(replicas=0), HIBERNATED)
    assert (found.phase, found.are_brokers_stopped, found.is_store_stopped) == ("Waking", False, False)
    assert found.message == "0 of 3 brokers are ready"


def test_brokers_start_when_etcd_has_a_quorum() -> None:
    starting = ObservedStore(StateStoreReport(), replicas=0)
    found = plan(wish(None), observed(replicas=0, store=starting), HIBERNATED)
    assert (found.phase, found.record, found.actions) == ("Waking", NOW, (ScaleStore("p-etcd", 3),))
    assert found.are_brokers_stopped
    assert found.is_store_stopped
    assert (found.is_active, found.is_stopping) == (True, False)
    ending = replace(MEMBERS[1], is_terminating=True)
    found = plan(wish(None), observed(replicas=0, store=replace(starting, replicas=3, pods=(MEMBERS[0], ending))), NOW)
    assert found.are_brokers_stopped
    assert not found.actions
    assert found.message == "etcd is starting"
    for store in (replace(starting, report=QUORUM), ObservedStore(None, "no Secret", pods=MEMBERS[:2])):
        found = plan(wish(None), observed(replicas=0, store=replace(store, replicas=3)), NOW)
        assert (found.phase, found.are_brokers_stopped) == ("Waking", False)


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        (observed(PODS, ALL), "Awake"),
        (observed([*PODS[:2], away(2)], ALL), "Waking"),
        (observed(PODS, reported([0, 1])), "Waking"),
        (observed(PODS, reported([0, 1, 2], topics(t=part([0, 1, 2], [0])))), "Waking"),
        (observed(PODS, reported([0, 1, 2], topics(t=part([0, 1, 2]), u=part([0, 1, 2], [])))), "Waking"),
        (observed(PODS), "Waking"),
    ],
)
def test_it_is_awake_when_all_brokers_serve_in_sync(seen: ObservedCluster, phase: str) -> None:
    assert plan(wish(None), seen, NOW).phase == phase


def test_a_cluster_that_does_not_come_back_counts_as_awake_after_two_minutes() -> None:
    assert plan(wish(None), observed(), "2026-03-01T11:58:00Z").phase == "Waking"
    assert plan(wish(None), observed(), "2026-03-01T11:57:59Z") == HibernationPlan()
    assert plan(wish(None), observed(), LONG_AGO).phase == "Awake"
    assert plan(wish(None), observed(), "not a time").phase == "Awake"


def test_an_annotation_that_is_neither_true_nor_false_is_refused_with_its_text() -> None:
    found = plan(wish("on"), observed(PODS, ALL))
    assert found.phase == "Refused"
    assert '"on"' in found.message
    assert f'"{"o" * 40}"' in plan(wish("o" * 41), observed(PODS, ALL)).message
