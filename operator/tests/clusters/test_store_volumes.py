"""Volumes of the companion etcd under the controller: claims that no watch reports grow one at a time."""

from __future__ import annotations

import copy

from clusters.cluster_kit import NS
from clusters.store_kit import SET, URLS, StoreWorld, formed_with_etcd

from penstock_operator.ports.kube import CLAIMS, KubeError

ETCD = {"endpoints": URLS, "managed": True, "statefulSet": SET}


def put_claim(world: StoreWorld, ordinal: int, size: str) -> None:
    resources = {"requests": {"storage": size}}
    meta = {"name": f"data-{SET}-{ordinal}", "namespace": NS}
    status = {"phase": "Bound", "capacity": {"storage": size}}
    world.kube.put(CLAIMS, {"metadata": meta, "spec": {"resources": resources}, "status": status})


def sizes(world: StoreWorld) -> list[str]:
    bodies = [world.kube.read(CLAIMS, NS, f"data-{SET}-{n}") or {} for n in range(3)]
    return [body["spec"]["resources"]["requests"]["storage"] for body in bodies]


def expand(world: StoreWorld) -> int:
    """Expand the volumes as their driver does; return how many had to grow."""
    count = 0
    for ordinal in range(3):
        body = copy.deepcopy(world.kube.read(CLAIMS, NS, f"data-{SET}-{ordinal}") or {})
        wanted = body["spec"]["resources"]["requests"]["storage"]
        if body["status"]["capacity"]["storage"] != wanted:
            body["status"]["capacity"]["storage"] = wanted
            world.kube.put(CLAIMS, body)
            count += 1
    return count


async def with_volumes() -> StoreWorld:
    world = await formed_with_etcd()
    for ordinal in range(3):
        put_claim(world, ordinal, "2Gi")
    return world


async def test_claims_grow_one_at_a_time_and_then_no_request_is_made() -> None:
    world = await with_volumes()
    world.apply(etcd={**ETCD, "storage": {"size": "4Gi"}})
    await world.run(20)
    assert sizes(world) == ["4Gi", "2Gi", "2Gi"], "the driver has not expanded the first volume"
    assert world.condition("Storage") == ("True", "Expanding")
    for _ in range(60):
        await world.run(2)
        assert expand(world) <= 1
    assert sizes(world) == ["4Gi"] * 3
    assert "Storage" not in {condition.type for condition in world.cluster.status.conditions}
    assert world.gone == [], "no member restarts"
    writes = world.kube.writes
    world.kube.fail("get", KubeError(500, "Broken", "no claim may be read"), times=1000, resource=CLAIMS)
    await world.run(120)
    assert world.kube.writes == writes


async def test_a_claim_that_is_created_again_grows_again() -> None:
    world = await with_volumes()
    world.apply(etcd={**ETCD, "storage": {"size": "2Gi"}})
    await world.run(10)
    put_claim(world, 1, "1Gi")
    world.lose(1)
    for _ in range(30):
        await world.run(2)
        expand(world)
    assert sizes(world) == ["2Gi"] * 3
    assert world.condition("StateStore") == ("True", "Healthy")


async def test_a_refused_size_is_told_and_can_be_taken_back() -> None:
    world = await with_volumes()
    world.kube.fail("patch", KubeError(403, "Forbidden", "the class does not expand"), times=100, resource=CLAIMS)
    world.apply(etcd={**ETCD, "storage": {"size": "4Gi"}})
    await world.run(20)
    assert world.condition("Storage") == ("False", "NotExpandable")
    assert "the class does not expand" in world.message("Storage")
    world.apply(etcd={**ETCD, "storage": {"size": "2Gi"}})
    await world.run(20)
    assert "Storage" not in {condition.type for condition in world.cluster.status.conditions}
