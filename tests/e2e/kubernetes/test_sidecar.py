"""`etcd.mode=sidecar`: an etcd member in the pods of the first three brokers."""

from __future__ import annotations

import pytest
from penstock_kubernetes.kubectl import CommandFailed, eventually
from penstock_kubernetes.release import CLUSTERS, TOPICS, Make, Release

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("sidecar", brokers=3, values=("etcd.mode=sidecar",))
    release.install()
    release.kubectl.apply(release.topic("load", partitions=6, replicas=3))
    release.kubectl.wait(TOPICS, "load")
    return release


def test_the_release_has_no_etcd_and_the_broker_pods_have_one(release: Release) -> None:
    assert not release.kubectl.get("statefulset", "penstock-etcd")
    for name, pod in release.brokers().items():
        assert "etcd" in {c["name"] for c in pod["spec"]["containers"] + pod["spec"].get("initContainers", [])}, name


def test_brokers_that_start_at_once_with_their_etcd_do_not_restart(release: Release) -> None:
    restarts = {
        (name, container["name"]): container["restartCount"]
        for name, pod in release.brokers().items()
        for container in pod["status"]["containerStatuses"] + pod["status"]["initContainerStatuses"]
    }
    assert set(restarts.values()) == {0}, restarts


def test_three_to_four_to_three_brokers_under_load_loses_nothing(release: Release) -> None:
    with release.clients.load(release.connection, "load") as load:
        release.scale(4)
        release.scale(3)
    load.verify()


def test_a_roll_under_load_leaves_no_partition_without_a_leader(release: Release) -> None:
    before = {pod["metadata"]["uid"] for pod in release.brokers().values()}
    with release.clients.load(release.connection, "load") as load:
        annotations = {"penstock.io/restart": "once"}
        release.kubectl.patch(CLUSTERS, release.cluster, {"metadata": {"annotations": annotations}})

        def rolled() -> bool:
            now = {pod["metadata"]["uid"] for pod in release.brokers().values()}
            return len(now) == 3 and not now & before

        eventually("every broker was replaced", rolled, 300, 1)
        release.until_scaled(3)
    assert load.summary["leaderless"] == []
    load.verify()


def test_members_of_etcd_are_never_scaled_away(release: Release) -> None:
    with pytest.raises(CommandFailed, match="the first three brokers run the etcd members"):
        release.kubectl("scale", f"{CLUSTERS}/{release.cluster}", "--replicas=1")
    assert len(release.brokers()) == 3


def test_a_pod_that_lost_its_volumes_comes_back_as_a_member_and_is_filled(release: Release) -> None:
    pod = f"{release.cluster}-broker-2"
    uid = release.brokers()[pod]["metadata"]["uid"]
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in release.brokers()[pod]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert len(claims) == 2
    with release.clients.load(release.connection, "load") as load:
        release.kubectl("delete", "pvc", *claims, "--wait=false")
        release.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

        def replaced() -> bool:
            found = release.brokers().get(pod)
            return found is not None and found["metadata"]["uid"] != uid

        eventually("the pod is another", replaced)
        release.until_scaled(3)
        eventually("all is in sync", lambda: release.kubectl.status(TOPICS, "load").get("inSync") == 6, 180, 1)
    load.verify()
