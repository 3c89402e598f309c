"""What users type out of habit at the objects of a Cluster: it works, or an Event says why not."""

from __future__ import annotations

import pytest
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.release import CLUSTERS, TOPICS, Make, Release

STATEFUL_SET = "statefulset/penstock-broker"
RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("habits", brokers=3)
    release.install()
    release.kubectl.apply(release.topic("load", partitions=6, replicas=3))
    release.kubectl.wait(TOPICS, "load")
    return release


def uids(release: Release) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in release.brokers().items()}


def settle(release: Release) -> None:
    """Wait until all brokers serve and no operation is in progress."""
    release.until_scaled(3)
    release.kubectl.until(CLUSTERS, release.cluster, "Rolled", "True")
    release.kubectl.until(CLUSTERS, release.cluster, "Healthy", "True")


def events(release: Release, reason: str) -> list[Object]:
    return [event for event in release.kubectl.list("events") if event["reason"] == reason]


def test_a_rollout_restart_of_the_brokers_restarts_each_once_under_load(release: Release) -> None:
    before = uids(release)
    with release.clients.load(release.connection, "load") as load:
        release.kubectl("rollout", "restart", STATEFUL_SET)

        def rolled() -> bool:
            now = uids(release)
            return len(now) == 3 and not set(now.values()) & set(before.values())

        eventually("every broker was replaced", rolled, 300, 1)
        settle(release)
    assert load.summary["leaderless"] == []
    load.verify()
    restarted = uids(release)
    messages = [event["message"] for event in events(release, "BrokerRestarted")]
    assert len([text for text in messages if "kubectl rollout restart" in text]) == 3, messages
    template = (release.kubectl.get("statefulset", "penstock-broker") or {})["spec"]["template"]
    asked = template["metadata"]["annotations"][RESTARTED_AT]
    assert {pod["metadata"]["annotations"][RESTARTED_AT] for pod in release.brokers().values()} == {asked}
    # Another operator applies the objects and must not restart the brokers a second time.
    leader = release.leader()
    release.kubectl("delete", "pod", leader)
    eventually("another operator leads", lambda: release.leader() not in ("", leader), 120)
    release.kubectl.patch(CLUSTERS, release.cluster, {"spec": {"config": {"log.retention.hours": "48"}}})
    settle(release)
    assert uids(release) == restarted


@pytest.mark.parametrize("replicas", [2, 5])
def test_scaling_the_stateful_set_is_reverted_with_an_event_that_names_the_field(
    release: Release, replicas: int
) -> None:
    release.kubectl("scale", STATEFUL_SET, f"--replicas={replicas}")

    def told() -> set[str]:
        found = [e for e in events(release, "ScaleReverted") if f"to {replicas} replicas" in e["message"]]
        return {e["involvedObject"]["kind"] for e in found if "Cluster.spec.brokers.replicas is 3" in e["message"]}

    eventually("Events about both objects", lambda: told() == {"Cluster", "StatefulSet"}, 60)
    settle(release)
    assert (release.kubectl.get("statefulset", "penstock-broker") or {})["spec"]["replicas"] == 3


def test_deleted_pods_come_back_and_no_other_restarts(release: Release) -> None:
    before = uids(release)
    release.kubectl("delete", "pod", "penstock-broker-1")
    eventually("it is replaced", lambda: uids(release).get("penstock-broker-1") not in (None, *before.values()), 120)
    settle(release)
    assert {name for name, uid in uids(release).items() if uid != before[name]} == {"penstock-broker-1"}


def test_labels_and_annotations_that_users_add_are_kept(release: Release) -> None:
    objects = [STATEFUL_SET, "service/penstock", "service/penstock-brokers", "configmap/penstock-broker"]
    objects.append("poddisruptionbudget/penstock-broker")
    before = uids(release)
    for name in objects:
        release.kubectl("label", name, "example.com/team=queue")
        release.kubectl("annotate", name, "example.com/note=mine")
    release.kubectl.patch(CLUSTERS, release.cluster, {"spec": {"config": {"log.retention.hours": "49"}}})
    settle(release)
    assert uids(release) == before
    for name in objects:
        metadata = (release.kubectl.get(*name.split("/")) or {})["metadata"]
        assert metadata["labels"]["example.com/team"] == "queue", name
        assert metadata["annotations"]["example.com/note"] == "mine", name


def test_a_rollout_restart_of_the_operator_restarts_no_broker(release: Release) -> None:
    before, operators = uids(release), set(release.operators())
    release.kubectl("rollout", "restart", "deployment/penstock-operator")
    release.kubectl("rollout", "status", "deployment/penstock-operator", "--timeout=120s")
    eventually("new operators run", lambda: not operators & set(release.operators()), 120)
    eventually("one of them leads", lambda: release.leader() not in ("", *operators), 120)
    settle(release)
    assert uids(release) == before
