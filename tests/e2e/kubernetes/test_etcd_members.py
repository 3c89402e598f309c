"""The number of members of the companion etcd changes in place by an upgrade of the release."""

from __future__ import annotations

import pytest
from penstock_kubernetes.kubectl import eventually
from penstock_kubernetes.release import CLUSTERS, NAME, TOPICS, Make, Release

pytestmark = pytest.mark.full
NUMBERS = [3, 5, 1]


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("members", brokers=1, etcd=1)
    release.install()
    release.kubectl.apply(release.topic("kept", partitions=1))
    release.kubectl.wait(TOPICS, "kept")
    return release


def members(release: Release) -> list[str]:
    pods = release.kubectl.list("pods", "app.kubernetes.io/component=etcd")
    return sorted(pod["metadata"]["name"] for pod in pods)


@pytest.mark.parametrize("wanted", NUMBERS)
def test_the_number_of_members_follows_an_upgrade_and_nothing_is_lost(release: Release, wanted: int) -> None:
    before = {pod["metadata"]["uid"] for pod in release.kubectl.list("pods", "app.kubernetes.io/component=etcd")}
    release.upgrade(f"etcd.companion.replicas={wanted}")
    expected = [f"{NAME}-etcd-{ordinal}" for ordinal in range(wanted)]
    eventually(f"etcd has {wanted} members", lambda: members(release) == expected, 240, 1)
    release.kubectl.until(CLUSTERS, release.cluster, "StateStore", "True", timeout_s=120)
    message = release.kubectl.condition(CLUSTERS, release.cluster, "StateStore")["message"]
    assert message.startswith(f"all {wanted} members are healthy")
    after = {pod["metadata"]["uid"] for pod in release.kubectl.list("pods", "app.kubernetes.io/component=etcd")}
    assert before <= after or after <= before, "a change of the number restarts no member"
    release.settle()
    release.penstock("produce", "kept", stdin=f"{wanted}\n")
    release.kubectl.apply(release.topic(f"with-{wanted}", partitions=1))
    release.kubectl.wait(TOPICS, f"with-{wanted}")
    reasons = {event["reason"] for event in release.kubectl.list("events")}
    assert {"StoreMemberAdded", "StoreMemberPromoted"} <= reasons
    assert wanted > 1 or "StoreMemberRemoved" in reasons
    written = [str(number) for number in NUMBERS[: NUMBERS.index(wanted) + 1]]
    assert release.penstock("consume", "kept").split() == written
