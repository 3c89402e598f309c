"""Which pods share a node for no reason, and which of them moves, when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reconcile.cluster_tables import NOW, cluster, observed, part, pod, reported, topics
from reconcile.test_store import COMPANION, report, store_pod

from penstock_operator.reconcile.cluster.actions import MovePod
from penstock_operator.reconcile.cluster.groups import spread_groups
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.observed_nodes import (
    NodeRequirements,
    ObservedNode,
    read_node,
    read_requirements,
)
from penstock_operator.reconcile.cluster.observed_store import ObservedStore
from penstock_operator.reconcile.cluster.reconcile import reconcile
from penstock_operator.reconcile.cluster.roll import RollingRestart
from penstock_operator.reconcile.cluster.scale import ScalePlan
from penstock_operator.reconcile.cluster.spread import PlacedPod, PodGroup, SpreadPlan, plan_spread
from penstock_operator.reconcile.cluster.store import plan_store
from penstock_operator.specs.cluster_annotations import SpreadMove, read, written

NODES = tuple(ObservedNode(name) for name in "abc")
TWO = (store_pod(0), store_pod(1))
TAINT = ("key", "value", "NoSchedule")


def placed(nodes: str, **more: Any) -> tuple[PlacedPod, ...]:
    """Return pods on these nodes; "-": not scheduled."""
    return tuple(PlacedPod(f"p-{i}", f"u-{i}", None if n == "-" else n, **more) for i, n in enumerate(nodes))


def plan(
    pods: tuple[PlacedPod, ...], *nodes: ObservedNode, blocker: str = "", last: SpreadMove | None = None
) -> SpreadPlan:
    group = PodGroup("etcd", "members", pods, len(pods), blocker)
    return plan_spread([group], nodes or NODES, {} if last is None else {"etcd": last}, NOW)


def state(found: SpreadPlan) -> tuple[bool | None, str]:
    return found.is_spread, found.reason


@pytest.mark.parametrize(
    ("pods", "moved"),
    [
        ("abc", None), ("aab", "p-0"), ("aaa", "p-0"), ("baa", "p-1"), ("aabb", "p-0"), ("aabbc", None),
        ("aaabc", "p-0"), ("aabbcc", None), ("aaab", "p-0"), ("aaaabbc", "p-0"), ("a", None), ("aab-", "p-0"),
    ],
)  # fmt: skip
def test_a_pod_moves_if_another_node_has_at_least_two_less(pods: str, moved: str | None) -> None:
    found = plan(placed(pods))
    assert (found.move.name if found.move else None) == moved
    assert found.is_spread is (moved is None)


def test_what_is_told_of_pods_that_share_a_node() -> None:
    found = plan(placed("aab"))
    assert state(found) == (False, "Moving")
    assert found.message == "2 members share node a although node c has 0; moving pod p-0"
    assert found.move == MovePod("p-0", "u-0", "etcd", "a")
    assert found.moves == {"etcd": SpreadMove("p-0", NOW, 1)}
    assert plan(placed("abc")).message == "3 members run on 3 nodes"
    assert state(plan(placed("ab-"))) == (None, "Scheduling"), "one of them may come to a node that is taken"


@pytest.mark.parametrize(
    "node",
    [
        replace(NODES[2], is_ready=False),
        replace(NODES[2], is_cordoned=True),
        replace(NODES[2], taints=(TAINT,)),
        replace(NODES[2], labels={"disk": "slow"}),
    ],
)
def test_a_node_that_no_pod_may_use_is_not_free(node: ObservedNode) -> None:
    pods = placed("aab", requirements=NodeRequirements({"disk": "fast"}))
    fast = [replace(one, labels={"disk": "fast", **one.labels}) for one in (*NODES[:2], node)]
    assert state(plan(pods, *fast)) == (True, "Spread")
    tolerant = NodeRequirements(tolerations=({"key": "key", "operator": "Exists"},))
    if node.taints:
        assert state(plan(placed("aab", requirements=tolerant), *fast)) == (False, "Moving")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "key", "value": "value"}, True),
        ({"key": "key", "value": "value", "effect": "NoSchedule"}, True),
        ({"key": "key", "value": "value", "effect": "NoExecute"}, False),
        ({"key": "key"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations_are_those_of_kubernetes(toleration: dict[str, str], tolerates: bool) -> None:
    assert NodeRequirements(tolerations=(toleration,)).allow(replace(NODES[0], taints=(TAINT,))) is tolerates


def test_without_the_right_to_read_nodes_nothing_moves() -> None:
    found = plan_spread([PodGroup("etcd", "members", placed("aab"), 3)], None, {}, NOW)
    assert (state(found), found.move) == ((None, "NodesUnknown"), None)


def test_nothing_moves_while_it_must_not() -> None:
    found = plan(placed("aab"), blocker="etcd is not healthy")
    assert (state(found), found.move, found.moves) == ((False, "Crowded"), None, {})
    assert found.message.endswith("; waiting: etcd is not healthy")
    pods = placed("aab")
    held = (replace(pods[0], blocker="it has the only replica"), *pods[1:])
    moved = plan(held).move
    assert moved is not None
    assert moved.name == "p-1", "the other one may"
    both = tuple(replace(one, blocker="it has the only replica") for one in pods)
    assert plan(both).message.endswith("; waiting: it has the only replica")


def test_the_leader_moves_last() -> None:
    pods = placed("aab")
    moved = plan((replace(pods[0], rank=1), *pods[1:])).move
    assert moved is not None
    assert moved.name == "p-1"


def at(hours: int, minutes: int = 0) -> str:
    return f"2026-03-01T{hours:02}:{minutes:02}:00Z"  # NOW is 12:00


@pytest.mark.parametrize(
    ("last", "moved"),
    [
        (SpreadMove("p-0", at(11, 51), 1), None),
        (SpreadMove("p-0", at(11, 50), 1), "p-1"),
        (SpreadMove("p-1", at(11, 50), 1), "p-0"),
        (SpreadMove("p-0", at(11, 1), 2), None),
        (SpreadMove("p-0", at(11, 0), 2), "p-1"),
        (SpreadMove("p-0", at(6, 1), 3), None),
        (SpreadMove("p-0", "2026-02-28T12:01:00Z", 4), None),
        (SpreadMove("p-0", "2026-02-22T12:01:00Z", 5), None),
        (SpreadMove("p-0", "2026-02-22T12:01:00Z", 999), None),
        (SpreadMove("p-0", "2026-02-22T12:00:00Z", 5), "p-1"),
        (SpreadMove("p-0", at(13), 1), "p-1"),
        (SpreadMove("p-0", "yesterday", 1), "p-1"),
    ],
)
def test_a_pod_that_came_back_waits_longer_each_time(last: SpreadMove, moved: str | None) -> None:
    found = plan(placed("aab"), last=last)
    assert (found.move.name if found.move else None) == moved
    if moved is None:
        assert (state(found), found.moves) == ((False, "PlacedBack"), {"etcd": last})
    else:
        assert found.moves == {"etcd": SpreadMove(moved, NOW, last.attempts + 1)}


def test_moves_are_forgotten_once_the_pods_are_spread_for_a_day() -> None:
    recent, old = SpreadMove("p-0", at(1), 3), SpreadMove("p-0", "2026-02-28T11:59:59Z", 3)
    assert plan(placed("abc"), last=recent).moves == {"etcd": recent}, "another program may move it back"
    assert plan(placed("abc"), last=old).moves == {}


def test_only_one_pod_of_all_groups_moves() -> None:
    groups = [PodGroup("etcd", "members", placed("aab"), 3), PodGroup("brokers", "brokers", placed("bbc"), 3)]
    found = plan_spread(groups, NODES, {}, NOW)
    assert found.move is not None
    assert found.move.group == "etcd"
    assert list(found.moves) == ["etcd"]
    assert "2 brokers share node b although node a has 0" in found.message


def test_recorded_moves_survive_and_what_users_write_there_is_ignored() -> None:
    notes = replace(read({}), spread_moves={"etcd": SpreadMove("p-0", NOW, 2)})
    assert read(written(notes)) == notes
    for text in ("x", "[]", '{"other":["a","b",1]}', '{"etcd":["a","b"]}', '{"etcd":["a","b",0]}', '{"etcd":[1,2,3]}'):
        assert read({"penstock.io/spread-moves": text}).spread_moves == {}


def test_nodes_and_pods_are_read_as_kubernetes_writes_them() -> None:
    taints = [{"key": "key", "value": "value", "effect": "NoSchedule"}, {"key": "x", "effect": "PreferNoSchedule"}]
    body = {
        "metadata": {"name": "n", "labels": {"a": "b"}},
        "spec": {"unschedulable": True, "taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
    }
    assert read_node(body) == ObservedNode("n", False, True, {"a": "b"}, (TAINT,))
    assert read_node({"metadata": {"name": "n"}}) == ObservedNode("n")
    assert not read_requirements({"affinity": {"podAffinity": {}}}).prefers_apart
    assert read_requirements({"topologySpreadConstraints": [{}]}).prefers_apart
    assert read_requirements({"affinity": {"podAntiAffinity": {"x": 1}}, "nodeSelector": {"a": "b"}}) == (
        NodeRequirements({"a": "b"})
    )


def seen(brokers: str = "abc", etcd: str = "abc", **more: Any) -> ObservedCluster:
    """Return a healthy cluster whose pods are on these nodes."""
    members = tuple(store_pod(i, node=node) for i, node in enumerate(etcd))
    return observed(
        [pod(i, node=node) for i, node in enumerate(brokers)],
        more.pop("reported", reported(range(3), topics(t=part([0, 1, 2])))),
        replicas=3,
        nodes=more.pop("nodes", NODES),
        store=ObservedStore(more.pop("report", report()), pods=more.pop("members", members)),
        **more,
    )


def blockers(found: ObservedCluster, roll: RollingRestart | None = None, **spec: Any) -> dict[str, str]:
    """Return what blocks the moves of each group, with those of single brokers."""
    desired = cluster(etcd=COMPANION, **spec)
    store = plan_store(desired, found)
    groups = spread_groups(desired, found, ScalePlan(3), roll or RollingRestart(), store, is_changing=False)
    return {g.key: g.blocker or ", ".join(sorted({p.blocker for p in g.pods if p.blocker})) for g in groups}


def test_a_healthy_cluster_may_be_spread() -> None:
    assert blockers(seen()) == {"etcd": "", "brokers": ""}


@pytest.mark.parametrize(
    ("found", "etcd", "brokers"),
    [
        (seen(report=report((0, 1))), "etcd is not healthy", "etcd is not healthy"),
        (seen(report=report(alarms=frozenset({"NOSPACE"}))), "etcd is not healthy", "etcd is not healthy"),
        (seen(reported=None), "the brokers do not answer", "the brokers do not answer"),
        (
            seen(reported=reported(range(3), topics(t=part([0, 1, 2], [0, 1])))),
            "replicas of broker 2 are not in sync", "replicas of broker 2 are not in sync",
        ),
        (seen(reported=reported(range(3), topics(t=part([1])))), "", "1 partitions of broker 1 have a single replica"),
        (seen(members=TWO), "etcd has 2 members, and a move requires 3", ""),
        (seen(members=(*TWO, store_pod(2, is_ready=False))), "a member of etcd is not ready", ""),
        (seen(members=(*TWO, store_pod(2, ready_since=NOW))), "a member of etcd became ready", ""),
    ],
)  # fmt: skip
def test_no_pod_moves_unless_all_is_healthy(found: ObservedCluster, etcd: str, brokers: str) -> None:
    told = blockers(found)
    assert told["etcd"].startswith(etcd)
    assert bool(told["etcd"]) == bool(etcd)
    assert told["brokers"].startswith(brokers)
    assert bool(told["brokers"]) == bool(brokers)


def test_no_pod_moves_during_another_change() -> None:
    roll = RollingRestart((1,), None, "waits", "Waiting")
    assert blockers(seen(), roll)["brokers"] == "another change of the brokers is in progress"


def test_pods_that_do_not_ask_to_be_spread_are_left_where_they_are() -> None:
    together = NodeRequirements(prefers_apart=False)
    found = seen(members=tuple(store_pod(i, requirements=together) for i in range(3)))
    assert list(blockers(found)) == ["brokers"]


def test_the_whole_plan_records_a_move_before_it_starts_and_makes_one_at_a_time() -> None:
    crowded = seen(brokers="abc", etcd="aab")
    made = reconcile(cluster(etcd=COMPANION), crowded, image="i").plan
    kinds = [type(action).__name__ for action in made.actions]
    assert "MovePod" not in kinds, "the StatefulSet has to be applied first"
    conditions = {c.type: (c.status, c.reason) for c in made.status.conditions}
    assert conditions["Spread"] == ("False", "Moving")
    assert conditions["StateStore"] == ("True", "Healthy")
