"""Groups whose ConsumerGroup is deleted: the deletion policy decides."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from doubles.virtual import LoopClock
from world import AT, World, committed, in_a_world, with_orders

from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.brokers import OWNER, BrokersError
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, KubeError


@in_a_world
async def test_deleting_keeps_the_offsets_unless_it_says_delete(world: World) -> None:
    with_orders(world)
    world.apply("billing")
    await asyncio.sleep(5)
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(300)
    assert committed(world) == 7


@in_a_world
async def test_deleting_with_delete_deletes_the_group_at_once(world: World) -> None:
    with_orders(world)
    world.apply("billing", deletionPolicy="Delete")
    await asyncio.sleep(5)
    assert world.c.group_settings["billing"][OWNER] == world.shown("billing")["metadata"]["uid"]
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(1)
    assert "billing" not in world.c.groups_by_id
    await asyncio.sleep(60)
    assert world.names() == []


@pytest.mark.parametrize("is_seen", [True, False])
def test_deleting_a_paused_object_keeps_the_group(is_seen: bool) -> None:
    @in_a_world
    async def play(world: World) -> None:
        with_orders(world)
        world.apply("billing", deletionPolicy="Delete")
        await asyncio.sleep(5)
        world.apply("billing", deletionPolicy="Delete", paused=True)
        await asyncio.sleep(5)
        if not is_seen:
            await world.stop()
        world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
        if not is_seen:
            await asyncio.sleep(3_600)
            await world.restart()
        await asyncio.sleep(600)
        assert committed(world) == 7

    play()


@in_a_world
async def test_one_that_is_not_paused_any_more_takes_its_group_with_it(world: World) -> None:
    with_orders(world)
    for paused in (False, True, False):
        world.apply("billing", deletionPolicy="Delete", paused=paused)
        await asyncio.sleep(5)
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(5)
    assert "billing" not in world.c.groups_by_id


@in_a_world
async def test_a_group_that_still_has_members_is_deleted_when_they_left(world: World) -> None:
    with_orders(world, members=1)
    world.apply("billing", deletionPolicy="Delete")
    await asyncio.sleep(5)
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(120)
    assert "billing" in world.c.groups_by_id
    world.c.groups_by_id["billing"].members = 0
    await asyncio.sleep(120)
    assert "billing" not in world.c.groups_by_id


@in_a_world
async def test_one_deleted_while_the_operator_was_away_is_found_by_two_lists(world: World) -> None:
    with_orders(world)
    world.apply("billing", deletionPolicy="Delete")
    world.apply("another")
    await asyncio.sleep(5)
    await world.stop()
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(3_600)
    await world.restart()
    await asyncio.sleep(90)
    assert "billing" in world.c.groups_by_id, "one list is not enough"
    assert world.names() == ["another"], "nor is it discovered meanwhile"
    await asyncio.sleep(180)
    assert "billing" not in world.c.groups_by_id


@pytest.mark.parametrize(("age_s", "is_kept"), [(0, True), (240, True), (900, False)])
def test_groups_of_a_cluster_that_was_made_again_wait_for_their_objects_to_come_back(age_s: int, is_kept: bool) -> None:
    @in_a_world
    async def play(world: World) -> None:
        with_orders(world)
        world.apply("billing", deletionPolicy="Delete")
        world.apply("another")
        await asyncio.sleep(5)
        await world.stop()
        world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
        await asyncio.sleep(3_600)
        made = datetime.fromtimestamp(LoopClock().wall_ms() / 1_000 - age_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        world.kube.put(CLUSTERS, {"metadata": {"name": "c", "namespace": "ns", "creationTimestamp": made}, "spec": {}})
        await world.restart()
        await asyncio.sleep(300)
        assert ("billing" in world.c.groups_by_id) == is_kept
        assert (world.kube.calls["list"] == 0) == is_kept, "what a list lacks is not counted yet"
        await asyncio.sleep(600)
        assert "billing" not in world.c.groups_by_id, "it was only put off"

    play()


@in_a_world
async def test_nothing_is_deleted_by_lists_where_the_api_server_has_no_such_cluster_any_more(world: World) -> None:
    with_orders(world)
    world.apply("billing", deletionPolicy="Delete")
    world.apply("another")
    await asyncio.sleep(5)
    await world.stop()
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(3_600)
    await world.restart()
    await asyncio.sleep(90)
    assert world.kube.calls["list"] == 1
    world.kube.hold()  # no watch has reported it yet
    world.kube.remove(CLUSTERS, "ns", "c")
    await asyncio.sleep(300)
    assert committed(world) == 7


@in_a_world
async def test_one_restored_from_a_backup_has_its_group_again(world: World) -> None:
    with_orders(world)
    world.apply("billing", deletionPolicy="Delete")
    await asyncio.sleep(5)
    await world.stop()
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(3_600)
    world.apply("billing", deletionPolicy="Delete")
    await world.restart()
    await asyncio.sleep(300)
    assert committed(world) == 7
    assert world.c.group_settings["billing"][OWNER] == world.shown("billing")["metadata"]["uid"]


@pytest.mark.parametrize("what", ["namespace", "definitions", "definitions gone"])
def test_nothing_is_deleted_while_all_is_being_taken_down(what: str) -> None:
    @in_a_world
    async def play(world: World) -> None:
        with_orders(world)
        world.apply("billing", deletionPolicy="Delete")
        await asyncio.sleep(5)
        if what == "namespace":
            world.kube.terminating.add("ns")
        elif what == "definitions":
            world.kube.crds_terminating.add(CONSUMER_GROUPS)
        world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
        if what == "definitions gone":
            world.kube.crds_gone.add(CONSUMER_GROUPS)
        await asyncio.sleep(600)
        assert committed(world) == 7
        assert world.queue.failing("ConsumerGroup") == 0, "that is not a failure, and is not retried forever"
        world.kube.terminating.clear()
        world.kube.crds_terminating.clear()
        world.kube.crds_gone.clear()
        await asyncio.sleep(1_200)
        assert committed(world) == 7, "nor is it deleted for that absence when all is there again"

    play()


@pytest.mark.parametrize("away_s", [0, 1_500])
@pytest.mark.parametrize("last", [{"deletionPolicy": "Retain"}, {"deletionPolicy": "Delete", "paused": True}])
def test_the_last_word_counts_though_the_brokers_had_not_heard_it(last: dict[str, Any], away_s: int) -> None:
    @in_a_world
    async def play(world: World) -> None:
        with_orders(world)
        world.apply("billing", deletionPolicy="Delete")
        await asyncio.sleep(5)
        if away_s:
            world.c.unreachable = BrokersError("no broker answers")
        world.apply("billing", **last)
        world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
        await asyncio.sleep(away_s)
        world.c.mend()
        await asyncio.sleep(600)
        assert committed(world) == 7
        assert OWNER not in world.c.group_settings.get("billing", {})

    play()


@in_a_world
async def test_a_group_that_cannot_be_deleted_yet_keeps_no_other_waiting(world: World) -> None:
    with_orders(world)
    world.c.add_group("audit", {AT: 3}, members=1)
    world.apply("audit", deletionPolicy="Delete")
    world.apply("billing", deletionPolicy="Delete")
    world.apply("another")
    await asyncio.sleep(5)
    await world.stop()
    for name in ("audit", "billing"):
        world.kube.remove(CONSUMER_GROUPS, "ns", name)
    await asyncio.sleep(3_600)
    await world.restart()
    await asyncio.sleep(300)
    assert world.c.groups_by_id.keys() == {"audit"}


@in_a_world
async def test_an_object_that_no_watch_has_told_of_yet_keeps_its_group(world: World) -> None:
    with_orders(world)
    world.apply("billing", deletionPolicy="Delete")
    world.apply("another")
    await asyncio.sleep(5)
    await world.stop()
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(3_600)
    await world.restart()
    await asyncio.sleep(30)
    world.kube.hold()
    world.apply("billing", deletionPolicy="Delete")
    await asyncio.sleep(600)
    assert committed(world) == 7


@in_a_world
async def test_an_api_server_that_does_not_say_whether_all_is_going_deletes_nothing(world: World) -> None:
    with_orders(world)
    world.apply("billing", deletionPolicy="Delete")
    await asyncio.sleep(5)
    world.kube.fail("dry_run", KubeError(503, "ServiceUnavailable", "later"), times=5)
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(1)
    assert committed(world) == 7
    await asyncio.sleep(120)
    assert "billing" not in world.c.groups_by_id, "it was only put off"


@pytest.mark.parametrize("what", ["cluster", "brokers"])
def test_a_group_whose_object_went_with_its_namespace_is_kept_though_nobody_could_be_asked_just_then(what: str) -> None:
    @in_a_world
    async def play(world: World) -> None:
        with_orders(world)
        world.apply("billing", deletionPolicy="Delete")
        await asyncio.sleep(5)
        world.c.unreachable = BrokersError("no broker can be reached")
        await asyncio.sleep(20)
        world.kube.terminating.add("ns")
        if what == "cluster":
            body = world.kube.remove(CLUSTERS, "ns", "c")
        world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
        await asyncio.sleep(5)
        world.kube.terminating.clear()
        if what == "cluster":
            metadata = {"name": "c", "namespace": "ns", "creationTimestamp": "2026-03-01T00:00:00Z"}
            world.kube.put(CLUSTERS, {"metadata": metadata, "spec": body["spec"]})
        world.c.mend()
        await asyncio.sleep(900)
        assert committed(world) == 7

    play()


@in_a_world
async def test_a_deletion_from_before_the_cluster_was_made_again_proves_no_more_than_a_list(world: World) -> None:
    with_orders(world)
    world.apply("billing", deletionPolicy="Delete")
    await asyncio.sleep(5)
    await world.stop()  # as in a standby replica
    for resource, name in ((CONSUMER_GROUPS, "billing"), (CLUSTERS, "c")):
        world.kube.remove(resource, "ns", name)
    made = datetime.fromtimestamp(LoopClock().wall_ms() / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    world.kube.put(CLUSTERS, {"metadata": {"name": "c", "namespace": "ns", "creationTimestamp": made}, "spec": {}})
    world.queue.put(ObjectKey("ConsumerGroup", "ns", "billing"))
    await world.start()
    await asyncio.sleep(300)
    assert committed(world) == 7


@in_a_world
async def test_where_only_the_definition_was_made_again_groups_wait_for_their_objects_to_come_back(
    world: World,
) -> None:
    with_orders(world)
    world.apply("billing", deletionPolicy="Delete")
    await asyncio.sleep(5)
    await world.stop()
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(3_600)
    await world.restart()
    await asyncio.sleep(600)
    assert committed(world) == 7
