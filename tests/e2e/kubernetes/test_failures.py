"""Deleted pods and volumes of brokers, etcd and operators."""

from __future__ import annotations

import pytest
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.release import CLUSTERS, TOPICS, Make, Release


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("failures", brokers=3, etcd=3)
    release.install()
    release.kubectl.apply(release.topic("load", partitions=6, replicas=3))
    release.kubectl.wait(TOPICS, "load")
    return release


def healthy(release: Release) -> Object:
    """Wait until all replicas are in sync; return the topic's status."""
    release.kubectl.wait(CLUSTERS, release.cluster)

    def query() -> Object | None:
        status = release.kubectl.status(TOPICS, "load")
        return status if status.get("inSync") == 6 and not status.get("underReplicated") else None

    return eventually("all replicas of load are in sync", query, 180)


def test_a_broker_that_is_deleted_comes_back_and_nothing_is_lost(release: Release) -> None:
    pod = f"{release.cluster}-broker-1"
    uid = release.brokers()[pod]["metadata"]["uid"]
    with release.clients.load(release.connection, "load") as load:
        release.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        eventually(
            f"another {pod}",
            lambda: (release.brokers().get(pod) or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid,
        )
        release.kubectl.wait("pod", pod)
        healthy(release)
    load.verify()


def test_a_broker_whose_volume_is_deleted_is_filled_again(release: Release) -> None:
    pod = f"{release.cluster}-broker-2"
    (claim,) = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in release.brokers()[pod]["spec"]["volumes"]
        if volume["name"] == "data"
    ]
    volume = (release.kubectl.get("pvc", claim) or {})["spec"]["volumeName"]
    with release.clients.load(release.connection, "load") as load:
        release.kubectl("delete", "pvc", claim, "--wait=false")
        release.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

        def replaced() -> bool:
            found = release.kubectl.get("pvc", claim)
            return bool(found) and (found or {})["spec"].get("volumeName", volume) != volume

        eventually("the claim has another volume", replaced, 120)
        release.kubectl.wait("pod", pod)
        healthy(release)
    load.verify()


def test_a_member_of_etcd_that_is_deleted_is_not_missed(release: Release) -> None:
    with release.clients.load(release.connection, "load") as load:
        release.kubectl("delete", "pod", "penstock-etcd-0", "--grace-period=0", "--force")
        eventually("another penstock-etcd-0", lambda: release.kubectl.get("pod", "penstock-etcd-0"))
        release.kubectl.wait("pod", "penstock-etcd-0")
        release.kubectl.apply(release.topic("after-etcd", partitions=1))
        release.kubectl.wait(TOPICS, "after-etcd")
    load.verify()


def state_store(release: Release) -> tuple[str, str]:
    found = release.kubectl.condition(CLUSTERS, release.cluster, "StateStore")
    return str(found.get("status")), str(found.get("reason"))


def test_a_member_of_etcd_whose_volume_is_deleted_is_replaced_by_itself(release: Release) -> None:
    eventually("etcd is healthy", lambda: state_store(release) == ("True", "Healthy"), 120)
    volume = (release.kubectl.get("pvc", "data-penstock-etcd-1") or {})["spec"]["volumeName"]
    with release.clients.load(release.connection, "load") as load:
        release.kubectl("delete", "pvc", "data-penstock-etcd-1", "--wait=false")
        release.kubectl("delete", "pod", "penstock-etcd-1", "--grace-period=0", "--force")
        eventually("the status has the loss", lambda: state_store(release)[0] == "False", 120, 0.2)
        eventually("etcd is healthy again", lambda: state_store(release) == ("True", "Healthy"), 300)
        release.kubectl.wait("pod", "penstock-etcd-1")
        release.kubectl.apply(release.topic("after-replacement", partitions=1))
        release.kubectl.wait(TOPICS, "after-replacement")
    load.verify()
    found = release.kubectl.get("pvc", "data-penstock-etcd-1") or {}
    assert found["spec"]["volumeName"] != volume
    reasons = {event["reason"] for event in release.kubectl.list("events")}
    assert {"StoreMemberRemoved", "StoreMemberAdded", "StateStoreReplacing", "StateStoreHealthy"} <= reasons


def test_an_operator_that_is_killed_is_followed_by_the_other(release: Release) -> None:
    leader = eventually("an operator leads", release.leader, 30)
    release.kubectl("delete", "pod", leader, "--grace-period=0", "--force")
    release.kubectl.apply(release.topic("after-operator", partitions=1))
    release.kubectl.wait(TOPICS, "after-operator", timeout_s=60)
    # The killed one may act for a moment longer.
    eventually("another leads", lambda: release.leader() not in ("", leader), 30)


def test_what_went_wrong_while_no_operator_was_there_is_caught_up_with(release: Release) -> None:
    release.kubectl("scale", "deployment/penstock-operator", "--replicas=0")
    eventually("no operator is left", lambda: not release.operators(), 60)
    release.kubectl.apply(release.topic("while-away", partitions=2))
    release.kubectl("delete", "pod", f"{release.cluster}-broker-0", "--grace-period=0", "--force")
    release.penstock_of(1, "produce", "load", stdin="999999999\n")
    release.kubectl("scale", "deployment/penstock-operator", "--replicas=2")
    release.kubectl.wait(TOPICS, "while-away", timeout_s=120)
    healthy(release)
