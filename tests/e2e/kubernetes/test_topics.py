"""Topics: created, changed and deleted by `kubectl apply`."""

from __future__ import annotations

import json

import pytest
from penstock_kubernetes.kubectl import CommandFailed, eventually
from penstock_kubernetes.release import TOPICS, Make, Release


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("topics", brokers=3)
    release.install()
    return release


def described(release: Release, topic: str) -> dict[str, object] | None:
    """Return the topic as the brokers describe it; None if it does not exist."""
    try:
        return dict(json.loads(release.penstock("topic", "describe", topic, "--output", "json"))[0])
    except CommandFailed:
        return None


def exists(release: Release, topic: str) -> bool:
    return topic in release.penstock("topic", "list", "--output", "json")


def test_an_applied_topic_becomes_real_and_says_so(release: Release) -> None:
    release.kubectl.apply(release.topic("life", partitions=3, config={"retention.ms": "3600000"}))
    release.kubectl.wait(TOPICS, "life")
    status = release.kubectl.status(TOPICS, "life")
    assert (status["partitions"], status["replicas"], status["inSync"]) == (3, 3, 3)
    assert status["topicId"]
    columns = release.kubectl("get", TOPICS, "life")
    print(columns)
    assert "3600000" in json.dumps(described(release, "life"))
    eventually("an Event reports it", lambda: release.kubectl.events("life"), 10)


def test_settings_follow_the_manifest_and_drift_is_repaired(release: Release) -> None:
    release.kubectl.patch(
        TOPICS, "life", {"spec": {"config": {"retention.ms": "7200000", "cleanup.policy": "compact"}}}
    )
    eventually("the settings arrive", lambda: "7200000" in json.dumps(described(release, "life")), 60)
    release.penstock("topic", "alter", "life", "--config", "retention.ms=1000")
    eventually("the drift is repaired", lambda: "7200000" in json.dumps(described(release, "life")), 120)


def test_more_partitions_are_made_and_fewer_refused_unless_they_are_confirmed(release: Release) -> None:
    release.kubectl.patch(TOPICS, "life", {"spec": {"partitions": 5}})
    eventually("five partitions", lambda: release.kubectl.status(TOPICS, "life").get("partitions") == 5, 60)
    release.kubectl.patch(TOPICS, "life", {"spec": {"partitions": 2}})
    condition = release.kubectl.until(TOPICS, "life", "Synced", "False", timeout_s=60)
    assert condition["reason"] == "DecreaseNotConfirmed", condition
    assert "set decreasePartitionsTo to 2" in condition["message"], condition
    assert release.kubectl.status(TOPICS, "life")["partitions"] == 5
    release.kubectl.patch(TOPICS, "life", {"spec": {"partitions": 5}})
    release.kubectl.until(TOPICS, "life", "Synced", "True", timeout_s=60)


def test_the_replication_factor_changes_while_the_topic_is_used(release: Release) -> None:
    with release.clients.load(release.connection, "life", rate=100) as load:
        release.kubectl.patch(TOPICS, "life", {"spec": {"replicas": 2, "config": {"cleanup.policy": "delete"}}})
        eventually("two replicas", lambda: release.kubectl.status(TOPICS, "life").get("replicas") == 2, 120)
        release.kubectl.wait(TOPICS, "life")
    load.verify()


def test_a_retained_topic_outlives_its_object_and_is_adopted_by_the_next(release: Release) -> None:
    before = release.kubectl.status(TOPICS, "life")["topicId"]
    release.kubectl("delete", TOPICS, "life")
    assert exists(release, "life")
    release.kubectl.apply(release.topic("life", partitions=5))
    release.kubectl.wait(TOPICS, "life")
    assert release.kubectl.status(TOPICS, "life")["topicId"] == before


def test_a_topic_to_be_deleted_goes_with_its_object_and_comes_back_as_another(release: Release) -> None:
    manifest = release.topic("passing", partitions=1, deletionPolicy="Delete")
    release.kubectl.apply(manifest)
    release.kubectl.wait(TOPICS, "passing")
    before = release.kubectl.status(TOPICS, "passing")["topicId"]
    release.kubectl("delete", TOPICS, "passing")
    eventually("the topic is gone", lambda: not exists(release, "passing"), 60)
    release.kubectl.apply(manifest)
    release.kubectl.wait(TOPICS, "passing")
    assert release.kubectl.status(TOPICS, "passing")["topicId"] != before


def test_of_two_objects_for_one_topic_the_older_owns_it_and_the_other_is_not_ready(release: Release) -> None:
    release.kubectl.apply(release.topic("first", topicName="shared", partitions=1))
    release.kubectl.wait(TOPICS, "first")
    release.kubectl.apply(release.topic("second", topicName="shared", partitions=4))
    condition = release.kubectl.until(TOPICS, "second", "Ready", "False", timeout_s=60)
    assert "first" in condition["message"], condition
    assert release.kubectl.status(TOPICS, "first")["partitions"] == 1


def test_two_hundred_topics_at_once_are_all_ready(release: Release) -> None:
    names = [f"many-{number}" for number in range(200)]
    release.kubectl.apply(*(release.topic(name, partitions=1, replicas=1, deletionPolicy="Delete") for name in names))
    release.kubectl("wait", "--for=condition=Ready", *(f"{TOPICS}/{n}" for n in names), "--timeout=180s", timeout_s=200)
    release.kubectl("delete", TOPICS, *names)
    eventually("all are gone", lambda: "many-" not in release.penstock("topic", "list", "--output", "json"), 180)
