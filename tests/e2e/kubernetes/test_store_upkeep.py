"""The companion etcd is looked after: snapshots on a schedule, and volumes that grow."""

from __future__ import annotations

import pytest
from penstock_kubernetes.kubectl import eventually
from penstock_kubernetes.release import CLUSTERS, NAME, TOPICS, Make, Release

CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "etcd-snapshots"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
SNAPSHOTS = ("etcd.snapshots.volume.claimName=etcd-snapshots", "etcd.snapshots.intervalMinutes=5")


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    values = ("etcd.companion.storage.className=expandable", "etcd.companion.storage.size=1Gi", *SNAPSHOTS)
    release: Release = make_release("upkeep", brokers=1, etcd=3, values=values)
    release.kubectl.apply(CLAIM)
    release.install()
    return release


def test_a_snapshot_is_taken_verified_and_told(release: Release) -> None:
    release.kubectl.apply(release.topic("before", partitions=1))
    release.kubectl.wait(TOPICS, "before")
    release.kubectl.until(CLUSTERS, release.cluster, "Snapshots", "True", timeout_s=240)
    found = release.kubectl.status(CLUSTERS, release.cluster)["snapshots"]
    assert found["lastName"].startswith("etcd-")
    assert found["lastSizeBytes"] > 10_000
    assert len(found["lastSha256"]) == 64
    assert found["stored"] == [found["lastName"]]
    stored = [event for event in release.kubectl.list("events") if event["reason"] == "SnapshotStored"]
    assert found["lastSha256"] in stored[0]["message"]
    eventually("the pod is deleted", lambda: not release.kubectl.get("pod", f"{NAME}-etcd-snapshot"), 60)
    assert "penstock_operator_last_snapshot_bytes" in release.operator_metrics()
    release.kubectl.until(CLUSTERS, release.cluster, "Healthy", "True")


def test_the_volumes_of_etcd_grow_by_an_upgrade_and_no_member_restarts(release: Release) -> None:
    def members() -> dict[str, str]:
        pods = release.kubectl.list("pods", "app.kubernetes.io/component=etcd")
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    def capacities() -> list[str]:
        claims = [release.kubectl.get("pvc", f"data-{NAME}-etcd-{n}") or {} for n in range(3)]
        return [claim.get("status", {}).get("capacity", {}).get("storage", "") for claim in claims]

    before = members()
    release.upgrade("etcd.companion.storage.size=2Gi")
    eventually("all volumes have grown", lambda: capacities() == ["2Gi"] * 3, 180, 1)
    assert members() == before
    release.upgrade("etcd.companion.storage.size=1Gi")
    condition = release.kubectl.until(CLUSTERS, release.cluster, "Storage", "False")
    assert condition["reason"] == "SmallerRefused"
    release.upgrade("etcd.companion.storage.size=2Gi")
    eventually(
        "condition Storage is gone", lambda: not release.kubectl.condition(CLUSTERS, release.cluster, "Storage"), 60
    )
    release.kubectl.until(CLUSTERS, release.cluster, "StateStore", "True")
