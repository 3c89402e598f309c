"""Hibernation of a Cluster: all pods stop, all data stays, and the cluster serves again soon after it wakes."""

from __future__ import annotations

import time

import pytest
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.release import CLUSTERS, TOPICS, Make, Release

ANNOTATION = "penstock.io/hibernate"


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("hibernation", brokers=3, etcd=3)
    release.install()
    release.kubectl.apply(release.topic("load", partitions=6, replicas=3))
    release.kubectl.wait(TOPICS, "load")
    return release


def pods(release: Release) -> list[str]:
    """Return the pods of brokers and etcd."""
    found = release.kubectl.list("pods", f"penstock.io/cluster={release.cluster}")
    return [pod["metadata"]["name"] for pod in found]


def warnings(release: Release) -> list[Object]:
    found = release.kubectl.list("events")
    return [e for e in found if e["type"] == "Warning" and e.get("reportingComponent") == "penstock.io/operator"]


def test_a_hibernated_cluster_has_no_pods_and_wakes_with_all_its_messages(release: Release) -> None:
    with release.clients.load(release.connection, "load") as load:
        time.sleep(5)  # writes for a while
    claims = {claim["metadata"]["uid"] for claim in release.kubectl.list("pvc")}
    before = len(warnings(release))
    release.kubectl("annotate", f"{CLUSTERS}/{release.cluster}", f"{ANNOTATION}=true")
    release.kubectl.until(CLUSTERS, release.cluster, "Hibernated", "True", timeout_s=180)
    assert pods(release) == []
    assert {claim["metadata"]["uid"] for claim in release.kubectl.list("pvc")} == claims

    def told() -> bool:
        return bool(release.kubectl.condition(TOPICS, "load", "Ready").get("reason") == "ClusterHibernated")

    eventually("the Topic says why it is not ready", told, 60)
    assert release.kubectl.status(TOPICS, "load")["partitions"] == 6

    began = time.monotonic()
    release.kubectl("annotate", f"{CLUSTERS}/{release.cluster}", f"{ANNOTATION}-")
    release.kubectl.until(CLUSTERS, release.cluster, "Ready", "True", timeout_s=180)
    print(f"hibernation: the cluster was ready {time.monotonic() - began:.1f} s after the annotation was removed")
    load.verify()
    release.kubectl.wait(TOPICS, "load")
    release.kubectl.until(CLUSTERS, release.cluster, "Healthy", "True")
    conditions = {c["type"]: c["status"] for c in release.kubectl.status(CLUSTERS, release.cluster)["conditions"]}
    assert "Hibernated" not in conditions
    assert conditions["StateStore"] == "True"
    assert warnings(release)[before:] == []
