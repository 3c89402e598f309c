"""Three nodes in three zones. Needs the local cluster's script `node`, which kills a node or disconnects it."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from penstock_kubernetes.kubectl import eventually, run
from penstock_kubernetes.release import CLUSTERS, TOPICS, Make, Release

pytestmark = pytest.mark.full


def node(what: str, number: int) -> None:
    subprocess.run([os.environ["LOCAL_CLUSTER"] + "/node", what, str(number)], check=True, timeout=120)


def zones() -> dict[str, str]:
    found = json.loads(run("kubectl", "get", "nodes", "--output", "json"))["items"]
    label = "topology.kubernetes.io/zone"
    return {n["metadata"]["name"]: n["metadata"]["labels"][label] for n in found if label in n["metadata"]["labels"]}


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    if len(set(zones().values())) < 3 or "LOCAL_CLUSTER" not in os.environ:
        pytest.fail("needs three nodes in three zones: NODES=3 make e2e-full CLUSTER=local")
    release: Release = make_release("zones", brokers=6, etcd=3, values=("cluster.brokers.storage.className=standard",))
    release.install()
    release.kubectl.apply(release.topic("spread", partitions=12, replicas=3))
    release.kubectl.wait(TOPICS, "spread")
    return release


def replicas(release: Release) -> list[list[int]]:
    script = (
        "import sys, json; from confluent_kafka.admin import AdminClient as A; "
        "t = A(json.loads(sys.argv[1])).list_topics('spread', timeout=20).topics['spread']; "
        "print(json.dumps([p.replicas for p in t.partitions.values()]))"
    )
    return list(json.loads(release.clients.run("python", "-c", script, release.connection)))


def zone_of_brokers(release: Release) -> dict[int, str]:
    found = zones()
    return {int(n.rsplit("-", 1)[1]): found[p["spec"]["nodeName"]] for n, p in release.brokers().items()}


def test_replicas_of_every_partition_are_in_three_zones(release: Release) -> None:
    assert set(zone_of_brokers(release).values()) == {"a", "b", "c"}
    release.kubectl.apply(release.topic("spread", partitions=12, replicas=3))
    eventually("each partition is in each zone", lambda: not crowded(release), 120, 2)


def crowded(release: Release) -> list[list[int]]:
    zone = zone_of_brokers(release)
    return [brokers for brokers in replicas(release) if len({zone[b] for b in brokers}) < 3]


def nodes_of_etcd(release: Release) -> list[str]:
    pods = release.kubectl.list("pods", "app.kubernetes.io/component=etcd")
    return [pod["spec"].get("nodeName", "") for pod in pods]


def test_members_of_etcd_that_a_drain_brought_together_are_moved_apart(release: Release) -> None:
    assert len(set(nodes_of_etcd(release))) == 3
    moved = release.kubectl.get("pod", "penstock-etcd-2") or {}
    node_name = moved["spec"]["nodeName"]
    run("kubectl", "cordon", node_name)
    try:
        release.kubectl("delete", "pod", "penstock-etcd-2")
        eventually("two members share a node", lambda: len(set(nodes_of_etcd(release)) - {""}) == 2, 120)
        release.kubectl.wait("pod", "penstock-etcd-2")
    finally:
        run("kubectl", "uncordon", node_name)
    condition = lambda: release.kubectl.condition(CLUSTERS, release.cluster, "Spread")  # noqa: E731
    eventually("the status has it", lambda: condition().get("status") == "False", 120)
    eventually("no members share a node", lambda: len(set(nodes_of_etcd(release)) - {""}) == 3, 300, 1)
    eventually("all pods are spread", lambda: condition().get("status") == "True", 120)


@pytest.mark.parametrize(("harm", "mend"), [("kill", "start"), ("cut", "mend")])
def test_the_loss_of_a_node_loses_no_message(release: Release, harm: str, mend: str) -> None:
    with release.clients.load(release.connection, "spread") as load:
        node(harm, 3)
        try:
            led = lambda: not [p for p in leaders(release) if p < 0]  # noqa: E731
            eventually("every partition is led again", led, 120, 1)
        finally:
            node(mend, 3)
        release.until_scaled(6, timeout_s=400)
    load.verify()


def leaders(release: Release) -> list[int]:
    script = (
        "import sys, json; from confluent_kafka.admin import AdminClient as A; "
        "t = A(json.loads(sys.argv[1])).list_topics('spread', timeout=20).topics['spread']; "
        "print(json.dumps([p.leader for p in t.partitions.values()]))"
    )
    return list(json.loads(release.clients.run("python", "-c", script, release.connection)))
