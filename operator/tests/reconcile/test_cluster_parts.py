"""Partition summaries, broker settings, moves, and parsing of pods and claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reconcile.cluster_tables import NOW, cluster, observed, part, pod, reported, topics

from penstock.placement.model import Move, PartitionKey
from penstock_operator.ports.brokers import ConfigPatch
from penstock_operator.reconcile.cluster.moves import MAX_MOVING_PARTITIONS, next_moves, open_moves
from penstock_operator.reconcile.cluster.observed import read_claim, read_pod
from penstock_operator.reconcile.cluster.partitions import summary
from penstock_operator.reconcile.cluster.roll import RollingRestart
from penstock_operator.reconcile.cluster.scale import ScalePlan
from penstock_operator.reconcile.cluster.settings import domain_changes, running_changes
from penstock_operator.reconcile.cluster.status import Findings, broker_states
from penstock_operator.reconcile.cluster.storage import StoragePlan
from penstock_operator.specs.cluster_annotations import ClusterAnnotations
from penstock_operator.specs.settings import DOMAIN, RACK, THROTTLE


def test_partitions_are_summed_up() -> None:
    found = summary(
        topics(
            a=[part([0, 1, 2]), part([0, 1, 2], [0, 1])],
            b=part([3], []),
            c=part([0, 1, 2, 3], [0, 1, 2], adding=(3,), removing=(0,)),
        )
    )
    assert (found.total, found.offline, found.under_replicated, found.moving) == (4, 1, 2, 1)
    assert dict(found.out_of_sync) == {2: 1, 3: 1}
    assert dict(found.in_sync) == {0: 3, 1: 3, 2: 2}
    assert dict(found.single_replica) == {3: 1}
    assert dict(found.replica_counts) == {0: 3, 1: 3, 2: 3, 3: 2}
    assert found.topics_needing_more_than(2) == "a (3), c (3)"
    assert found.topics_needing_more_than(3) == ""


@pytest.mark.parametrize(
    ("zones", "before", "change"),
    [
        ({"node-0": "a"}, {}, {DOMAIN: "a/node-0", RACK: "a"}),
        ({"node-0": "a"}, {DOMAIN: "a/node-0", RACK: "a"}, None),
        ({"node-0": "a"}, {DOMAIN: "b/node-7", RACK: "b"}, {DOMAIN: "a/node-0", RACK: "a"}),
        ({}, {}, {DOMAIN: "node-0"}),
        (None, {}, {DOMAIN: "node-0"}),
        (None, {DOMAIN: "a/node-0", RACK: "a"}, None),
        (None, {DOMAIN: "a/node-1", RACK: "a"}, {DOMAIN: "node-0", RACK: None}),
    ],
)
def test_a_broker_is_told_where_it_stands(
    zones: dict[str, str] | None, before: dict[str, str], change: dict[str, str | None] | None
) -> None:
    seen = observed([pod(0)], reported([0], settings={0: before}), zones=zones)
    found = domain_changes(cluster(1), seen)
    assert found == (() if change is None else (ConfigPatch("0", change),))


@pytest.mark.parametrize("there", [pod(0, node=None), pod(0, is_terminating=True), pod(1)])
def test_a_broker_without_a_place_is_told_nothing(there: object) -> None:
    assert domain_changes(cluster(1), observed([there], reported([0]))) == ()  # type: ignore[list-item]


WANTED = {THROTTLE: "50000000", "log.retention.hours": "5"}


@pytest.mark.parametrize(
    ("config", "before", "recorded", "changes", "annotations"),
    [
        ({"log.retention.hours": "5"}, [{}, {}], set(), {"": WANTED}, set(WANTED)),
        ({"log.retention.hours": "5"}, [WANTED, WANTED], set(WANTED), {}, set(WANTED)),
        ({"log.retention.hours": "+5 "}, [WANTED, WANTED], set(WANTED), {}, set(WANTED)),
        ({}, [WANTED, WANTED], set(WANTED),
         {number: {"log.retention.hours": None} for number in ("", "0", "1")}, set(WANTED)),
        # Each broker has a manual value: a cluster-wide value alone would not take effect, and the operator would set
        # it in every reconciliation.
        ({}, [{THROTTLE: "9"}] * 2, {THROTTLE},
         {"": {THROTTLE: "50000000"}, "0": {THROTTLE: None}, "1": {THROTTLE: None}}, {THROTTLE}),
        ({}, [{THROTTLE: "50000000"}] * 2, set(WANTED), {}, {THROTTLE}),
        ({}, [{THROTTLE: "50000000", "x": "by hand"}] * 2, {THROTTLE}, {}, {THROTTLE}),
        ({}, [{THROTTLE: "50000000"}, {THROTTLE: "9"}], {THROTTLE},
         {"": {THROTTLE: "50000000"}, "1": {THROTTLE: None}}, {THROTTLE}),
    ],
)  # fmt: skip
def test_settings_for_all_brokers_are_set_and_taken_back(
    config: dict[str, str],
    before: list[dict[str, str]],
    recorded: set[str],
    changes: dict[str, dict[str, str | None]],
    annotations: set[str],
) -> None:
    seen = observed([], reported([0, 1], settings=dict(enumerate(before))))
    found, after = running_changes(cluster(2, config=config), seen, ClusterAnnotations(settings=frozenset(recorded)))
    assert {change.name: dict(change.settings) for change in found} == changes
    assert after.settings == annotations


def test_moves_are_begun_in_batches_and_the_plan_is_kept_while_it_fits() -> None:
    there = topics(**{f"t{n}": [part([0])] * 10 for n in range(60)})
    seen = observed([], reported([0, 1], there))
    moves = next_moves(seen, None)
    assert len(moves.begin) == MAX_MOVING_PARTITIONS
    assert moves.left == 300
    assert moves.planned is not None
    (name, index), after = next(iter(moves.begin.items()))
    begun = dict(there)
    parts = list(there[name].partitions)
    parts[index] = part([*after, 0], [0], adding=after, removing=(0,))
    begun[name] = replace(there[name], partitions=tuple(parts))
    again = next_moves(replace(seen, reported=reported([0, 1], begun)), moves.planned)
    assert again.planned is moves.planned
    assert len(again.begin) == MAX_MOVING_PARTITIONS - 1
    assert (name, index) not in again.begin
    assert again.left == 300


def test_a_plan_that_no_longer_fits_is_made_anew() -> None:
    there = topics(t=[part([0]), part([0])])
    planned = next_moves(observed([], reported([0, 1], there)), None).planned
    assert planned is not None
    assert open_moves(planned, planned.brokers, there)
    assert open_moves(planned, planned.brokers[:1], there) is None, "other brokers"
    move = planned.moves[0]
    parts = [part([0]), part([0])]
    parts[move.key.partition] = part([5])
    assert open_moves(planned, planned.brokers, topics(t=parts)) is None, "another client moved it"
    assert open_moves(planned, planned.brokers, {}) == [], "deleted since"
    assert move == Move(PartitionKey("t", move.key.partition), (0,), (1,))


def test_a_pod_is_read_as_kubernetes_tells_it() -> None:
    body = {
        "metadata": {"name": "c-broker-4", "uid": "u", "annotations": {"penstock.io/restart": "h"}},
        "spec": {"nodeName": "n"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": NOW}],
            "containerStatuses": [{"name": "broker", "state": {"running": {"startedAt": NOW}}}],
            "initContainerStatuses": [{"name": "etcd", "ready": True}],
        },
    }
    found = read_pod("c", body)
    assert found is not None
    assert (found.ordinal, found.restart, found.is_ready, found.is_running) == (4, "h", True, True)
    assert (found.is_etcd_ready, found.node, found.problem) == (True, "n", "")
    waiting = {"name": "broker", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
               "lastState": {"terminated": {"exitCode": 2}}}  # fmt: skip
    found = read_pod("c", body | {"status": {"containerStatuses": [waiting]}})
    assert found is not None
    assert found.problem == "container broker: CrashLoopBackOff, last exit code 2"
    assert not found.is_running
    for name in ("c-broker", "c-broker-x", "d-broker-1", "c-etcd-0"):
        assert read_pod("c", {"metadata": {"name": name}}) is None


def test_a_claim_is_read_by_its_name() -> None:
    body = {"metadata": {"name": "etcd-my-c-broker-2"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    found = read_claim("my-c", body)
    assert found is not None
    assert (found.template, found.ordinal, found.requested) == ("etcd", 2, "1Gi")
    assert read_claim("c", body) is None
    assert read_claim("my-c", {"metadata": {"name": "logs-my-c-broker-2"}}) is None


def test_a_broker_without_a_pod_is_not_ready_although_it_is_registered() -> None:
    found = Findings(ScalePlan(3), RollingRestart(), StoragePlan({}))
    states = broker_states(cluster(3), observed([pod(0)], reported([0, 1])), found)
    assert [broker.state for broker in states] == ["Ready", "NotReady", "Missing"]
