"""Fewer partitions by a Topic, while two client libraries produce and consume."""

from __future__ import annotations

from typing import Any

import pytest
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.release import TOPICS, Make, Release

TOPIC, STOPPED = "orders", "stopped"
PARTITIONS, REMAINING = 6, 2
FOLLOWED_S = 120


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("decrease", brokers=3)
    release.install()
    release.kubectl.apply(release.topic(TOPIC, partitions=PARTITIONS, replicas=3))
    release.kubectl.wait(TOPICS, TOPIC)
    return release


def decrease(release: Release) -> Object:
    return release.kubectl.status(TOPICS, TOPIC).get("decrease") or {}


def change(release: Release, **spec: Any) -> None:
    release.kubectl.patch(TOPICS, TOPIC, {"spec": spec})


def until_synced(release: Release, status: str, reason: str) -> Object:
    """Wait for status and reason of condition Synced; return the condition."""

    def query() -> Object | None:
        found = release.kubectl.condition(TOPICS, TOPIC, "Synced")
        return found if (found.get("status"), found.get("reason")) == (status, reason) else None

    return eventually(f"Synced is {status} {reason}", query, FOLLOWED_S)


def test_partitions_decrease_under_load_and_the_status_follows_operators_that_restart(release: Release) -> None:
    with release.clients.keyed_load(release.connection, TOPIC) as load:
        # A group that has read nothing keeps the partitions visible.
        release.penstock("group", "reset-offsets", STOPPED, "--topic", TOPIC, "--to-earliest", "--yes")
        change(release, partitions=REMAINING)
        assert "decreasePartitionsTo" in until_synced(release, "False", "DecreaseNotConfirmed")["message"]
        assert not decrease(release)

        change(release, decreasePartitionsTo=REMAINING)
        assert STOPPED in until_synced(release, "False", "Draining")["message"]
        eventually("the group is named", lambda: names_stopped(release), FOLLOWED_S)
        found = decrease(release)
        assert (found["phase"], found["remaining"], found["sealed"]) == ("Draining", REMAINING, PARTITIONS - REMAINING)
        assert [seal["partition"] for seal in found["seals"]] == list(range(REMAINING, PARTITIONS))
        assert release.kubectl.status(TOPICS, TOPIC)["partitions"] == PARTITIONS
        assert release.kubectl.condition(TOPICS, TOPIC, "Ready")["status"] == "True"

        change(release, partitions=PARTITIONS)
        until_synced(release, "True", "Synced")
        assert not decrease(release)
        change(release, partitions=REMAINING)
        until_synced(release, "False", "Draining")

        leader = release.leader()
        release.kubectl("delete", "pod", leader, "--grace-period=0", "--force")
        release.penstock("group", "delete", STOPPED, "--yes")
        eventually("another operator leads", lambda: release.leader() not in ("", leader), FOLLOWED_S)
        until_synced(release, "True", "Synced")
        assert decrease(release)["phase"] == "Retired"
        assert release.kubectl.status(TOPICS, TOPIC)["partitions"] == REMAINING
        head, row = release.kubectl("get", TOPICS, TOPIC, "--output", "wide").splitlines()
        assert "DECREASE" in head.split()
        assert "Retired" in row.split()
    load.verify()
    told = set(release.kubectl.events(TOPIC))
    assert {"DecreaseNotConfirmed", "PartitionsDecreasing", "PartitionsReopened", "PartitionsRetired"} <= told


def names_stopped(release: Release) -> bool:
    return STOPPED in {group["group"] for group in decrease(release).get("waitingGroups", ())}


def test_clients_that_start_afterwards_see_the_remaining_partitions(release: Release) -> None:
    with release.clients.load(release.connection, TOPIC, rate=50) as load:
        pass
    load.verify()
