"""The number of etcd's members under the controller: it follows `etcd.endpoints`, one member at a time."""

from __future__ import annotations

import pytest
from clusters.cluster_kit import NS
from clusters.store_kit import ALL_URLS, REJOIN, SET, StoreWorld, formed_with_etcd

from penstock_operator.ports.kube import CLAIMS, CONFIG_MAPS, PODS, STATEFUL_SETS
from penstock_operator.specs import companion


def want(world: StoreWorld, members: int) -> None:
    world.apply(etcd={"endpoints": ALL_URLS[:members], "managed": True, "statefulSet": SET})


def voters(world: StoreWorld) -> list[str]:
    return sorted(member.name for member in world.store.members.values() if not member.is_learner)


def pods(members: int) -> list[str]:
    return [f"{SET}-{ordinal}" for ordinal in range(members)]


def required(world: StoreWorld) -> int:
    return companion.required_pods(world.kube.read(CONFIG_MAPS, NS, REJOIN))


async def running(members: int) -> StoreWorld:
    world = await formed_with_etcd(members)
    world.scale_etcd(members)
    await world.run(5)
    return world


@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 5), (1, 5)])
async def test_members_are_added_one_at_a_time_and_vote_when_they_are_in_sync(first: int, then: int) -> None:
    world = await running(first)
    want(world, then)
    await world.run(5)
    assert world.condition("StateStore")[0] == "False", "it has not the members that are wanted"
    await world.run(120)
    assert world.condition("StateStore") == ("True", "Healthy"), world.message("StateStore")
    assert world.message("StateStore").startswith(f"all {then} members are healthy")
    assert voters(world) == pods(then)
    assert [kind for kind, _ in world.store.calls] == ["add", "promote"] * (then - first)
    assert world.most_members_away == 0, "a member that has not started does not vote"
    assert world.etcd_replicas == required(world) == then
    assert {"StateStoreResizing", "StoreMemberAdded", "StoreMemberPromoted", "StateStoreHealthy"} <= set(world.recorded)
    writes = world.kube.writes
    await world.run(120)
    assert world.kube.writes == writes, "and then all is quiet"


@pytest.mark.parametrize(("first", "then"), [(3, 1), (5, 3), (5, 1)])
async def test_members_leave_the_list_before_their_pods_stop_and_the_leader_hands_over(first: int, then: int) -> None:
    world = await running(first)
    world.store.leader = world.store.members[companion.peer_url(ALL_URLS[first - 1])].member_id
    want(world, then)
    await world.run(120)
    assert world.condition("StateStore") == ("True", "Healthy"), world.message("StateStore")
    assert voters(world) == pods(then)
    assert [kind for kind, _ in world.store.calls] == ["lead", *["remove"] * (first - then)]
    assert world.most_members_away == 0
    assert world.etcd_replicas == required(world) == then
    assert "StoreMemberRemoved" in world.recorded
    writes = world.kube.writes
    await world.run(120)
    assert world.kube.writes == writes


async def test_an_operator_that_ends_between_two_steps_of_a_change_is_followed_by_another() -> None:
    world = await running(3)
    for members in (5, 1, 3):
        want(world, members)
        for _ in range(60):
            await world.run(1)
            world.start()
        await world.run(60)
        assert voters(world) == pods(members)
        world.empty |= set(range(members, len(ALL_URLS)))


async def test_no_member_is_added_or_removed_while_another_is_away() -> None:
    for members, away in ((5, 1), (1, 0)):
        world = await running(3)
        world.stuck.add(away)
        world.kube.remove(PODS, NS, f"{SET}-{away}")
        await world.run(3)
        want(world, members)
        await world.run(60)
        assert world.store.calls == []
        assert f"waits: member p-etcd-{away} is not healthy" in world.message("StateStore")


async def test_a_member_that_is_away_and_not_wanted_is_removed_first() -> None:
    world = await running(3)
    world.stuck.add(1)
    world.kube.remove(PODS, NS, f"{SET}-1")
    await world.run(3)
    want(world, 1)
    await world.run(60)
    assert world.store.calls == [("remove", 2), ("remove", 3)]
    assert world.condition("StateStore") == ("True", "Healthy")


async def test_a_member_that_does_not_start_is_removed_when_the_wish_is_taken_back() -> None:
    world = await running(3)
    world.stuck.add(3)
    want(world, 5)
    await world.run(60)
    assert world.condition("StateStore") == ("False", "Joining")
    want(world, 3)
    await world.run(60)
    assert world.condition("StateStore") == ("True", "Healthy")
    assert world.etcd_replicas == 3
    assert [kind for kind, _ in world.store.calls] == ["add", "remove"]


async def test_a_volume_with_the_data_of_an_earlier_member_is_not_used() -> None:
    world = await running(3)
    world.kube.put(CLAIMS, {"metadata": {"name": f"data-{SET}-3", "namespace": NS}})
    want(world, 5)
    await world.run(60)
    assert world.condition("StateStore") == ("False", "ResizeRefused")
    assert f"kubectl delete pvc data-{SET}-3" in world.message("StateStore")
    assert world.store.calls == []
    world.kube.remove(CLAIMS, NS, f"data-{SET}-3")
    await world.run(120)
    assert voters(world) == pods(5)


async def test_pods_that_another_client_stopped_before_their_members_were_removed_start_again() -> None:
    world = await running(3)
    want(world, 1)
    world.scale_etcd(1)
    await world.run(120)
    assert world.condition("StateStore") == ("True", "Healthy"), world.message("StateStore")
    assert voters(world) == pods(1)
    assert world.etcd_replicas == 1


async def test_a_hibernated_etcd_wakes_with_all_members_of_its_list() -> None:
    world = await running(3)
    world.annotate(hibernate="true")
    await world.run(60)
    assert world.etcd_replicas == 0
    want(world, 1)
    world.annotate(hibernate=None)
    while not world.etcd_replicas:
        await world.run(1)
    assert world.etcd_replicas == 3
    await world.run(200)
    assert world.condition("StateStore") == ("True", "Healthy"), world.message("StateStore")
    assert voters(world) == pods(1)


async def test_the_stateful_set_of_another_cluster_is_not_scaled() -> None:
    world = await formed_with_etcd()
    world.scale_etcd(3, cluster="another")
    await world.run(5)
    want(world, 5)
    await world.run(60)
    assert world.condition("StateStore") == ("False", "ResizeRefused")
    assert world.kube.read(STATEFUL_SETS, NS, SET)["spec"]["replicas"] == 3  # type: ignore[index]
