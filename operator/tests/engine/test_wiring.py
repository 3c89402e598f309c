"""kopf, lists, queue, runner and lease together, over HTTP: every change is processed, and only controllers write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import replica
from doubles.api_server import ApiServer

from penstock_operator.engine import relist
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, LEASES, NODES, PODS, TOPICS

pytestmark = pytest.mark.integration


def group(name: str, namespace: str = "ns", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterRef": {"name": "c"}, **spec}}


async def until(condition: Callable[[], bool], what: str, within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)
    assert condition(), what


async def still(count: Callable[[], int], quiet_s: float = 0.5, within_s: float = 60) -> int:
    """Return the count once it has been constant for `quiet_s`."""
    async with asyncio.timeout(within_s):
        while True:
            before = count()
            await asyncio.sleep(quiet_s)
            if count() == before:
                return before


class Going:
    def __init__(self, server: ApiServer, namespaces: tuple[str, ...]) -> None:
        self.server, self.stop = server, asyncio.Event()
        self.operator, self.made, self.controller, self.ends = replica.make("a", namespaces)
        self.task = asyncio.create_task(self.operator.run(self.stop, "127.0.0.1", 0))

    def status(self, name: str, namespace: str = "ns") -> Any:
        return (self.server.kube.read(CONSUMER_GROUPS, namespace, name) or {}).get("status", {}).get("state")

    async def end(self) -> None:
        self.stop.set()
        await self.task
        for requests in self.ends:
            requests.close()

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.operator.health.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    running = await ApiServer().start()
    monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig(tmp_path)))
    yield running
    await running.stop()


@pytest.fixture
async def start(server: ApiServer) -> AsyncIterator[Callable[..., Going]]:
    going: list[Going] = []

    def begin(*namespaces: str) -> Going:
        going.append(Going(server, namespaces))
        return going[-1]

    yield begin
    for one in going:
        if not one.task.done():
            await one.end()


async def test_what_was_there_and_what_comes_is_looked_at(server: ApiServer, start: Callable[..., Going]) -> None:
    server.kube.put(CONSUMER_GROUPS, group("before"))
    going = start()
    await until(lambda: going.status("before") == "a", "an object that was there is looked at")
    server.kube.put(CONSUMER_GROUPS, group("after", "elsewhere"))
    await until(lambda: going.status("after", "elsewhere") == "a", "in every namespace")
    server.kube.remove(CONSUMER_GROUPS, "ns", "before")
    await until(lambda: going.controller.deleted == ["before"], "a deletion is reported")


async def test_kopf_writes_nothing_and_needs_no_rights_beyond_list_and_watch(
    server: ApiServer, start: Callable[..., Going]
) -> None:
    server.forbidden = {"namespaces", "customresourcedefinitions", "events"}
    for number in range(20):
        server.kube.put(CONSUMER_GROUPS, group(f"g{number}"))
    going = start("ns")
    await until(lambda: all(going.status(f"g{n}") == "a" for n in range(20)), "all are signed")
    server.kube.put(CONSUMER_GROUPS, group("g1", paused=True))
    await until(lambda: server.kube.read(CONSUMER_GROUPS, "ns", "g1")["status"]["observedGeneration"] == 2, "again")
    await asyncio.sleep(0.5)
    reads, renewal = ("LIST", "WATCH", "GET"), ("PATCH", "leases")
    writes = {what: count for what, count in server.requests.items() if what[0] not in reads and what != renewal}
    assert writes == {("PATCH/status", "consumergroups"): 21, ("POST", "leases"): 1}
    assert not any("finalizers" in body["metadata"] for body in server.kube.stored.values())
    assert not any(body["metadata"].get("annotations") for body in server.kube.stored.values())


async def test_a_namespaced_operator_asks_for_its_own_namespaces_alone(
    server: ApiServer, start: Callable[..., Going]
) -> None:
    server.kube.put(CONSUMER_GROUPS, group("mine"))
    server.kube.put(CONSUMER_GROUPS, group("theirs", "other"))
    going = start("ns")
    await until(lambda: going.status("mine") == "a", "mine is signed")
    await asyncio.sleep(0.3)
    assert going.status("theirs", "other") is None
    assert going.made.cache.list_objects(CONSUMER_GROUPS, "other") == ()


async def test_what_went_while_a_watch_was_broken_is_found_out(
    server: ApiServer, start: Callable[..., Going], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf lists again after 410 Gone, and does not report the objects that were deleted meanwhile."""
    monkeypatch.setattr(relist, "AFTER_RELIST_S", 0.2)
    server.kube.put(CONSUMER_GROUPS, group("stays"))
    server.kube.put(CONSUMER_GROUPS, group("goes"))
    going = start()
    await until(lambda: going.status("goes") == "a", "both are known")
    seen = server.kube.seen
    server.kube.seen = None  # No watch event for this deletion.
    server.kube.remove(CONSUMER_GROUPS, "ns", "goes")
    server.kube.seen = seen
    server.forget_history()
    server.break_watches()
    await until(lambda: going.made.cache.get(CONSUMER_GROUPS, "ns", "goes") is None, "it is gone from the copies")
    assert going.made.cache.get(CONSUMER_GROUPS, "ns", "stays")
    assert going.controller.deleted == [], "a list that lacks it is not a DELETED event"


async def test_events_of_what_a_cluster_owns_call_for_the_cluster(
    server: ApiServer, start: Callable[..., Going]
) -> None:
    server.kube.put(CONSUMER_GROUPS, group("g"))
    going = start("ns")
    await until(lambda: going.status("g") == "a", "it acts")
    labels = {"penstock.io/cluster": "c"}
    server.kube.put(PODS, {"metadata": {"name": "c-broker-0", "namespace": "ns", "labels": labels}})
    server.kube.put(PODS, {"metadata": {"name": "other", "namespace": "ns"}})
    await until(lambda: going.made.cache.get(PODS, "ns", "c-broker-0") is not None, "the pod is seen")
    assert going.made.queue.depth("Cluster") == 1
    assert 'penstock_operator_queue_depth{kind="Cluster"} 1.0' in (await going.get("/metrics"))[1]
    assert going.made.cache.get(PODS, "ns", "other") is None


async def test_nodes_are_optional(server: ApiServer, start: Callable[..., Going]) -> None:
    server.forbidden = {"nodes"}
    server.kube.put(CONSUMER_GROUPS, group("g"))
    going = start("ns")
    await until(lambda: going.status("g") == "a", "it works without nodes")
    assert not going.made.cache.is_listed(NODES)
    assert server.requests["WATCH", "nodes"] == 0


async def test_health_and_metrics_tell(server: ApiServer, start: Callable[..., Going]) -> None:
    server.kube.put(CONSUMER_GROUPS, group("g"))
    server.kube.crds_gone.add(TOPICS)
    going = start("ns")
    await until(lambda: going.operator.health.port > 0, "it serves")
    assert (await going.get("/health/ready"))[0] == 503
    assert (await going.get("/health/live"))[0] == 200
    server.kube.crds_gone.clear()
    await until(lambda: going.status("g") == "a", "it begins when the definitions are there")
    assert (await going.get("/health/ready"))[0] == 200
    written = 'penstock_operator_api_writes_total{method="patch_status",resource="consumergroups"} 1.0'
    async with asyncio.timeout(60):  # The server stores the status a moment before the operator counts the write.
        while written not in (text := (await going.get("/metrics"))[1]):
            await asyncio.sleep(0.02)
    assert "penstock_operator_leader 1.0" in text
    assert 'penstock_operator_queue_depth{kind="Topic"}' in text


async def test_a_cluster_that_becomes_ready_calls_for_its_groups(
    server: ApiServer, start: Callable[..., Going]
) -> None:
    server.kube.put(CONSUMER_GROUPS, group("g"))
    going = start("ns")
    await until(lambda: going.status("g") == "a", "it is looked at")
    before = await still(lambda: len(going.controller.looks))
    cluster = {"metadata": {"name": "c", "namespace": "ns"}, "spec": {}}
    server.kube.put(CLUSTERS, {**cluster, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    await until(lambda: len(going.controller.looks) > before, "it is looked at again")
    looks = await still(lambda: len(going.controller.looks))
    server.kube.put(CLUSTERS, {**cluster, "metadata": {**cluster["metadata"], "labels": {"a": "b"}}})
    seen = going.made.cache
    await until(lambda: "labels" in seen.get(CLUSTERS, "ns", "c")["metadata"], "the label is seen")
    assert await still(lambda: len(going.controller.looks)) == looks


async def test_stopping_gives_the_lease_up_and_ends_within_seconds(
    server: ApiServer, start: Callable[..., Going]
) -> None:
    from penstock_operator.ports.kube import LEASES

    server.kube.put(CONSUMER_GROUPS, group("g"))
    going = start("ns")
    await until(lambda: going.status("g") == "a", "it leads")
    async with asyncio.timeout(60):
        await going.end()
    assert server.kube.read(LEASES, "ns", "test-operator")["spec"]["holderIdentity"] == ""


async def test_what_was_deleted_while_another_replica_acted_is_not_taken_for_a_proof(
    server: ApiServer, start: Callable[..., Going]
) -> None:
    lease = {"metadata": {"name": "test-operator", "namespace": "ns"}}
    held = {"holderIdentity": "another", "leaseDurationSeconds": 15, "leaseTransitions": 0}
    server.kube.put(LEASES, lease | {"spec": held})
    server.kube.put(CLUSTERS, {"metadata": {"name": "c", "namespace": "ns"}, "spec": {}})
    before = server.kube.put(CONSUMER_GROUPS, group("before"))["metadata"]["uid"]
    after = server.kube.put(CONSUMER_GROUPS, group("after"))["metadata"]["uid"]
    going = start("ns")
    cache = going.made.cache
    await until(
        lambda: len(cache.list_objects(CONSUMER_GROUPS)) == 2 and bool(cache.list_objects(CLUSTERS)), "all is seen"
    )
    await until(lambda: server.requests["WATCH", "consumergroups"] > 0, "it watches")
    server.kube.remove(CONSUMER_GROUPS, "ns", "before")
    await until(lambda: cache.deleted(CONSUMER_GROUPS, "ns", "before") is not None, "it is reported")
    assert cache.has_same_cluster(CONSUMER_GROUPS, before)
    server.kube.put(LEASES, lease | {"spec": held | {"holderIdentity": ""}})
    await until(lambda: going.status("after") == "a", "it acts")
    assert cache.deleted_by_uid(CONSUMER_GROUPS, before) is not None, "what it said is still known"
    assert not cache.has_same_cluster(CONSUMER_GROUPS, before)
    server.kube.remove(CONSUMER_GROUPS, "ns", "after")
    await until(lambda: going.controller.deleted.count("after") > 0, "it is reported")
    assert cache.has_same_cluster(CONSUMER_GROUPS, after)
