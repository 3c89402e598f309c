"""What annotations of a Cluster request: hibernation, the restart of one broker, and moves that a user approves."""

from __future__ import annotations

import time

import pytest
from penstock_kubernetes.kubectl import Object, eventually
from penstock_kubernetes.release import CLUSTERS, TOPICS, Make, Release

HIBERNATE, RESTART, REBALANCE = (f"penstock.io/{name}" for name in ("hibernate", "restart-pods", "rebalance"))


@pytest.fixture(scope="module")
def release(make_release: Make) -> Release:
    release: Release = make_release("requests", brokers=3, etcd=3)
    release.install()
    release.kubectl.apply(release.topic("load", partitions=6, replicas=3))
    release.kubectl.wait(TOPICS, "load")
    return release


def pods(release: Release) -> list[str]:
    """Return the pods of brokers and etcd."""
    found = release.kubectl.list("pods", f"penstock.io/cluster={release.cluster}")
    return [pod["metadata"]["name"] for pod in found]


def warnings(release: Release) -> dict[str, str]:
    """Return the operator's Warnings: `<reason>: <message>` by UID and number of occurrences."""
    return {
        f"{event['metadata']['uid']} {event['count']}": f"{event['reason']}: {event['message']}"
        for event in release.kubectl.list("events")
        if event["type"] == "Warning" and event.get("reportingComponent") == "penstock.io/operator"
    }


def test_a_hibernated_cluster_has_no_pods_and_wakes_with_all_its_messages(release: Release) -> None:
    with release.clients.load(release.connection, "load") as load:
        time.sleep(5)  # writes for a while
    claims = {claim["metadata"]["uid"] for claim in release.kubectl.list("pvc")}
    before = warnings(release)
    release.kubectl("annotate", f"{CLUSTERS}/{release.cluster}", f"{HIBERNATE}=true")
    release.kubectl.until(CLUSTERS, release.cluster, "Hibernated", "True", timeout_s=180)
    assert pods(release) == []
    assert {claim["metadata"]["uid"] for claim in release.kubectl.list("pvc")} == claims

    def told() -> bool:
        return bool(release.kubectl.condition(TOPICS, "load", "Ready").get("reason") == "ClusterHibernated")

    eventually("the Topic says why it is not ready", told, 60)
    assert release.kubectl.status(TOPICS, "load")["partitions"] == 6

    began = time.monotonic()
    release.kubectl("annotate", f"{CLUSTERS}/{release.cluster}", f"{HIBERNATE}-")
    release.kubectl.until(CLUSTERS, release.cluster, "Ready", "True", timeout_s=180)
    print(f"hibernation: the cluster was ready {time.monotonic() - began:.1f} s after the annotation was removed")
    load.verify()
    release.kubectl.wait(TOPICS, "load")
    release.kubectl.until(CLUSTERS, release.cluster, "Healthy", "True")
    conditions = {c["type"]: c["status"] for c in release.kubectl.status(CLUSTERS, release.cluster)["conditions"]}
    assert "Hibernated" not in conditions
    assert conditions["StateStore"] == "True"
    assert {text for key, text in warnings(release).items() if key not in before} == set()


def test_one_broker_restarts_at_request(release: Release) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in release.brokers().items()}
    name = f"{release.cluster}-broker-1"
    release.kubectl("annotate", f"{CLUSTERS}/{release.cluster}", f"{RESTART}={before[name]}")

    def restarted() -> bool:
        now = {name: pod["metadata"]["uid"] for name, pod in release.brokers().items()}
        return len(now) == 3 and now[name] != before[name]

    eventually("the broker was replaced", restarted, 120)
    release.until_scaled(3)
    now = {name: pod["metadata"]["uid"] for name, pod in release.brokers().items()}
    assert {each for each in now if now[each] != before[each]} == {name}


def test_replicas_move_when_the_plan_is_approved(release: Release) -> None:
    release.kubectl.patch(CLUSTERS, release.cluster, {"spec": {"moving": {"automatic": False}}})
    release.scale(4)

    def proposal() -> Object | None:
        found: Object | None = release.kubectl.status(CLUSTERS, release.cluster).get("rebalance")
        return found if found is not None and "bytes" in found else None

    plan = eventually("a plan with its bytes", proposal, 120)
    assert plan["partitions"] > 0
    assert plan["bytes"] > 0
    assert any(3 in move.get("toBrokers", ()) for move in plan["moves"])
    assert replicas_on(release, 3) == 0
    with release.clients.load(release.connection, "load") as load:
        release.kubectl("annotate", f"{CLUSTERS}/{release.cluster}", f"{REBALANCE}={plan['id']}")
        eventually("the new broker has replicas", lambda: replicas_on(release, 3) > 0, 180, 2)
        release.until_scaled(4)
    load.verify()
    assert "rebalance" not in release.kubectl.status(CLUSTERS, release.cluster)


def replicas_on(release: Release, broker: int) -> int:
    """Return the number of replicas that the status shows for a broker."""
    brokers = release.kubectl.status(CLUSTERS, release.cluster)["brokers"]
    return next((int(each.get("replicas", 0)) for each in brokers if each["id"] == broker), 0)
