"""Full rolls and node drains under heavy load, with clients that resolve names. A line `pauses: ...` (`ARGS=-s`) has
the longest pause of each partition in seconds.

`E2E_ROLLS` is the number of rolls (3). Needs three nodes that nothing else uses, because it drains them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from penstock_kubernetes.kubectl import eventually, run
from penstock_kubernetes.release import CLUSTERS, TOPICS, Make, Release

ROLLS = int(os.environ.get("E2E_ROLLS", "3"))
RATE = 4_000
pytestmark = [pytest.mark.full, pytest.mark.timeout(900 + 300 * ROLLS)]


def nodes() -> list[str]:
    """Return the nodes on which pods can be placed."""
    found = json.loads(run("kubectl", "get", "nodes", "--output", "json"))["items"]
    return [body["metadata"]["name"] for body in found if not body["spec"].get("taints")]


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    if len(nodes()) < 3:
        pytest.fail("needs three nodes: NODES=3 make e2e-full CLUSTER=local")
    release: Release = make_release("pauses", brokers=3, etcd=3)
    release.install()
    settings = {"min.insync.replicas": "2"}
    release.kubectl.apply(release.topic("load", partitions=6, replicas=3, config=settings))
    release.kubectl.wait(TOPICS, "load")
    release.settle()
    return release


@contextmanager
def heavy_load(release: Release, what: str) -> Iterator[None]:
    with release.clients.load(release.connection, "load", RATE) as load:
        yield
    print(f"pauses: {what}: {load.summary['pauses_s']} of {load.summary['count']} messages")
    print(f"pauses: {what}: {load.summary['pauses']}")
    assert load.summary["leaderless"] == []
    load.verify()


@pytest.mark.parametrize("roll", range(ROLLS))
def test_a_full_roll_under_heavy_load_loses_nothing_and_keeps_the_order(release: Release, roll: int) -> None:
    before = {pod["metadata"]["uid"] for pod in release.brokers().values()}
    with heavy_load(release, f"roll {roll}"):
        annotations = {"penstock.io/restart": f"pauses-{roll}"}
        release.kubectl.patch(CLUSTERS, release.cluster, {"metadata": {"annotations": annotations}})
        release.kubectl.until(CLUSTERS, release.cluster, "Progressing", "True", timeout_s=60)
        release.settle(600)
    assert not before & {pod["metadata"]["uid"] for pod in release.brokers().values()}


def test_drains_of_all_nodes_under_heavy_load_lose_nothing_and_keep_the_order(release: Release) -> None:
    for node in nodes():
        with heavy_load(release, f"drain of {node}"):
            try:
                arguments = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
                run("kubectl", "drain", node, *arguments, timeout_s=320)
                eventually("no pod is on the node", lambda name=node: name not in used_nodes(release), 60)
            finally:
                run("kubectl", "uncordon", node)
            release.settle(300)


def used_nodes(release: Release) -> set[str]:
    return {pod["spec"].get("nodeName", "") for pod in release.brokers().values()}
