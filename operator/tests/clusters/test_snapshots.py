"""Snapshots of etcd under the controller: pods on a schedule, their results in status, Events and metrics."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from clusters.cluster_kit import EPOCH, NS, UID
from clusters.store_kit import SET, URLS, StoreWorld, formed_with_etcd

from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.ports.kube import CLUSTERS, PODS, KubeError, Object

NAME = "c-etcd-snapshot"
ETCD = {"endpoints": URLS, "managed": True, "statefulSet": SET}
SNAPSHOTS = {"intervalMinutes": 10, "volume": {"claimName": "snapshots"}}


def at(world: StoreWorld) -> datetime:
    return datetime.fromtimestamp(EPOCH + world.time, UTC)


def end(world: StoreWorld, *, error: str = "") -> str:
    """End the pod that takes a snapshot; return the snapshot's name."""
    body = world.kube.read(PODS, NS, NAME)
    assert body is not None, "there is no pod"
    name = at(world).strftime("etcd-%Y%m%dT%H%M%SZ")
    result: Object = {"error": error} if error else {"name": name, "sizeBytes": 1 << 20, "sha256": "0" * 64}
    ended = {"exitCode": 1 if error else 0, "message": json.dumps(result), "finishedAt": world.stamp()}
    status = {
        "phase": "Failed" if error else "Succeeded",
        "containerStatuses": [{"name": "take", "state": {"terminated": ended}}],
    }
    world.kube.put(PODS, body | {"status": status})
    return name


async def with_snapshots(**snapshots: Any) -> StoreWorld:
    world = await formed_with_etcd()
    world.kube.recorded.clear()
    world.apply(etcd={**ETCD, "snapshots": {**SNAPSHOTS, **snapshots}})
    await world.run(2)
    return world


async def test_snapshots_are_taken_on_a_schedule_also_by_the_next_operator() -> None:
    world = await with_snapshots()
    assert world.condition("Snapshots") == ("Unknown", "Pending")
    first = end(world)
    await world.run(5)
    assert world.condition("Snapshots") == ("True", "Stored")
    assert world.kube.read(PODS, NS, NAME) is None
    status = world.cluster.status.snapshots
    assert status is not None
    assert (status.last_name, status.last_size_bytes) == (first, 1 << 20)
    assert world.recorded.count("SnapshotStored") == 1
    world.start()
    await world.run(580)
    assert world.kube.read(PODS, NS, NAME) is None, "it is not due"
    await world.run(30)
    second = end(world)
    await world.run(5)
    status = world.cluster.status.snapshots
    assert status is not None
    assert status.last_name == second > first
    assert world.condition("Healthy") == ("True", "InSync")


async def test_a_failed_snapshot_is_told_and_repeated_and_the_cluster_stays_healthy() -> None:
    world = await with_snapshots(intervalMinutes=60)
    end(world, error="AccessDenied")
    await world.run(5)
    assert world.condition("Snapshots") == ("False", "Failed")
    assert "AccessDenied" in world.message("Snapshots")
    assert world.condition("Healthy") == ("True", "InSync")
    writes = world.kube.writes
    await world.run(280)
    assert world.kube.writes == writes, "and then all is quiet"
    await world.run(30)
    end(world)
    await world.run(5)
    assert world.condition("Snapshots") == ("True", "Stored")
    assert [reason for reason in world.recorded if reason.startswith("Snapshot")] == [
        "SnapshotFailed",
        "SnapshotStored",
    ]


async def test_a_pod_that_the_api_server_rejects_is_told() -> None:
    world = await formed_with_etcd()
    world.kube.fail("create", KubeError(403, "Forbidden", "exceeded quota"), times=1000, resource=PODS)
    world.apply(etcd={**ETCD, "snapshots": SNAPSHOTS})
    await world.run(10)
    assert world.condition("Progressing") == ("False", "Failing")
    assert "exceeded quota" in world.message("Progressing")


async def test_a_pod_that_exists_already_is_no_error() -> None:
    world = await formed_with_etcd()
    world.kube.fail("create", KubeError(409, "AlreadyExists", "it exists"), times=1, resource=PODS)
    world.apply(etcd={**ETCD, "snapshots": SNAPSHOTS})
    await world.run(20)
    assert world.condition("Progressing") == ("False", "Done")
    assert world.kube.read(PODS, NS, NAME) is not None


async def test_an_end_of_the_schedule_deletes_the_pod_and_the_status() -> None:
    world = await with_snapshots()
    assert world.kube.read(PODS, NS, NAME) is not None
    world.apply(etcd=ETCD)
    await world.run(5)
    assert world.kube.read(PODS, NS, NAME) is None
    assert world.cluster.status.snapshots is None
    assert "Snapshots" not in {condition.type for condition in world.cluster.status.conditions}


async def test_the_pod_belongs_to_the_cluster_and_a_paused_cluster_starts_none() -> None:
    world = await with_snapshots()
    body = world.kube.read(PODS, NS, NAME)
    assert body is not None
    assert body["metadata"]["ownerReferences"][0]["uid"] == UID
    world.apply(etcd={**ETCD, "snapshots": SNAPSHOTS}, paused=True)
    world.kube.remove(PODS, NS, NAME)
    await world.run(60)
    assert world.kube.read(PODS, NS, NAME) is None


async def test_metrics_have_the_time_and_the_size_of_the_last_snapshot() -> None:
    world = await with_snapshots()
    end(world)
    await world.run(2)
    metrics = OperatorMetrics()
    metrics.watch_clusters(lambda: world.kube.objects.list_objects(CLUSTERS))
    text = metrics.text().decode()
    taken = world.cluster.status.snapshots
    assert taken is not None
    seconds = datetime.fromisoformat(taken.last_time).timestamp()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if "snapshot" in line and line[0] != "#")
    labels = f'{{cluster="c",namespace="{NS}"}}'
    assert float(values[f"penstock_operator_last_snapshot_timestamp_seconds{labels}"]) == seconds
    assert float(values[f"penstock_operator_last_snapshot_bytes{labels}"]) == 1 << 20
    assert float(values[f"penstock_operator_snapshot_interval_seconds{labels}"]) == 600


async def test_a_hibernated_cluster_takes_no_snapshots_and_the_condition_says_so() -> None:
    world = await with_snapshots()
    end(world)
    await world.run(5)
    world.scale_etcd(3)
    world.annotate(hibernate="true")
    await world.run(1500)
    assert world.condition("Hibernated") == ("True", "Hibernated")
    assert world.condition("Snapshots") == ("Unknown", "Hibernated")
    assert world.kube.read(PODS, NS, NAME) is None
