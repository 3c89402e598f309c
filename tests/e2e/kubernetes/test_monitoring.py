"""A real Prometheus scrapes what the chart's ServiceMonitors select: its alerts fire by their faults, and only then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from penstock_kubernetes.kubectl import eventually
from penstock_kubernetes.prometheus import IMMEDIATE, Prometheus, render
from penstock_kubernetes.release import CHART, CLUSTERS, NAME, TOPICS, Make, Release

pytestmark = pytest.mark.full

BROKERS, MEMBERS = 3, 3
MAX_LAG = 20
OF_MACHINE = "PenstockDiskFilling"
"""Alert on the disk that other programs fill, too: its copy without `for` extrapolates one minute of their writes."""


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("monitoring", brokers=BROKERS, etcd=MEMBERS)
    release.install()
    release.kubectl.apply(
        release.topic("load", partitions=6, replicas=3, config={"min.insync.replicas": "2"}),
        release.topic("single", partitions=BROKERS, replicas=1),
    )
    for topic in ("load", "single"):
        release.kubectl.wait(TOPICS, topic)
    release.settle()
    return release


@pytest.fixture(scope="module")
def prometheus(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    values = (f"monitoring.prometheusRule.lagRecords={MAX_LAG}",)
    documents = render(values, release.namespace, CHART)
    folder = tmp_path_factory.mktemp("prometheus")
    with Prometheus(os.environ["E2E_EXEC_IN"], folder, documents, release.kubectl) as prometheus:
        yield prometheus


@contextmanager
def pods_down(release: Release, *names: str) -> Iterator[None]:
    """Delete pods, and permit none in their place during the block."""
    running = [pod for pod in release.kubectl.list("pods") if pod["status"]["phase"] in ("Pending", "Running")]
    spec = {"hard": {"pods": str(len(running) - len(names))}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few-pods"}, "spec": spec}
    release.kubectl.apply(quota)
    try:
        in_effect = lambda: (release.kubectl.status("resourcequota", "few-pods").get("used") or {}).get("pods")  # noqa: E731
        eventually("the quota is in effect", in_effect, 60)
        release.kubectl("delete", "pod", *names, "--grace-period=0", "--force")
        yield
    finally:
        release.kubectl("delete", "resourcequota", "few-pods")


def broker(ordinal: int) -> str:
    return f"{NAME}-broker-{ordinal}"


def test_each_pod_is_one_target_and_has_the_labels_of_its_cluster(release: Release, prometheus: Prometheus) -> None:
    expected = {
        f"{NAME}-brokers": [broker(n) for n in range(BROKERS)],
        f"{NAME}-etcd": [f"{NAME}-etcd-{n}" for n in range(MEMBERS)],
        f"{NAME}-operator": sorted(release.operators()),
    }

    def scraped() -> bool:
        return {job: sorted(pods) for job, pods in prometheus.targets().items()} == expected

    eventually(f"the targets are {expected}", scraped, 60)
    assert not prometheus.query("up == 0")
    # Each replica of the operator exports it.
    labels = "namespace, cluster, status"
    (ready,) = prometheus.query(f'max by ({labels}) (penstock_operator_cluster_condition{{condition="Ready"}})')
    assert (ready["namespace"], ready["cluster"], ready["status"]) == (release.namespace, NAME, "True")
    found = {series["penstock_io_cluster"] for series in prometheus.query("penstock_ready")}
    assert found == {NAME}


def firing(prometheus: Prometheus) -> set[str]:
    """Return the alerts and immediate copies that fire, without those on the machine."""
    return {labels["alertname"] for labels in prometheus.firing()} - {OF_MACHINE, OF_MACHINE + IMMEDIATE}


def test_a_healthy_cluster_fires_no_alert(release: Release, prometheus: Prometheus) -> None:
    release.settle()
    eventually("no alert is immediate", lambda: not firing(prometheus), 60)


def test_a_roll_and_a_scale_fire_no_alert(release: Release, prometheus: Prometheus) -> None:
    annotations = {"penstock.io/restart": "monitoring"}
    release.kubectl.patch(CLUSTERS, release.cluster, {"metadata": {"annotations": annotations}})
    release.kubectl.until(CLUSTERS, release.cluster, "Progressing", "True", timeout_s=60)
    release.settle()
    release.scale(BROKERS + 1)
    release.scale(BROKERS)
    release.settle()
    assert prometheus.query(f'count_over_time(ALERTS{{alertname=~".*{IMMEDIATE}"}}[1h])'), "replicas were out of sync"
    assert prometheus.fired() <= {OF_MACHINE}


def test_brokers_that_are_down_fire_the_alerts_on_replicas(release: Release, prometheus: Prometheus) -> None:
    with pods_down(release, broker(1)):
        labels = prometheus.fires("PenstockPartitionsUnderReplicated")
        assert labels["penstock_io_cluster"] == NAME
        assert labels["namespace"] == release.namespace
        # A partition of "single" has its only replica there, so that no broker reports it.
        labels = prometheus.fires("PenstockPartitionsOffline")
        assert labels["penstock_io_cluster"] == NAME
        prometheus.fires("PenstockClusterNotReady")
    release.settle()
    with pods_down(release, broker(1), broker(2)):
        prometheus.fires("PenstockPartitionsUnderMinIsr")
    release.settle()
    for alert in ("UnderReplicated", "UnderMinIsr", "Offline"):
        prometheus.ends(f"PenstockPartitions{alert}")
    prometheus.ends("PenstockClusterNotReady")


def test_members_of_etcd_that_are_down_fire_the_alerts_on_etcd(release: Release, prometheus: Prometheus) -> None:
    with pods_down(release, f"{NAME}-etcd-1"):
        assert prometheus.fires("PenstockStateStoreUnhealthy")["cluster"] == NAME
        assert not prometheus.firing(f"PenstockStateStoreRejectsWrites{IMMEDIATE}")
    release.settle()
    prometheus.ends("PenstockStateStoreUnhealthy")
    with pods_down(release, f"{NAME}-etcd-1", f"{NAME}-etcd-2"):
        prometheus.fires("PenstockStateStoreRejectsWrites")
    release.settle()
    prometheus.ends("PenstockStateStoreRejectsWrites")


def test_a_group_that_falls_behind_fires_the_alert_on_lag(release: Release, prometheus: Prometheus) -> None:
    release.penstock("produce", "load", stdin="first\n")
    release.penstock("consume", "load", "--group", "slow")
    release.penstock("produce", "load", stdin="".join(f"{n}\n" for n in range(10 * MAX_LAG)))
    assert prometheus.fires("PenstockGroupLagGrowing")["group"] == "slow"
    release.penstock("consume", "load", "--group", "slow")
    prometheus.ends("PenstockGroupLagGrowing")


def test_snapshots_that_fail_fire_the_alert_on_snapshots(release: Release, prometheus: Prometheus) -> None:
    keys = ("--from-literal=AWS_ACCESS_KEY_ID=none", "--from-literal=AWS_SECRET_ACCESS_KEY=none")
    release.kubectl("create", "secret", "generic", "bucket-keys", *keys)
    bucket = "etcd.snapshots.objectStore"
    release.upgrade(
        f"{bucket}.endpoint=https://127.0.0.1:1", f"{bucket}.bucket=none", f"{bucket}.secretName=bucket-keys"
    )
    assert prometheus.fires("PenstockSnapshotMissing", 240)["cluster"] == NAME
    release.upgrade("etcd.snapshots=null")
    prometheus.ends("PenstockSnapshotMissing")


def test_an_operator_that_is_away_fires_the_alert_on_it(release: Release, prometheus: Prometheus) -> None:
    deployment = f"deployment/{NAME}-operator"
    replicas = len(release.operators())
    release.kubectl("scale", deployment, "--replicas=0")
    assert prometheus.fires("PenstockOperatorAway")["namespace"] == release.namespace
    release.kubectl("scale", deployment, f"--replicas={replicas}")
    prometheus.ends("PenstockOperatorAway")
    release.settle()
