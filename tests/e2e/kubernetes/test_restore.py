"""The companion etcd is restored from a snapshot by one field, under load."""

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
SNAPSHOTS = ("etcd.snapshots.volume.claimName=etcd-snapshots", "etcd.snapshots.intervalMinutes=600")
PHASES = ["Verifying", "Stopping", "Preparing", "Installing", "Starting", "Recovering", "Completed"]


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("restore", brokers=3, etcd=3)
    release.kubectl.apply(CLAIM)
    release.install()
    release.kubectl.apply(release.topic("before", partitions=3, replicas=3))
    release.kubectl.wait(TOPICS, "before")
    return release


@pytest.fixture(scope="module")
def snapshot(release: Release) -> str:
    """Take a snapshot that has topic `before`; return its name."""
    release.upgrade(*SNAPSHOTS)
    release.kubectl.until(CLUSTERS, release.cluster, "Snapshots", "True", timeout_s=240)
    return str(release.kubectl.status(CLUSTERS, release.cluster)["snapshots"]["lastName"])


def members(release: Release) -> dict[str, str]:
    pods = release.kubectl.list("pods", "app.kubernetes.io/component=etcd")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def task_pods(release: Release) -> list[str]:
    return [p["metadata"]["name"] for p in release.kubectl.list("pods", "app.kubernetes.io/component=etcd-snapshot")]


def phase(release: Release) -> str:
    return str((release.kubectl.status(CLUSTERS, release.cluster).get("restore") or {}).get("phase"))


def quarantined(release: Release) -> int:
    """Return the number of replicas that brokers set aside."""
    found = 0
    for broker in range(3):
        script = "ls /var/lib/penstock/data/quarantine 2>/dev/null | wc -l"
        found += int(release.kubectl("exec", f"{NAME}-broker-{broker}", "-c", "broker", "--", "sh", "-c", script))
    return found


def test_a_restore_loses_no_acknowledged_message_of_topics_in_the_snapshot(release: Release, snapshot: str) -> None:
    old = members(release)
    release.kubectl.apply(release.topic("after", partitions=1, replicas=3))
    release.kubectl.wait(TOPICS, "after")
    release.penstock("produce", "after", stdin="one\n")
    with release.clients.load(release.connection, "before", rate=100) as load:
        release.upgrade(f"etcd.restore.snapshot={snapshot}")
        release.kubectl.until(CLUSTERS, release.cluster, "Restored", "True", timeout_s=420)
        for kind in ("Ready", "Healthy", "StateStore"):
            release.kubectl.until(CLUSTERS, release.cluster, kind, "True", timeout_s=240)
    load.verify()
    assert set(members(release)) == set(old)
    assert not set(members(release).values()) & set(old.values())
    events = [e["reason"] for e in release.kubectl.list("events") if e["reason"].startswith("Restore")]
    assert sorted(set(events)) == sorted(f"Restore{name}" for name in PHASES)
    eventually("the pods of the restore are deleted", lambda: not task_pods(release), 60)


def test_a_topic_that_the_snapshot_lacks_is_empty_and_its_messages_are_set_aside(release: Release) -> None:
    eventually("the data of topic after is in quarantine", lambda: quarantined(release) >= 3, 120)
    release.kubectl.wait(TOPICS, "after")
    release.penstock("produce", "after", stdin="two\n", timeout_s=120)
    assert release.penstock("consume", "after").split() == ["two"]


def test_the_field_stays_and_nothing_is_restored_again(release: Release) -> None:
    now = members(release)
    leader = release.leader()
    release.kubectl("delete", "pod", leader)
    eventually("another operator leads", lambda: release.leader() not in ("", leader), 120)
    release.upgrade("cluster.config.log\\.retention\\.hours=100")
    eventually(
        "the next operator has reconciled the Cluster",
        lambda: (
            release.kubectl.status(CLUSTERS, release.cluster).get("observedGeneration")
            == (release.kubectl.get(CLUSTERS, release.cluster) or {})["metadata"]["generation"]
        ),
        120,
    )
    release.kubectl.wait(CLUSTERS, release.cluster)
    assert phase(release) == "Completed"
    assert members(release) == now


def test_a_snapshot_that_does_not_exist_changes_nothing(release: Release) -> None:
    now = members(release)
    release.upgrade("etcd.restore.snapshot=etcd-20200101T000000Z")
    condition = release.kubectl.until(CLUSTERS, release.cluster, "Restored", "False", timeout_s=240)
    assert condition["reason"] == "Failed"
    assert '"etcd-20200101T000000Z" does not exist: the newest ones are etcd-' in condition["message"]
    assert members(release) == now
    release.kubectl.until(CLUSTERS, release.cluster, "Ready", "True")
    release.penstock("produce", "before", stdin="still\n")
