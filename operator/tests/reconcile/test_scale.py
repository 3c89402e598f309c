"""Scaling: desired × observed → number of pods, drains, rejections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from reconcile.cluster_tables import away, broken, cluster, observed, part, pod, reported, topics

from penstock_operator.model.cluster import MAX_BROKERS
from penstock_operator.ports.kube import CONFIG_MAPS
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.scale import plan_scale
from penstock_operator.specs.cluster_annotations import ClusterAnnotations
from penstock_operator.specs.etcd import FOUNDED
from penstock_operator.specs.settings import DRAINING

FOUR, FIVE = list(range(4)), list(range(5))
NOTED = {(CONFIG_MAPS, "c-broker"): {"metadata": {"ownerReferences": [{"uid": "u"}]}, "data": {FOUNDED: "true"}}}
"""ConfigMap of this Cluster after its brokers formed a cluster."""
ON_LAST = topics(t=part([1, 2, 3]))


def seen(
    there: int, *, registered: list[int] | None = None, parts: Any = None, replicas: int = 0, **more: Any
) -> ObservedCluster:
    numbers = list(range(there)) if registered is None else registered
    return observed(map(pod, range(there)), reported(numbers, parts, **more), replicas=replicas or there)


@dataclass(frozen=True)
class Row:
    wanted: int
    observed: ObservedCluster
    pods: int
    reason: str
    drains: tuple[int, ...] = ()
    undrains: tuple[int, ...] = ()
    shrinks: bool = False
    recorded: frozenset[int] = frozenset()
    annotations: frozenset[int] = field(default_factory=frozenset)
    members: int = 0
    never_formed: bool = False
    knew: int = 0
    says: str = ""


TABLE = {
    "a new cluster": Row(3, observed(), 3, "AsWanted"),
    "as wanted": Row(3, seen(3), 3, "AsWanted"),
    "more at once": Row(5, seen(3), 5, "ScalingUp", annotations=frozenset({3, 4})),
    "more, also where brokers do not answer": Row(
        5, observed(map(pod, range(3)), replicas=3), 5, "ScalingUp", annotations=frozenset({3, 4})
    ),
    "fewer: drained first": Row(
        3, seen(5, parts=topics(t=part([1, 3, 4]))), 5, "Draining", drains=(3, 4), annotations=frozenset({3, 4})
    ),
    "fewer: the drain was begun": Row(
        3, seen(4, parts=ON_LAST, draining=[3]), 4, "Draining", recorded=frozenset({3}), annotations=frozenset({3}),
        says="1 replicas left",
    ),
    "fewer: empty, and says so": Row(
        3, seen(4, draining=[3], removable=[3]), 3, "ScalingDown", shrinks=True, recorded=frozenset({3}),
        annotations=frozenset({3}),
    ),
    "fewer: it holds nothing and was not drained": Row(
        3, seen(4), 4, "Draining", drains=(3,), annotations=frozenset({3})
    ),
    "fewer: one of two is empty": Row(
        3, seen(5, parts=topics(t=part([0, 1, 4])), draining=[3, 4], removable=[3]), 5, "Draining",
        recorded=frozenset({3, 4}), annotations=frozenset({3, 4}),
    ),
    "fewer: it says removable and was given something since": Row(
        3, seen(4, parts=ON_LAST, draining=[3], removable=[3]), 4, "Draining", recorded=frozenset({3}),
        annotations=frozenset({3}),
    ),
    "fewer: the broker is away and holds nothing": Row(
        3, seen(4, registered=[0, 1, 2]), 3, "ScalingDown", shrinks=True, annotations=frozenset({3})
    ),
    "fewer: the broker is away and holds something": Row(
        3, seen(4, registered=[0, 1, 2], parts=ON_LAST), 4, "Draining", annotations=frozenset({3}),
        says="broker 3 is down and holds replicas",
    ),
    "fewer: who is to take replicas is away": Row(
        3, seen(4, registered=[0, 2, 3], parts=ON_LAST), 4, "Waiting", says="waits for broker 1"
    ),
    "fewer: brokers do not answer": Row(3, observed(map(pod, range(4)), replicas=4), 4, "Waiting", says="no answer"),
    "fewer: never formed": Row(
        3, observed(map(broken, range(5)), replicas=5), 3, "AsWanted", shrinks=True, never_formed=True
    ),
    "fewer: the status was lost, and brokers are away": Row(
        3, observed(map(away, range(5)), replicas=5, live=NOTED), 5, "Waiting", never_formed=True, says="no answer"
    ),
    "the StatefulSet is gone, the status was lost, and pods are away": Row(
        3, observed(map(away, range(5)), live=NOTED), 5, "Waiting", never_formed=True, says="no answer"
    ),
    "more pods than a cluster can have": Row(
        3, observed(replicas=2_000_000), MAX_BROKERS, "Waiting", says="no answer"
    ),
    "fewer than a topic's replicas": Row(
        2, seen(4, parts=topics(t=part([0, 1, 2]))), 4, "TooFewBrokers", says="t (3)"
    ),
    "fewer than a topic's replicas, the drain was begun": Row(
        2, seen(4, parts=topics(t=part([0, 1, 2])), draining=[2, 3]), 4, "TooFewBrokers", undrains=(2, 3),
        recorded=frozenset({2, 3}), annotations=frozenset({2, 3}),
    ),
    "fewer, and a person drains one of those left": Row(
        3, seen(4, parts=topics(t=part([0, 1, 2])), draining=[0]), 4, "TooFewBrokers",
        says="broker 0 is drained manually",
    ),
    "fewer than members of etcd": Row(2, seen(4), 4, "BelowEtcdMembers", members=3, says="at least 3"),
    "taken back": Row(
        4, seen(4, draining=[3]), 4, "AsWanted", undrains=(3,), recorded=frozenset({3}), annotations=frozenset({3})
    ),
    "taken back, and done": Row(4, seen(4), 4, "AsWanted", recorded=frozenset({3})),
    "more again, and one that was drained before does not answer yet": Row(
        4, seen(4, silent=[3]), 4, "AsWanted", recorded=frozenset({3}), annotations=frozenset({3})
    ),
    "more again, and one that was drained before answers": Row(
        4, seen(4, draining=[3]), 4, "AsWanted", undrains=(3,), recorded=frozenset({3}), annotations=frozenset({3})
    ),
    "drained by a person": Row(4, seen(4, draining=[3]), 4, "AsWanted"),
    "the StatefulSet is gone, its pods are not": Row(
        3, observed(map(pod, range(5)), reported(FIVE, topics(t=part([0, 1, 4])))), 5, "Draining", drains=(3, 4),
        annotations=frozenset({3, 4}),
    ),
    "the StatefulSet is gone, and its pods too": Row(3, observed(), 5, "Waiting", knew=5),
    "the StatefulSet is gone, and the pod that was to go last": Row(
        3, observed(map(pod, range(4)), reported(range(4), topics(t=part([0, 1, 4])))), 5, "Draining", drains=(3,),
        annotations=frozenset({3, 4}), knew=5, says="broker 4 is down and holds replicas",
    ),
    "volumes of an earlier cluster with more members of etcd": Row(1, observed(), 3, "BelowEtcdMembers", members=3),
    "still fewer, of which one is taken back": Row(
        3, seen(5, parts=topics(t=part([0, 1, 2])), draining=[2, 3, 4]), 5, "Draining", undrains=(2,),
        recorded=frozenset({2, 3, 4}), annotations=frozenset({2, 3, 4}),
    ),
    "still fewer, of which one was taken back": Row(
        3, seen(5, parts=topics(t=part([0, 1, 2])), draining=[3, 4]), 5, "Draining", recorded=frozenset({2, 3, 4}),
        annotations=frozenset({3, 4}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_how_many_pods_and_who_is_drained(name: str) -> None:
    row = TABLE[name]
    status = {"brokers": [{"id": number, "state": "Ready"} for number in range(row.knew)]}
    desired = cluster(row.wanted, status={"clusterId": None} if row.never_formed else status)
    scale = plan_scale(desired, row.observed, ClusterAnnotations(draining=row.recorded), row.members)
    changes = {int(change.name): change.settings[DRAINING] for change in scale.changes}
    assert (scale.pods, scale.reason, scale.shrinks) == (row.pods, row.reason, row.shrinks)
    assert tuple(n for n, value in changes.items() if value == "true") == row.drains
    assert tuple(n for n, value in changes.items() if value is None) == row.undrains
    assert scale.draining == row.annotations
    assert row.says in scale.message
    assert scale.ok == (row.reason == "AsWanted" and not (row.shrinks and not row.never_formed))
    assert scale.pods >= row.wanted, "never fewer than wanted"


def test_a_broker_that_may_still_be_drained_is_looked_at_again_soon() -> None:
    silent = plan_scale(cluster(4), seen(4, silent=[3]), ClusterAnnotations(draining=frozenset({3})), 0)
    assert silent.requeue_after_s == 2.0
    told = plan_scale(cluster(4), seen(4), ClusterAnnotations(draining=frozenset({3})), 0)
    assert told.requeue_after_s is None


def test_moves_off_a_broker_that_stays_are_taken_back() -> None:
    moving = topics(
        t=[part([0, 1, 2, 3], [0, 1, 3], adding=(2,), removing=(3,)), part([0, 1, 2], adding=(), removing=(1,))]
    )
    scale = plan_scale(cluster(4), seen(4, parts=moving, draining=[3]), ClusterAnnotations(draining=frozenset({3})), 0)
    assert scale.cancels == (("t", 0),)
    assert scale.moving, "what has moved is given back"
