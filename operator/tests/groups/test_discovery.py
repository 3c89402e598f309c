"""Discovered groups: the operator creates objects, keeps them current with few requests, and deletes them with the
group."""

from __future__ import annotations

import asyncio

import pytest
from doubles.virtual import run_virtually
from world import World, in_a_world

from penstock_operator.groups.discovery import rotate
from penstock_operator.groups.pacing import EVERY_S
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER, BrokersError
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, KubeError
from penstock_operator.reconcile.group.names import DISCOVERED, hashed_name

SOON = 10


@in_a_world
async def test_a_group_appears_with_its_columns_within_ten_seconds(world: World) -> None:
    world.c.log("orders").end = 12
    world.c.add_group("billing", {("orders", 0): 5}, members=2)
    await asyncio.sleep(SOON)
    shown = world.shown("billing")
    assert shown is not None
    assert shown["metadata"]["labels"][DISCOVERED] == "true"
    assert shown["metadata"]["ownerReferences"][0]["kind"] == "Cluster"
    status = shown["status"]
    assert (status["state"], status["members"], status["lag"], status["topicNames"]) == ("Stable", 2, 7, "orders")


@in_a_world
async def test_a_name_that_kubernetes_does_not_allow_is_mapped(world: World) -> None:
    world.c.add_group("Rechnung_EU", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    name = hashed_name("c", "Rechnung_EU")
    assert world.names() == [name]
    assert world.shown(name)["spec"]["groupId"] == "Rechnung_EU"
    assert world.status(name)["groupId"] == "Rechnung_EU"


@in_a_world
async def test_the_same_group_of_two_clusters_has_two_objects(world: World) -> None:
    world.cluster("d").add_group("billing", {("orders", 0): 0})
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(2 * SOON)
    assert len(world.names()) == 2
    assert "billing" in world.names()
    owners = {world.shown(name)["spec"]["clusterRef"]["name"] for name in world.names()}
    assert owners == {"c", "d"}


@in_a_world
async def test_a_discovered_object_goes_when_two_lists_in_a_row_lack_its_group(world: World) -> None:
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    del world.c.groups_by_id["billing"]
    await world.discovery.poll()
    assert world.shown("billing"), "once is not enough"
    await asyncio.sleep(SOON)
    assert world.shown("billing") is None


@in_a_world
async def test_brokers_that_do_not_answer_take_no_object_away(world: World) -> None:
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    del world.c.groups_by_id["billing"]
    await world.discovery.poll()
    world.c.fail_next("group_ids", BrokersError("no"), times=10_000)
    await asyncio.sleep(300)
    assert world.shown("billing")


@in_a_world
async def test_a_group_that_lists_lack_while_its_coordinator_moves_keeps_its_object(world: World) -> None:
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    uid = world.shown("billing")["metadata"]["uid"]

    async def moving() -> dict[str, str]:
        return {}

    world.c.group_ids = moving  # type: ignore[method-assign]
    await asyncio.sleep(60)
    assert world.shown("billing")["metadata"]["uid"] == uid
    del world.c.groups_by_id["billing"]
    await asyncio.sleep(SOON)
    assert world.shown("billing") is None


@in_a_world
async def test_an_object_that_a_user_applied_stays_while_its_group_is_absent(world: World) -> None:
    world.apply("later")
    await asyncio.sleep(SOON)
    assert world.status("later")["state"] == "Absent"
    world.c.add_group("later", {("orders", 0): 3}, members=1)
    await asyncio.sleep(SOON)
    assert world.status("later")["state"] == "Stable"
    del world.c.groups_by_id["later"]
    await asyncio.sleep(60)
    assert world.status("later")["state"] == "Absent"


@in_a_world
async def test_one_that_is_applied_over_a_discovered_one_is_the_users(world: World) -> None:
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    body = world.shown("billing")
    assert body is not None
    managers = [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:clusterRef": {}}}}]
    world.kube.put(CONSUMER_GROUPS, {**body, "metadata": {**body["metadata"], "managedFields": managers}})
    await asyncio.sleep(SOON)
    taken = world.shown("billing")
    assert taken is not None
    assert DISCOVERED not in taken["metadata"]["labels"]
    assert not taken["metadata"].get("ownerReferences")
    del world.c.groups_by_id["billing"]
    await asyncio.sleep(60)
    assert world.status("billing")["state"] == "Absent"


@in_a_world
async def test_one_that_was_applied_over_a_moment_before_its_group_went_is_not_deleted(world: World) -> None:
    """The watch lags: the operator may delete only the version that it has read."""
    world.c.add_group("audit", {("orders", 0): 0})
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    world.kube.hold()
    body = world.shown("billing")
    assert body is not None
    managers = [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:clusterRef": {}}}}]
    world.kube.put(CONSUMER_GROUPS, {**body, "metadata": {**body["metadata"], "managedFields": managers}})
    world.c.groups_by_id.clear()
    await asyncio.sleep(30)
    assert "billing" in world.names()
    world.kube.release()
    await asyncio.sleep(30)
    assert world.names() == ["billing"]
    assert DISCOVERED not in world.shown("billing")["metadata"]["labels"]


@in_a_world
async def test_one_that_was_changed_meanwhile_keeps_no_other_from_going(world: World) -> None:
    world.c.add_group("audit", {("orders", 0): 0})
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    await world.stop()
    world.c.groups_by_id.clear()
    world.kube.fail("delete", KubeError(409, "Conflict", "the object has been modified"))
    for _ in range(2):
        await world.discovery.poll()
    assert len(world.names()) == 1
    await world.discovery.poll()
    assert world.names() == []


@in_a_world
async def test_one_applied_under_another_name_takes_the_discovered_ones_place(world: World) -> None:
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    world.apply("mine", groupId="billing")
    await asyncio.sleep(2 * SOON)
    assert world.names() == ["mine"]
    assert world.status("mine")["state"] == "Empty"


@in_a_world
async def test_a_group_that_has_nothing_but_settings_is_not_shown(world: World) -> None:
    world.c.group_settings["ghost"] = {"penstock.reset.id": "a"}
    await asyncio.sleep(60)
    assert world.names() == []


@in_a_world
async def test_a_deleted_discovered_object_comes_back_and_its_offsets_were_not_touched(world: World) -> None:
    world.c.add_group("billing", {("orders", 0): 3})
    await asyncio.sleep(SOON)
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(SOON)
    assert world.shown("billing")
    assert world.c.groups_by_id["billing"].offsets == {("orders", 0): 3}


@in_a_world
async def test_a_steady_state_writes_nothing(world: World) -> None:
    for number in range(50):
        world.c.add_group(f"g{number}", {("orders", 0): 0}, members=1)
    await asyncio.sleep(30)
    writes = world.kube.writes
    await asyncio.sleep(600)
    assert world.kube.writes == writes


@in_a_world
async def test_lag_that_changes_all_the_time_is_written_every_few_seconds(world: World) -> None:
    world.c.add_group("billing", {("orders", 0): 0}, members=1)
    await asyncio.sleep(30)
    writes = world.kube.calls["patch_status"]
    for _ in range(600):
        world.c.log("orders").end += 100
        await asyncio.sleep(0.1)
    assert 6 <= world.kube.calls["patch_status"] - writes <= 60 / EVERY_S
    await asyncio.sleep(SOON)
    assert world.status("billing")["lag"] == 60_000, "the last change is written, too"


@in_a_world
async def test_a_change_of_members_is_written_at_once(world: World) -> None:
    group = world.c.add_group("billing", {("orders", 0): 0}, members=1)
    await asyncio.sleep(30)
    world.c.log("orders").end = 5
    await asyncio.sleep(4.1)
    group.members = 3
    await asyncio.sleep(4.5)
    assert world.status("billing")["members"] == 3


@pytest.mark.slow
def test_a_thousand_groups_that_all_lag_are_bounded_in_writes() -> None:
    async def play() -> None:
        world = World()
        for number in range(1_000):
            world.c.add_group(f"g{number}", {(f"t{number}", 0): 0}, members=1)
        await world.start()
        await asyncio.sleep(120)
        assert len(world.names()) == 1_000
        writes = world.kube.calls["patch_status"]
        calls = world.c.calls["groups"]
        for _ in range(60):
            for number in range(1_000):
                world.c.log(f"t{number}").end += 1
            await asyncio.sleep(1)
        assert world.kube.calls["patch_status"] - writes < 60 * 25
        assert world.c.calls["groups"] - calls < 60, "groups are asked for together"
        await world.stop()

    run_virtually(play())


def test_beyond_the_cap_groups_are_not_shown_and_the_cluster_says_so() -> None:
    async def play() -> None:
        world = World(max_discovered=10)
        for number in range(15):
            world.c.add_group(f"g{number:02}", {("orders", 0): 0})
        await world.start()
        await asyncio.sleep(60)
        assert world.names() == [f"g{number:02}" for number in range(10)]
        assert world.reasons().count("TooManyGroups") == 1
        world.apply("g14")
        await asyncio.sleep(SOON)
        assert world.status("g14")["state"] == "Empty", "one that is applied counts not"
        await world.stop()

    run_virtually(play())


def test_beyond_the_cap_each_group_comes_in_turn() -> None:
    """Groups whose objects cannot be created must not block others or pending deletions."""

    async def play() -> None:
        world = World(max_discovered=300)
        for number in range(300):
            world.c.add_group(f"a{number:03}", {("orders", 0): 0})
            world.kube.fail("create", KubeError(422, "Invalid", "a name that it does not take"))
        for number in range(20):
            world.c.add_group(f"b{number:02}", {("orders", 0): 0})
        await world.start()
        await asyncio.sleep(60)
        assert [name for name in world.names() if name.startswith("b")] == [f"b{number:02}" for number in range(20)]
        await world.stop()

    run_virtually(play())


@pytest.mark.parametrize("max_discovered", [0, 10])
def test_a_group_whose_object_is_gone_is_found_among_many_that_are_not_shown(max_discovered: int) -> None:
    async def play() -> None:
        world = World(max_discovered=max_discovered)
        for number in range(450):
            world.c.add_group(f"g{number:03}", {("orders", 0): 0})
        world.c.add_group("zzz", {("orders", 0): 0})
        world.c.group_settings["zzz"] = {OWNER: "gone", DELETION_POLICY: "Delete"}
        world.apply("applied")
        await world.start()
        await asyncio.sleep(240)
        assert "zzz" not in world.c.groups_by_id
        assert len(world.names()) == max_discovered + 1
        assert world.reasons().count("TooManyGroups") == 1
        await world.stop()

    run_virtually(play())


def test_turns_go_around() -> None:
    assert rotate(["a", "b", "c"], "", 2) == ["a", "b"]
    assert rotate(["a", "b", "c"], "b", 2) == ["c", "a"]
    assert rotate(["a", "c"], "b", 5) == ["c", "a"]
    assert rotate([], "b", 5) == []


@in_a_world
async def test_discovered_objects_go_with_their_cluster_and_applied_ones_say_that_it_is_gone(world: World) -> None:
    world.c.add_group("billing", {("orders", 0): 0})
    world.apply("mine")
    await asyncio.sleep(SOON)
    world.kube.remove(CLUSTERS, "ns", "c")
    del world.brokers["ns", "c"]
    await asyncio.sleep(SOON)
    assert world.names() == ["mine"]
    ready = world.status("mine")["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("False", "ClusterNotFound")


@in_a_world
async def test_one_cluster_that_hangs_keeps_no_other_waiting(world: World) -> None:
    async def hang() -> dict[str, str]:
        await asyncio.sleep(1_000_000)
        return {}

    world.cluster("stuck").group_ids = hang  # type: ignore[method-assign]
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    assert world.shown("billing")
    world.c.add_group("second", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    assert world.shown("second")


@in_a_world
async def test_a_group_that_the_api_server_does_not_take_keeps_no_other_from_being_shown(world: World) -> None:
    world.kube.fail("create", KubeError(422, "Invalid", "spec.groupId: Too long"))
    world.c.add_group("audit", {("orders", 0): 0})
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    assert world.names() == ["billing"]
    creates = world.kube.calls["create"]
    await asyncio.sleep(60)
    assert world.kube.calls["create"] == creates, "and it is not tried every few seconds"
    await asyncio.sleep(300)
    assert world.names() == ["audit", "billing"]


@in_a_world
async def test_what_is_shown_stays_true_while_nothing_new_can_be_shown(world: World) -> None:
    world.c.add_group("mine", {("orders", 0): 0})
    world.apply("mine")
    await asyncio.sleep(SOON)
    world.kube.fail("create", KubeError(500, "InternalError", "etcd is full"), times=10_000)
    world.c.add_group("another", {("orders", 0): 0})
    await asyncio.sleep(30)
    world.c.log("orders").end = 12
    await asyncio.sleep(30)
    assert world.status("mine")["lag"] == 12


@in_a_world
async def test_a_group_without_a_name_is_nobodys_business(world: World) -> None:
    """A client without membership may commit with an empty group id; brokers reject all requests about such a group."""
    world.c.add_group("", {("orders", 0): 0})
    world.c.add_group("billing", {("orders", 0): 0})
    await asyncio.sleep(SOON)
    assert world.names() == ["billing"]
