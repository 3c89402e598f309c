"""The client implements its port over HTTP, with the API server double and, if configured, a real API server."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from penstock_operator.kube.client import PAGE
from penstock_operator.kube.http import path_of
from penstock_operator.ports.kube import CONFIG_MAPS, CONSUMER_GROUPS, LEASES, NODES, TOPICS, KubeError, KubeEvent

pytestmark = pytest.mark.integration


def name_of(what: str) -> str:
    return f"{what}-{secrets.token_hex(4)}"


def group(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "penstock.io/v1beta1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "none-such"}, "paused": True},
    }


def test_paths_are_those_of_the_api_and_names_cannot_break_out_of_them() -> None:
    assert path_of(CONFIG_MAPS, "ns", "a") == "/api/v1/namespaces/ns/configmaps/a"
    assert path_of(TOPICS, None) == "/apis/penstock.io/v1beta1/topics"
    assert path_of(TOPICS, "ns", "a", "status") == "/apis/penstock.io/v1beta1/namespaces/ns/topics/a/status"
    assert path_of(NODES, None, "n") == "/api/v1/nodes/n"
    assert path_of(TOPICS, "ns", "../../secrets?x=1") == (
        "/apis/penstock.io/v1beta1/namespaces/ns/topics/..%2F..%2Fsecrets%3Fx%3D1"
    )


async def test_what_is_created_can_be_read_patched_and_deleted(client: Any) -> None:
    kube, ns, name = client.kube, client.namespace, name_of("life")
    assert await kube.get(CONSUMER_GROUPS, ns, name) is None
    made = await kube.create(CONSUMER_GROUPS, ns, group(name))
    assert made["metadata"]["uid"]
    with pytest.raises(KubeError) as raised:
        await kube.create(CONSUMER_GROUPS, ns, group(name))
    assert (raised.value.status, raised.value.reason) == (409, "AlreadyExists")
    patched = await kube.patch(CONSUMER_GROUPS, ns, name, {"metadata": {"labels": {"a": "b"}}})
    assert patched["metadata"]["labels"] == {"a": "b"}
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"a": "c"}}}
    with pytest.raises(KubeError) as raised:
        await kube.patch(CONSUMER_GROUPS, ns, name, stale)
    assert raised.value.status == 409
    assert raised.value.is_passing
    assert not await kube.delete(CONSUMER_GROUPS, ns, name, uid="1a2b3c4d-0000-0000-0000-000000000000")
    assert await kube.delete(CONSUMER_GROUPS, ns, name, uid=made["metadata"]["uid"])
    assert not await kube.delete(CONSUMER_GROUPS, ns, name)
    assert await kube.patch(CONSUMER_GROUPS, ns, name, {"metadata": {}}) is None
    assert [method for method, _, _ in client.written] == ["create", "patch", "delete", "patch"]


async def test_what_was_changed_since_it_was_looked_at_is_not_deleted(client: Any) -> None:
    kube, ns, name = client.kube, client.namespace, name_of("version")
    made = (await kube.create(CONSUMER_GROUPS, ns, group(name)))["metadata"]
    now = (await kube.patch(CONSUMER_GROUPS, ns, name, {"metadata": {"labels": {"mine": "yes"}}}))["metadata"]
    for uid in (made["uid"], ""):
        with pytest.raises(KubeError) as raised:
            await kube.delete(CONSUMER_GROUPS, ns, name, uid, resource_version=made["resourceVersion"])
        assert raised.value.status == 409
    assert await kube.get(CONSUMER_GROUPS, ns, name) is not None
    assert await kube.delete(CONSUMER_GROUPS, ns, name, made["uid"], resource_version=now["resourceVersion"])
    assert not await kube.delete(CONSUMER_GROUPS, ns, name, made["uid"], resource_version=now["resourceVersion"])


async def test_a_status_is_replaced_as_a_whole(client: Any) -> None:
    kube, ns, name = client.kube, client.namespace, name_of("status")
    await kube.create(CONSUMER_GROUPS, ns, group(name))
    assert await kube.patch_status(CONSUMER_GROUPS, ns, name, {"state": "Empty", "members": 3})
    assert await kube.patch_status(CONSUMER_GROUPS, ns, name, {"state": "Stable"})
    assert (await kube.get(CONSUMER_GROUPS, ns, name))["status"] == {"state": "Stable"}
    assert await kube.delete(CONSUMER_GROUPS, ns, name)
    assert not await kube.patch_status(CONSUMER_GROUPS, ns, name, {})


async def test_a_status_is_that_of_one_object_and_not_of_the_next_of_its_name(client: Any) -> None:
    kube, ns, name = client.kube, client.namespace, name_of("status-of")
    made = await kube.create(CONSUMER_GROUPS, ns, group(name))
    assert await kube.patch_status(CONSUMER_GROUPS, ns, name, {"state": "Empty"}, made["metadata"]["uid"])
    assert not await kube.patch_status(CONSUMER_GROUPS, ns, name, {"state": "Stable"}, "another")
    assert (await kube.get(CONSUMER_GROUPS, ns, name))["status"] == {"state": "Empty"}
    assert await kube.delete(CONSUMER_GROUPS, ns, name)
    assert not await kube.patch_status(CONSUMER_GROUPS, ns, name, {}, made["metadata"]["uid"])


async def test_apply_is_idempotent_and_removes_what_it_no_longer_says(client: Any) -> None:
    kube, ns, name = client.kube, client.namespace, name_of("apply")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1", "b": "2"}}
    first = await kube.apply(CONFIG_MAPS, ns, body)
    again = await kube.apply(CONFIG_MAPS, ns, body)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    await kube.patch(CONFIG_MAPS, ns, name, {"data": {"theirs": "3"}})
    last = await kube.apply(CONFIG_MAPS, ns, {**body, "data": {"a": "1"}})
    assert last["data"]["a"] == "1"
    assert "b" not in last["data"]
    await kube.delete(CONFIG_MAPS, ns, name)


async def test_a_dry_run_changes_nothing_and_tells_nobody(client: Any) -> None:
    kube, ns, name = client.kube, client.namespace, name_of("dry")
    await kube.create(CONSUMER_GROUPS, ns, group(name), dry_run=True)
    assert await kube.get(CONSUMER_GROUPS, ns, name) is None
    assert client.written == []


async def test_lists_come_in_pages_and_name_the_kind_of_each_item(client: Any) -> None:
    kube, ns, label = client.kube, client.namespace, name_of("l")
    names = [name_of("page") for _ in range(7)]
    for name in names:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {label: "x"}}}
        await kube.create(CONFIG_MAPS, ns, body)
    import penstock_operator.kube.client as module

    module.PAGE = 3  # type: ignore[misc]
    try:
        pages = [page async for page in kube.pages(CONFIG_MAPS, ns, {label: ""})]
    finally:
        module.PAGE = PAGE  # type: ignore[misc]
    assert [len(page.items) for page in pages] == [3, 3, 1]
    assert sorted(item["metadata"]["name"] for page in pages for item in page.items) == sorted(names)
    assert all(item["kind"] == "ConfigMap" and item["apiVersion"] == "v1" for page in pages for item in page.items)
    assert len({page.version for page in pages}) == 1
    assert await kube.list(CONFIG_MAPS, ns, {label: "y"}) == []
    for name in names:
        await kube.delete(CONFIG_MAPS, ns, name)


async def test_a_list_of_what_is_not_served_is_an_error_and_not_an_empty_list(client: Any) -> None:
    from penstock_operator.ports.kube import KubeResource

    with pytest.raises(KubeError) as raised:
        await client.kube.list(KubeResource("penstock.io", "v1beta1", "nonsense"), client.namespace)
    assert raised.value.status == 404
    assert not raised.value.is_passing


async def test_a_lease_is_created_and_patched_as_the_engine_does_it(client: Any) -> None:
    kube, ns, name = client.kube, client.namespace, name_of("lease")
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-11-21T08:00:00.123456Z"}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
    made = await kube.create(LEASES, ns, body)
    place = {"resourceVersion": made["metadata"]["resourceVersion"], "uid": made["metadata"]["uid"]}
    released = await kube.patch(LEASES, ns, name, {"metadata": place, "spec": {"holderIdentity": ""}})
    assert not released["spec"].get("holderIdentity")
    with pytest.raises(KubeError) as raised:
        await kube.patch(LEASES, ns, name, {"metadata": place, "spec": {"holderIdentity": "b"}})
    assert raised.value.status == 409
    await kube.delete(LEASES, ns, name)


async def test_an_event_is_written_once_and_counted(client: Any) -> None:
    from doubles.api_server import EVENTS

    kube, ns, name = client.kube, client.namespace, name_of("told")
    made = await kube.create(CONSUMER_GROUPS, ns, group(name))
    for _ in range(5):
        await kube.record_events(made, [KubeEvent("Warning", "ResetRefused", "the group has members" + "!" * 2_000)])
    await kube.record_events(made, [KubeEvent("Normal", "ResetDone", "done")])
    assert client.failed == []
    events = [e for e in await kube.list(EVENTS, ns) if e["involvedObject"]["name"] == name]
    by_reason = {e["reason"]: e for e in events}
    assert len(events) == 2
    assert by_reason["ResetRefused"]["count"] == 2
    assert by_reason["ResetRefused"]["involvedObject"]["uid"] == made["metadata"]["uid"]
    assert by_reason["ResetRefused"]["lastTimestamp"], "kubectl get events --sort-by .lastTimestamp"
    assert by_reason["ResetDone"]["type"] == "Normal"
    other = await kube.create(CONSUMER_GROUPS, ns, group(name_of("other")))
    await kube.record_events(other, [KubeEvent("Normal", "ResetDone", "done")])
    found = await kube.events(ns, made["metadata"]["uid"])
    assert {event["metadata"]["name"] for event in found} == {event["metadata"]["name"] for event in events}
    await kube.delete(CONSUMER_GROUPS, ns, other["metadata"]["name"])
    await kube.delete(CONSUMER_GROUPS, ns, name)


async def test_nobody_there_is_a_passing_error(monkeypatch: pytest.MonkeyPatch, server: Any, tmp_path: Any) -> None:
    from kubernetes.client import Configuration

    from penstock_operator.kube.http import Requests

    await server.stop()
    where = Configuration()
    where.host, where.retries = f"http://127.0.0.1:{server.port}", False
    requests = Requests(where, timeout_s=2)
    with pytest.raises(KubeError) as raised:
        await requests.send("GET", "/version")
    assert raised.value.status == 0
    assert raised.value.is_passing
    requests.close()
