"""The API server double follows the rules of the real one."""

from __future__ import annotations

import pytest
from doubles.kube import FakeKube

from penstock_operator.ports.kube import CLUSTERS, CONFIG_MAPS, TOPICS, KubeError, KubeEvent


def topic(name: str = "orders", **spec: object) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"clusterRef": {"name": "c"}, **spec}}


async def test_a_stale_resource_version_is_a_conflict_and_changes_nothing() -> None:
    kube = FakeKube()
    first = kube.put(TOPICS, topic())["metadata"]["resourceVersion"]
    kube.put(TOPICS, topic(partitions=3))
    with pytest.raises(KubeError, match="Conflict") as raised:
        await kube.patch(TOPICS, "ns", "orders", {"metadata": {"resourceVersion": first}, "spec": {"partitions": 9}})
    assert raised.value.is_passing
    assert kube.read(TOPICS, "ns", "orders")["spec"]["partitions"] == 3
    assert kube.changes["patch"] == 0


async def test_a_delete_with_another_uid_deletes_nothing() -> None:
    kube = FakeKube()
    kube.put(TOPICS, topic())
    assert not await kube.delete(TOPICS, "ns", "orders", uid="another")
    assert kube.read(TOPICS, "ns", "orders")
    assert await kube.delete(TOPICS, "ns", "orders", uid=kube.read(TOPICS, "ns", "orders")["metadata"]["uid"])
    assert not await kube.delete(TOPICS, "ns", "orders")
    assert kube.objects.deleted(TOPICS, "ns", "orders")["spec"]["clusterRef"] == {"name": "c"}


async def test_apply_removes_what_it_no_longer_says_and_keeps_what_others_said() -> None:
    kube = FakeKube()
    body = {"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}}
    await kube.apply(CONFIG_MAPS, "ns", body)
    await kube.patch(CONFIG_MAPS, "ns", "m", {"data": {"theirs": "3"}})
    now = await kube.apply(CONFIG_MAPS, "ns", {"metadata": {"name": "m"}, "data": {"a": "1"}})
    assert now["data"] == {"a": "1", "theirs": "3"}
    again = await kube.apply(CONFIG_MAPS, "ns", {"metadata": {"name": "m"}, "data": {"a": "1"}})
    assert again["metadata"]["resourceVersion"] == now["metadata"]["resourceVersion"]
    assert kube.changes["apply"] == 2


async def test_status_is_replaced_as_a_whole_and_only_by_its_subresource() -> None:
    kube = FakeKube()
    kube.put(TOPICS, topic())
    assert await kube.patch_status(TOPICS, "ns", "orders", {"partitions": 1, "offline": 1})
    assert await kube.patch_status(TOPICS, "ns", "orders", {"partitions": 2})
    await kube.patch(TOPICS, "ns", "orders", {"status": {"partitions": 7}, "spec": {"partitions": 4}})
    stored = kube.read(TOPICS, "ns", "orders")
    assert stored["status"] == {"partitions": 2}
    assert (stored["spec"]["partitions"], stored["metadata"]["generation"]) == (4, 2)
    assert not await kube.patch_status(TOPICS, "ns", "gone", {})


@pytest.mark.parametrize(("what", "status"), [("crds_gone", 404), ("crds_terminating", 405)])
async def test_dry_run_creates_tell_of_crds_that_go(what: str, status: int) -> None:
    kube = FakeKube()
    await kube.create(TOPICS, "ns", topic(), dry_run=True)
    assert kube.stored == {}
    getattr(kube, what).add(TOPICS)
    with pytest.raises(KubeError) as raised:
        await kube.create(TOPICS, "ns", topic(), dry_run=True)
    assert raised.value.status == status


async def test_a_terminating_namespace_refuses_creates() -> None:
    kube = FakeKube()
    kube.terminating.add("ns")
    with pytest.raises(KubeError) as raised:
        await kube.create(TOPICS, "ns", topic(), dry_run=True)
    assert raised.value.status == 403


async def test_owned_objects_go_with_their_owner_and_watches_may_lag() -> None:
    kube = FakeKube()
    owner = kube.put(CLUSTERS, {"metadata": {"name": "c", "namespace": "ns"}, "spec": {}})
    owned = topic()
    owned["metadata"]["ownerReferences"] = [{"uid": owner["metadata"]["uid"]}]  # type: ignore[index]
    kube.put(TOPICS, owned)
    assert kube.objects.in_cluster(TOPICS, "ns", "c")
    kube.hold()
    kube.remove(CLUSTERS, "ns", "c")
    assert kube.stored == {}
    assert kube.objects.get(TOPICS, "ns", "orders")
    kube.release()
    assert kube.objects.get(TOPICS, "ns", "orders") is None


async def test_failures_come_on_demand_and_events_are_kept() -> None:
    kube = FakeKube()
    body = kube.put(TOPICS, topic())
    kube.fail("patch_status", KubeError(500, "InternalError", "no"), times=2)
    for _ in range(2):
        with pytest.raises(KubeError):
            await kube.patch_status(TOPICS, "ns", "orders", {})
    assert await kube.patch_status(TOPICS, "ns", "orders", {"partitions": 1})
    await kube.record_events(body, [KubeEvent("Normal", "Created", "it is there")])
    assert kube.recorded == [("Topic/ns/orders", KubeEvent("Normal", "Created", "it is there"))]
