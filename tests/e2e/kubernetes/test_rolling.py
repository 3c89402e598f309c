"""Rolling restarts and node drains while clients resolve the brokers' names: the names keep their addresses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from penstock_kubernetes.kubectl import eventually, run
from penstock_kubernetes.release import CLUSTERS, TOPICS, Make, Release

BROKERS = range(3)


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("rolling", brokers=3)
    release.install()
    release.kubectl.apply(release.topic("load", partitions=6, replicas=3))
    release.kubectl.wait(TOPICS, "load")
    return release


def pod(broker: int) -> str:
    return f"penstock-broker-{broker}"


def is_ready(release: Release, broker: int, former: str) -> bool:
    """Whether the broker's pod is ready and has another UID than `former`."""
    body = release.kubectl.get("pod", pod(broker)) or {"metadata": {}}
    conditions = {c["type"]: c["status"] for c in body.get("status", {}).get("conditions") or ()}
    return body["metadata"].get("uid") not in (None, former) and conditions.get("Ready") == "True"


def settle(release: Release) -> None:
    release.until_scaled(3)
    for condition in ("Rolled", "Healthy"):
        release.kubectl.until(CLUSTERS, release.cluster, condition, "True")


def addresses(release: Release) -> dict[str, str]:
    """Return the ClusterIP by the name of each broker's Service."""
    services = release.kubectl.list("services", "penstock.io/broker-service")
    return {f"{s['metadata']['name']}.{release.namespace}.svc": s["spec"]["clusterIP"] for s in services}


def advertised(release: Release) -> set[str]:
    """Return the hosts in a client's metadata."""
    out = release.clients.run("python", "load.py", "exchange", release.connection, "load", "names")
    return {address.rpartition(":")[0] for address in json.loads(out)["brokers"]}


def check_names(release: Release, stop_brokers: Callable[[], None]) -> None:
    """Assert that brokers' names keep their addresses, and that no message is lost, while `stop_brokers` restarts all
    brokers."""
    expected = addresses(release)
    assert len(expected) == 3
    assert advertised(release) == set(expected)
    names = subprocess.Popen(
        release.clients.command("python", "names.py", *expected),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with release.clients.load(release.connection, "load") as load:
            stop_brokers()
            settle(release)
        found, _ = names.communicate("", timeout=60)
    finally:
        names.kill()
    assert json.loads(found) == {name: [address] for name, address in expected.items()}
    assert load.summary["leaderless"] == []
    load.verify()


def test_a_roll_changes_no_address_and_each_broker_is_of_use_when_it_is_ready(release: Release) -> None:
    before = {name: body["metadata"]["uid"] for name, body in release.brokers().items()}

    def roll() -> None:
        release.kubectl("rollout", "restart", "statefulset/penstock-broker")
        left = set(BROKERS)

        def restarted() -> list[int]:
            return [broker for broker in left if is_ready(release, broker, before[pod(broker)])]

        while left:
            for broker in eventually("the next broker is back", restarted, 300, 0.2):
                assert "load" in release.penstock_of(broker, "topic", "describe", "load")
                left.remove(broker)

    check_names(release, roll)


def test_evictions_of_all_brokers_by_node_drains_change_no_address(release: Release) -> None:
    def evict_all() -> None:
        for broker in BROKERS:
            former = release.brokers()[pod(broker)]["metadata"]["uid"]
            eventually(f"the budget allows the eviction of broker {broker}", lambda n=broker: evict(release, n), 300)
            eventually("it is back", lambda n=broker, uid=former: is_ready(release, n, uid), 120)

    check_names(release, evict_all)


def evict(release: Release, broker: int) -> str:
    """Evict a broker's pod, as a node drain does. Raises `CommandFailed` if the disruption budget does not allow it."""
    metadata = {"name": pod(broker), "namespace": release.namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{release.namespace}/pods/{pod(broker)}/eviction"
    return run("kubectl", "create", "--raw", path, "-f", "-", stdin=json.dumps(body))


def test_the_service_of_a_removed_broker_is_deleted_with_it(release: Release) -> None:
    release.scale(4)
    assert len(addresses(release)) == 4
    eventually("clients know the new broker", lambda: advertised(release) == set(addresses(release)), 120, 2)
    release.scale(3)
    eventually("its Service is gone", lambda: len(addresses(release)) == 3, 60)
