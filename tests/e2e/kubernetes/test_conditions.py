"""Conditions and Events through the faults of a cluster: a status is true, and never says done before it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.release import CLUSTERS, SETTLED, TOPICS, Make, Release

BROKERS = 3


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("conditions", brokers=BROKERS)
    release.install()
    release.kubectl.apply(release.topic("load", partitions=6, replicas=3))
    release.kubectl.wait(TOPICS, "load")
    release.settle()
    return release


def pods_not_ready(release: Release) -> list[str]:
    """Return the names of the brokers' pods that are missing, ending or not ready."""
    pods = release.brokers()
    found = [f"{release.cluster}-broker-{n}" for n in range(BROKERS) if f"{release.cluster}-broker-{n}" not in pods]
    for name, body in pods.items():
        ready = {c["type"]: c["status"] for c in body.get("status", {}).get("conditions") or ()}.get("Ready")
        if ready != "True" or body["metadata"].get("deletionTimestamp"):
            found.append(name)
    return found


def warnings(release: Release) -> dict[str, str]:
    """Return the reasons of Warnings by UID and number of occurrences."""
    found = [event for event in release.kubectl.list("events") if event["type"] == "Warning"]
    return {f"{event['metadata']['uid']} {event.get('count')}": event["reason"] for event in found}


def patch_storage(release: Release, size: str) -> None:
    release.kubectl.patch(CLUSTERS, release.cluster, {"spec": {"brokers": {"storage": {"size": size}}}})


def storage(release: Release) -> Object:
    return release.kubectl.condition(CLUSTERS, release.cluster, "Storage")


def test_events_are_sorted_by_the_command_of_the_guide(release: Release) -> None:
    listed = json.loads(release.kubectl("get", "events", "--sort-by", ".lastTimestamp", "--output", "json"))["items"]
    times = [event.get("lastTimestamp") for event in listed]
    ours = [time for event, time in zip(listed, times, strict=True) if "penstock" in json.dumps(event.get("source"))]
    assert ours, "the operator has written Events"
    assert None not in ours
    dated = [time for time in times if time]
    assert dated == sorted(dated)


def test_a_size_that_the_storage_class_does_not_permit_can_be_taken_back(release: Release) -> None:
    patch_storage(release, "2Gi")
    eventually("the status says why", lambda: storage(release).get("reason") == "NotExpandable", 60)
    assert "2Gi" in storage(release)["message"]
    patch_storage(release, "1Gi")
    eventually("nothing is left of it", lambda: not storage(release) and release.is_settled(), 60)


def test_a_helm_upgrade_with_a_larger_size_can_be_rolled_back_and_later_upgrades_work(release: Release) -> None:
    release.upgrade("cluster.brokers.storage.size=3Gi")
    eventually("the status says why", lambda: storage(release).get("reason") == "NotExpandable", 60)
    release.helm("rollback", "penstock", "--timeout", "3m")
    eventually("nothing is left of it", lambda: not storage(release) and release.is_settled(), 60)
    release.upgrade("cluster.brokers.storage.size=1Gi")
    release.settle()


@contextmanager
def pod_quota(release: Release, pods: int) -> Iterator[None]:
    """Permit this number of pods in the namespace."""
    spec = {"hard": {"pods": str(pods)}}
    release.kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few-pods"}, "spec": spec})
    try:
        used = lambda: (release.kubectl.status("resourcequota", "few-pods").get("used") or {}).get("pods")  # noqa: E731
        eventually("the quota is in effect", used, 60)
        yield
    finally:
        release.kubectl("delete", "resourcequota", "few-pods")


def test_a_full_quota_is_named_in_the_condition(release: Release) -> None:
    pods = [pod for pod in release.kubectl.list("pods") if pod["status"]["phase"] in ("Pending", "Running")]
    with pod_quota(release, len(pods)):
        release.kubectl("scale", f"{CLUSTERS}/{release.cluster}", "--replicas=4")
        message = lambda: release.conditions()["Ready"]["message"]  # noqa: E731
        eventually("the condition has it", lambda: "exceeded quota: few-pods" in message(), 60)
        assert "penstock-broker-3" in message()
        release.kubectl("scale", f"{CLUSTERS}/{release.cluster}", f"--replicas={BROKERS}")
        eventually("nothing is left of it", lambda: "quota" not in message() and release.is_settled(), 120)


@pytest.mark.full
def test_ready_is_false_while_all_brokers_are_killed_and_true_once_they_are_back(release: Release) -> None:
    release.kubectl("delete", "pod", *release.brokers(), "--grace-period=0", "--force", "--wait=false")
    ready = eventually(
        "Ready is False", lambda: c if (c := release.conditions()["Ready"])["status"] == "False" else None, 30, 0.1
    )
    assert ready["reason"] == "BrokersNotReady"
    assert pods_not_ready(release), "the status was written before the brokers were back"
    eventually("Ready is True", lambda: release.conditions()["Ready"]["status"] == "True", 180, 0.1)
    assert not pods_not_ready(release)
    release.settle()


@pytest.mark.full
def test_conditions_of_a_roll_are_true_only_once_the_last_broker_is_back_and_in_sync(release: Release) -> None:
    before, warned = {pod["metadata"]["uid"] for pod in release.brokers().values()}, warnings(release)
    annotations = {"penstock.io/restart": "conditions"}
    release.kubectl.patch(CLUSTERS, release.cluster, {"metadata": {"annotations": annotations}})
    release.kubectl.until(CLUSTERS, release.cluster, "Progressing", "True", timeout_s=60)
    for kind, status in SETTLED.items():
        release.kubectl(
            "wait", f"--for=condition={kind}={status}", f"{CLUSTERS}/{release.cluster}", "--timeout=300s", timeout_s=310
        )
    assert not pods_not_ready(release)
    assert not before & {pod["metadata"]["uid"] for pod in release.brokers().values()}
    described = json.loads(release.penstock("topic", "describe", "load", "--output", "json"))[0]
    assert [p["partition"] for p in described["partitions"] if len(p["isr"]) < BROKERS] == []
    assert "HealthyUnderReplicated" not in {why for key, why in warnings(release).items() if key not in warned}
