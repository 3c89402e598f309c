"""Rolling restarts: desired × observed → the next pod, or the reason for waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reconcile.cluster_tables import NEW, NOW, OLD, away, broken, cluster, observed, part, pod, reported, topics

from penstock_operator.ports.brokers import ObservedPartition
from penstock_operator.ports.kube import BUDGETS
from penstock_operator.reconcile.cluster.actions import ApplyObject
from penstock_operator.reconcile.cluster.observed import ObservedCluster, ObservedPod, ReportedState
from penstock_operator.reconcile.cluster.partitions import summary
from penstock_operator.reconcile.cluster.reconcile import reconcile
from penstock_operator.reconcile.cluster.roll import may_evict, plan_roll
from penstock_operator.specs.cluster_annotations import ClusterAnnotations

THREE = [0, 1, 2]
IN_SYNC = topics(t=[part([0, 1, 2]), part([1, 2, 0])])
SIDECAR = {"etcd": {"sidecar": {"image": "e"}}}

TABLE: dict[str, tuple[ObservedCluster, int | None, str]] = {
    # observed, the next pod, the reason for waiting
    "all are as wanted": (observed(map(pod, THREE), reported(THREE)), None, ""),
    "all are old and in sync: the first that is not the controller": (
        observed([pod(n, OLD) for n in THREE], reported(THREE, IN_SYNC)),
        1,
        "",
    ),
    "the controller is another": (
        observed([pod(n, OLD) for n in THREE], reported(THREE, IN_SYNC, controller=1)),
        0,
        "",
    ),
    "only the controller is left": (
        observed([pod(0, OLD), pod(1), pod(2)], reported(THREE, IN_SYNC)),
        0,
        "",
    ),
    "one broker alone": (observed([pod(0, OLD)], reported([0], topics(t=part([0])))), 0, ""),
    "the one that went before has just come back": (
        observed([pod(0, OLD), pod(1, ready_since=NOW), pod(2, OLD)], reported(THREE, IN_SYNC)),
        None,
        "broker 1 became ready less than 5 s ago",
    ),
    "the one that went before is away": (
        observed([pod(0, OLD), away(1), pod(2, OLD)], reported([0, 2], IN_SYNC)),
        None,
        "broker 1 is not ready",
    ),
    "the one that went before has no pod yet": (
        observed([pod(0, OLD), pod(2, OLD)], reported([0, 2], IN_SYNC)),
        None,
        "broker 1 has no pod yet",
    ),
    "the one that went before is ending": (
        observed([pod(0, OLD), pod(1, OLD, is_terminating=True), pod(2, OLD)], reported(THREE, IN_SYNC)),
        None,
        "broker 1 is terminating",
    ),
    "it is ready and not registered": (
        observed([pod(0, OLD), pod(1), pod(2, OLD)], reported([0, 2], IN_SYNC)),
        None,
        "broker 1 is not registered",
    ),
    "it lacks what it missed": (
        observed([pod(0, OLD), pod(1), pod(2, OLD)], reported(THREE, topics(t=part([0, 1, 2], [0, 2])))),
        None,
        "1 replicas of broker 1 are not in sync",
    ),
    "who goes lacks something itself, which is no reason to wait": (
        observed([pod(0), pod(1), pod(2, OLD)], reported(THREE, topics(t=part([0, 1, 2], [0, 1])))),
        2,
        "",
    ),
    "a replica that is being added is not missed yet": (
        observed([pod(0), pod(1), pod(2, OLD)], reported(THREE, topics(t=part([0, 1, 2], [0, 1], adding=(2,))))),
        2,
        "",
    ),
    "a partition has no leader": (
        observed([pod(0), pod(1), pod(2, OLD)], reported(THREE, topics(t=part([2], [])))),
        None,
        "1 partitions have no leader",
    ),
    "a partition with one replica does not block it forever": (
        observed([pod(0), pod(1), pod(2, OLD)], reported(THREE, topics(t=part([2])))),
        2,
        "",
    ),
    "min.insync.replicas of a topic is not known": (
        observed([pod(n, OLD) for n in THREE], replace(reported(THREE, IN_SYNC), unknown_min_insync=("a", "b", "c"))),
        None,
        "min.insync.replicas of topic a and 2 more is unknown",
    ),
    "brokers do not answer": (observed([pod(n, OLD) for n in THREE]), None, "the brokers do not answer: no answer"),
    "a bad change: the one that had it goes again": (
        observed([pod(0, OLD), broken(1, "bad"), pod(2, OLD)], reported([0, 2], topics(t=part([0, 1, 2], [0, 2])))),
        1,
        "",
    ),
    "a bad change that runs and is not registered": (
        observed([pod(0, OLD), away(1, "bad"), pod(2, OLD)], reported([0, 2], topics(t=part([0, 1, 2], [0, 2])))),
        1,
        "",
    ),
    "a bad change that is registered and needed": (
        observed([pod(0), away(1, "bad"), pod(2)], reported(THREE, topics(t=part([0, 1, 2], [0, 1])))),
        None,
        "broker 1 is not ready",
    ),
    "all of them are bad": (observed([broken(n, "bad") for n in THREE]), 0, ""),
    "all of them run and none serves": (observed([away(n, "bad") for n in THREE]), 0, ""),
    "etcd is away: none is ready, and all serve": (
        observed([away(n, OLD) for n in THREE], reported(THREE, IN_SYNC)),
        None,
        "broker 0 is not ready",
    ),
    "not ready, and in sync nowhere": (
        observed([pod(0, OLD), away(1, "bad"), pod(2, OLD)], reported(THREE, topics(t=part([0, 1, 2], [0, 2])))),
        1,
        "",
    ),
    "not registered, and another is ending": (
        observed([away(0, "bad"), pod(1), pod(2, is_terminating=True)], reported([1])),
        None,
        "broker 0 is not ready",
    ),
    "not registered, and another has just been made": (
        observed([away(0, "bad"), pod(1), broken(2)], reported([1])),
        None,
        "broker 0 is not ready",
    ),
    "not registered, and another is yet to be made": (
        observed([away(0, "bad"), pod(1)], reported([1])),
        None,
        "broker 0 is not ready",
    ),
    "it does not run, and another does not either": (
        observed([broken(0, "bad"), pod(1), broken(2)], reported([1])),
        0,
        "",
    ),
    "none answers, and what is wanted now does not mend the first": (
        observed([away(0), away(1, "bad"), away(2, "bad")]),
        None,
        "broker 0 is not ready",
    ),
    "some serve, none answers, one runs and is bad": (
        observed([pod(0, OLD), away(1, "bad"), pod(2, OLD)]),
        None,
        "broker 1 is not ready",
    ),
    "a pod beyond those that are to stay": (
        observed([pod(0), pod(1), pod(2), pod(3, OLD)], reported([0, 1, 2, 3])),
        None,
        "",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_who_is_restarted(name: str) -> None:
    seen, goes, why = TABLE[name]
    pods = 1 if name == "one broker alone" else 3
    roll = plan_roll(cluster(pods), seen, NEW, pods, 0, ClusterAnnotations())
    assert (roll.action.ordinal if roll.action is not None else None) == goes
    assert why in roll.waits
    assert bool(roll.waits) == bool(why)
    if roll.action is not None:
        assert roll.action.uid == f"uid-{goes}", "only the pod that was seen"


@pytest.mark.parametrize(
    ("others", "goes"), [([pod(0), pod(2)], 1), ([pod(0), away(2, is_etcd_ready=False)], None), ([pod(0)], None)]
)
def test_a_pod_that_is_no_loss_still_goes_only_if_etcd_keeps_its_majority(others: list[Any], goes: int | None) -> None:
    bad = away(1, "bad")
    seen = observed(sorted([*others, bad], key=lambda p: p.ordinal), reported([0, 2]))
    roll = plan_roll(cluster(**SIDECAR), seen, NEW, 3, 3, ClusterAnnotations())
    assert (roll.action.ordinal if roll.action is not None else None) == goes


def test_a_cluster_that_was_never_formed_holds_nothing() -> None:
    seen = observed([away(0), away(1, "bad"), away(2, "bad")])
    assert plan_roll(cluster(status={"clusterId": None}), seen, NEW, 3, 0, ClusterAnnotations()).action is not None
    seen = observed([away(0), broken(1), away(2, "bad")])
    assert plan_roll(cluster(status={"clusterId": None}), seen, NEW, 3, 0, ClusterAnnotations()).action is None, (
        "one at a time"
    )
    seen = observed([pod(0), away(1, "bad"), away(2, "bad")])
    assert plan_roll(cluster(status={"clusterId": None}), seen, NEW, 3, 0, ClusterAnnotations()).action is None, (
        "one is ready"
    )


def test_partitions_are_tight_where_they_have_no_more_replicas_than_are_asked_for() -> None:
    there = topics(
        alone=part([0]),
        two=[part([0, 1]), part([2, 1])],
        coming=part([0, 1, 2], [0, 1], adding=(2,)),
        three=part([0, 1, 2]),
        low=part([0, 1]),
        unknown=part([0, 1]),
    )
    found = summary(there, {"alone": 1, "two": 2, "coming": 2, "three": 2, "low": 1})
    assert found.at_min_isr == {(0, 1): 2, (1, 2): 1}
    assert found.at_min_isr_example == "coming (2 replicas, min.insync.replicas 2)"
    assert [found.count_at_min_isr([n]) for n in THREE] == [2, 3, 1]
    assert found.count_at_min_isr(THREE) == 3, "each is counted once"
    assert summary(there).at_min_isr == {}


@pytest.mark.parametrize(("unknown_to", "goes"), [("uid-1", 1), ("uid-of-the-one-before", None), ("", None)])
def test_who_was_there_before_its_external_address_was_known_is_restarted(unknown_to: str, goes: int | None) -> None:
    seen = observed([pod(0), pod(1), pod(2)], reported(THREE))
    roll = plan_roll(cluster(), seen, NEW, 3, 0, ClusterAnnotations(external_unknown_to={1: unknown_to}))
    assert (roll.action.ordinal if roll.action is not None else None) == goes


ALL = [pod(0), pod(1), pod(2)]


TLS = [{"name": "clients", "port": 9093}]
GIVEN = {"source": "secret", "secretName": "given"}


@pytest.mark.parametrize(
    ("pods", "says", "may"),
    [
        (ALL, reported([0, 1, 2], topics(t=part([0, 1, 2]))), True),
        (ALL, reported([0, 1, 2], topics(t=part([0, 1, 2], [0, 1]))), False),
        # a broker that is unavailable, terminating or just restarted: the brokers' reports may be outdated
        ([pod(0), pod(1)], reported([0, 1], topics(t=part([0, 1]))), False),
        ([pod(0), pod(1), away(2)], reported([0, 1, 2], topics(t=part([0, 1, 2]))), False),
        ([pod(0), pod(1), pod(2, is_terminating=True)], reported([0, 1, 2], topics(t=part([0, 1, 2]))), False),
        ([pod(0), pod(1), pod(2, ready_since=NOW)], reported([0, 1, 2], topics(t=part([0, 1, 2]))), False),
        # states that waiting cannot fix: a broker without a pod, a partition's only replica, brokers that do not
        # respond
        (ALL, reported([0, 1, 2], topics(t=part([0, 1, 7], [0, 1]))), True),
        (ALL, reported([0, 1, 2], topics(t=ObservedPartition(-1, (7,), (7,)))), True),
        (ALL, None, True),
    ],
)
def test_a_drained_node_may_take_a_broker_only_while_all_others_that_come_back_are_in_sync(
    pods: list[ObservedPod], says: ReportedState | None, may: bool
) -> None:
    assert may_evict(cluster(), observed(pods, says, replicas=3), 3) is may


@pytest.mark.parametrize(("first", "policy"), [(pod(0), "AlwaysAllow"), (away(0), "IfHealthyBudget")])
def test_brokers_that_are_not_ready_may_leave_with_their_node_unless_none_is(first: ObservedPod, policy: str) -> None:
    seen = observed([first, away(1), away(2)], reported([0, 1, 2], topics(t=part([0, 1, 2]))), replicas=3)
    actions = reconcile(cluster(), seen, image="penstock:1").plan.actions
    (budget,) = [action.body for action in actions if isinstance(action, ApplyObject) and action.resource == BUDGETS]
    assert (budget["spec"]["maxUnavailable"], budget["spec"]["unhealthyPodEvictionPolicy"]) == (0, policy)


@pytest.mark.parametrize(
    ("given", "ready_since", "may"),
    [
        ({}, "2026-03-01T11:59:54Z", True),
        ({"listeners": TLS}, "2026-03-01T11:59:54Z", True),
        (
            {"listeners": TLS, "certificates": {"source": "secret", "issuerRef": {"name": "ca"}}},
            "2026-03-01T11:59:54Z",
            True,
        ),
        ({"listeners": TLS, "certificates": GIVEN}, "2026-03-01T11:59:54Z", False),
        ({"listeners": TLS, "certificates": GIVEN}, "2026-03-01T11:59:24Z", True),
        (
            {"listeners": [{"name": "a", "port": 9094, "type": "nodeport"}], "certificates": GIVEN},
            "2026-03-01T11:59:54Z",
            True,
        ),
    ],
)
def test_the_next_broker_stops_when_clients_can_resolve_the_name_of_the_last(
    given: dict[str, Any], ready_since: str, may: bool
) -> None:
    """DNS servers return the former address of a pod for 30 s. The addresses of Services do not change."""
    seen = observed([pod(0), pod(1, ready_since=ready_since), pod(2, OLD)], reported(THREE, IN_SYNC), replicas=3)
    roll = plan_roll(cluster(3, **given), seen, NEW, 3, 0, ClusterAnnotations())
    assert (roll.action is not None) is may
    assert may_evict(cluster(3, **given), seen, 3) is may


ROLLING = {"conditions": [{"type": "Rolled", "status": "False", "reason": "Rolling", "message": ""}]}
LAGGING = topics(t=[part([0, 1, 2], [0, 1])])


@pytest.mark.parametrize(
    ("seen", "status", "why"),
    [
        (observed([pod(0), pod(1), pod(2, OLD, is_terminating=True)], reported(THREE)), {}, "broker 2 is terminating"),
        (observed([pod(0), pod(1)], reported(THREE)), ROLLING, "broker 2 has no pod yet"),
        (observed([pod(0), pod(1), away(2)], reported([0, 1])), ROLLING, "broker 2 is not ready"),
        (observed([pod(0), pod(1), pod(2, ready_since=NOW)], reported(THREE)), ROLLING, "became ready less than 5 s"),
        (observed(map(pod, THREE), reported(THREE, LAGGING)), ROLLING, "replicas of broker 2 are not in sync"),
        (observed(map(pod, THREE)), ROLLING, "the brokers do not answer"),
        (observed(map(pod, THREE), reported(THREE, IN_SYNC)), ROLLING, ""),
        (observed([pod(0), pod(1), away(2)], reported([0, 1])), {}, ""),
    ],
)
def test_a_roll_is_over_when_the_last_broker_is_back_and_in_sync(
    seen: ObservedCluster, status: dict[str, Any], why: str
) -> None:
    roll = plan_roll(cluster(3, status=status), seen, NEW, 3, 0, ClusterAnnotations())
    assert roll.action is None
    assert why in roll.waits
    assert bool(roll.outdated) is bool(roll.waits) is bool(why)
    assert roll.must_restart is not bool(why)
