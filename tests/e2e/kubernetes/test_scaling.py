"""Scaling and rolling restarts under load: no acknowledged message is lost."""

from __future__ import annotations

import pytest
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.release import CLUSTERS, TOPICS, Make, Release


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("scaling")
    release.install()
    release.kubectl.apply(release.topic("load", partitions=6))
    release.kubectl.wait(TOPICS, "load")
    return release


def hosts(release: Release, topic: str) -> set[int]:
    """Return the brokers with replicas of the topic, from a client's metadata."""
    script = (
        "import json, sys; from confluent_kafka.admin import AdminClient as A; "
        "t = A(json.loads(sys.argv[1])).list_topics(sys.argv[2], timeout=20).topics[sys.argv[2]]; "
        "print(*sorted({r for p in t.partitions.values() for r in p.replicas}))"
    )
    return {int(b) for b in release.clients.run("python", "-c", script, release.connection, topic).split()}


def is_host(release: Release, broker: int) -> bool:
    return broker in hosts(release, "load")


def is_draining(release: Release, broker: int) -> bool:
    """Whether the operator has recorded that it drains the broker."""
    metadata = (release.kubectl.get("configmap", f"{release.cluster}-broker") or {}).get("metadata", {})
    return str(broker) in metadata.get("annotations", {}).get("penstock.io/draining", "").split(",")


def prepare(release: Release) -> None:
    """Scale to three brokers with three replicas, whatever the tests before have left."""
    if release.kubectl.status(CLUSTERS, release.cluster).get("readyReplicas") != 3:
        release.scale(3)
    release.kubectl.patch(TOPICS, "load", {"spec": {"replicas": 3}})
    eventually("three replicas", lambda: release.kubectl.status(TOPICS, "load").get("replicas") == 3, 180)
    release.until_scaled(3)


def test_one_to_three_to_five_to_three_brokers_under_load_loses_nothing(release: Release) -> None:
    with release.clients.load(release.connection, "load") as load:
        prepare(release)
        release.scale(5)
        eventually("new brokers have replicas", lambda: {3, 4} <= hosts(release, "load"), 180, 2)
        release.scale(3)
    assert hosts(release, "load") == {0, 1, 2}
    load.verify()
    release.kubectl.wait(TOPICS, "load")


def test_fewer_brokers_than_replicas_are_refused_with_a_condition(release: Release) -> None:
    prepare(release)
    release.kubectl("scale", f"{CLUSTERS}/{release.cluster}", "--replicas=2")

    def refused() -> Object | None:
        condition = release.kubectl.condition(CLUSTERS, release.cluster, "Scaled")
        return condition if condition.get("reason") == "TooFewBrokers" else None

    assert "load" in eventually("it is refused", refused, 60)["message"]
    assert len(release.brokers()) == 3
    release.scale(3)


def test_a_rolling_restart_under_load_leaves_no_partition_without_a_leader(release: Release) -> None:
    prepare(release)
    before = {name: pod["metadata"]["uid"] for name, pod in release.brokers().items()}
    with release.clients.load(release.connection, "load") as load:
        # Different resources change the pod template.
        resources = {"requests": {"cpu": "20m", "memory": "192Mi"}, "limits": {"memory": "1Gi"}}
        release.kubectl.patch(CLUSTERS, release.cluster, {"spec": {"brokers": {"resources": resources}}})

        def rolled() -> bool:
            now = {name: pod["metadata"]["uid"] for name, pod in release.brokers().items()}
            return len(now) == 3 and not set(now.values()) & set(before.values())

        eventually("every broker was replaced", rolled, 300, 1)
        release.until_scaled(3)
    assert load.summary["polls"] > 10
    assert load.summary["leaderless"] == []
    load.verify()


def test_an_operator_killed_in_the_middle_of_a_scale_down_is_followed_by_one_that_finishes(release: Release) -> None:
    prepare(release)
    with release.clients.load(release.connection, "load") as load:
        release.scale(4)
        eventually("the new broker has replicas, so that there is something to drain", lambda: is_host(release, 3), 180)
        release.kubectl("scale", f"{CLUSTERS}/{release.cluster}", "--replicas=3")
        eventually("the drain has begun", lambda: is_draining(release, 3), 60, 0.2)
        leader = release.leader()
        assert leader
        release.kubectl("delete", "pod", leader, "--grace-period=0", "--force")
        release.until_scaled(3)
    load.verify()
    assert release.leader() != leader
