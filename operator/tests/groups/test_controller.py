"""What users ask of a ConsumerGroup is done once, wherever the operator died; what they delete ends as they said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from world import World, in_a_world

from penstock_operator.ports.brokers import OWNER, RESET_ID, BrokersError
from penstock_operator.ports.kube import CONSUMER_GROUPS, KubeError

AT = ("orders", 0)
RESET = {"id": "one", "to": "earliest"}


def with_orders(world: World, committed: int = 7, members: int = 0) -> None:
    world.c.add_topic("orders", 1)
    log = world.c.log("orders")
    log.start, log.end = 2, 20
    log.times = {offset: 1_000 * offset for offset in range(2, 20)}
    world.c.add_group("billing", {AT: committed}, members=members)


def committed(world: World) -> int:
    return world.c.groups_by_id["billing"].offsets[AT]


@in_a_world
async def test_a_reset_is_planned_done_and_told(world: World) -> None:
    with_orders(world)
    world.apply("billing", reset=RESET)
    await asyncio.sleep(5)
    assert committed(world) == 2
    reset = world.status("billing")["reset"]
    assert (reset["phase"], reset["changes"]) == ("Done", ["orders-0: 7 → 2"])
    assert world.reasons() == ["ResetPlanned", "ResetDone"]
    assert world.c.group_settings["billing"][RESET_ID] == "one"


@in_a_world
async def test_a_reset_is_never_done_twice(world: World) -> None:
    """Applied again, deleted and applied again, restarted: the group's own record counts."""
    with_orders(world)
    world.apply("billing", reset=RESET)
    await asyncio.sleep(5)
    world.c.groups_by_id["billing"].offsets[AT] = 15
    world.apply("billing", reset=RESET)
    await asyncio.sleep(5)
    assert committed(world) == 15
    await world.restart()
    await asyncio.sleep(5)
    assert committed(world) == 15
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    world.apply("billing", reset=RESET)
    await asyncio.sleep(10)
    assert committed(world) == 15
    assert world.status("billing")["reset"]["phase"] == "Done"
    world.apply("billing", reset={"id": "two", "to": "latest"})
    await asyncio.sleep(5)
    assert committed(world) == 20


@in_a_world
async def test_a_reset_is_refused_while_the_group_has_members_and_done_when_they_left(world: World) -> None:
    with_orders(world, members=1)
    world.apply("billing", reset=RESET)
    await asyncio.sleep(30)
    assert committed(world) == 7
    assert world.status("billing")["reset"]["phase"] == "Refused"
    assert world.reasons() == ["ResetRefused"]
    world.c.groups_by_id["billing"].members = 0
    await asyncio.sleep(10)
    assert committed(world) == 2
    assert world.status("billing")["reset"]["phase"] == "Done"


@pytest.mark.parametrize("call", ["commit", "change_groups"])
def test_a_reset_that_broke_off_is_done_to_its_end(call: str) -> None:
    @in_a_world
    async def play(world: World) -> None:
        with_orders(world)
        world.c.fail_next(call, BrokersError("the broker went away"), times=2)
        world.apply("billing", reset=RESET)
        await asyncio.sleep(1)
        await world.restart()
        await asyncio.sleep(20)
        assert committed(world) == 2
        assert world.status("billing")["reset"]["phase"] == "Done"
        assert world.reasons().count("ResetDone") == 1

    play()


@pytest.mark.parametrize(
    ("reset", "offset"),
    [
        ({"to": "latest"}, 20),
        ({"to": "offset", "offset": 9}, 9),
        ({"to": "offset", "offset": 99}, 20),
        ({"to": "offset", "offset": 0}, 2),
        ({"to": "timestamp", "timestamp": "1970-01-01T00:00:11Z"}, 11),
        ({"to": "earliest", "topics": ["orders"], "partitions": [0]}, 2),
    ],
)
def test_each_target_sets_the_group_where_it_says(reset: dict[str, Any], offset: int) -> None:
    @in_a_world
    async def play(world: World) -> None:
        with_orders(world)
        world.apply("billing", reset={"id": "x", **reset})
        await asyncio.sleep(5)
        assert committed(world) == offset

    play()


@in_a_world
async def test_a_dry_run_shows_the_plan_and_does_nothing(world: World) -> None:
    with_orders(world)
    world.apply("billing", reset={**RESET, "dryRun": True})
    await asyncio.sleep(60)
    assert committed(world) == 7
    assert world.status("billing")["reset"]["changes"] == ["orders-0: 7 → 2"]
    world.apply("billing", reset=RESET)
    await asyncio.sleep(10)
    assert committed(world) == 2


@in_a_world
async def test_starting_offsets_are_set_once_for_a_group_that_has_none(world: World) -> None:
    with_orders(world)
    world.apply("fresh", startingOffsets={"topics": ["orders"], "at": "latest"})
    world.apply("billing", startingOffsets={"topics": ["orders"], "at": "latest"})
    await asyncio.sleep(10)
    assert world.c.groups_by_id["fresh"].offsets == {AT: 20}
    assert committed(world) == 7
    assert world.status("fresh")["state"] == "Empty"
    world.c.log("orders").end = 30
    await asyncio.sleep(60)
    assert world.c.groups_by_id["fresh"].offsets == {AT: 20}


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
    await asyncio.sleep(5)
    await world.stop()
    world.kube.remove(CONSUMER_GROUPS, "ns", "billing")
    await asyncio.sleep(3_600)
    await world.restart()
    await asyncio.sleep(90)
    assert "billing" in world.c.groups_by_id, "one list is not enough"
    assert world.names() == [], "nor is it discovered meanwhile"
    await asyncio.sleep(180)
    assert "billing" not in world.c.groups_by_id


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
        assert world.queue.failing("ConsumerGroup") == 0, "that is no failure, and is not tried for ever"
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
async def test_starting_offsets_wait_for_their_topics(world: World) -> None:
    world.c.add_topic("orders", 1)
    world.apply("fresh", startingOffsets={"topics": ["orders", "later"], "at": "latest"})
    await asyncio.sleep(10)
    assert "fresh" not in world.c.groups_by_id, "with offsets of one topic it would never get those of the other"
    assert "later" in world.status("fresh")["conditions"][0]["message"]
    world.c.add_topic("later", 1)
    world.c.log("later").end = 9
    await asyncio.sleep(30)
    assert world.c.groups_by_id["fresh"].offsets == {AT: 0, ("later", 0): 9}


@in_a_world
async def test_a_status_that_cannot_be_read_is_written_anew(world: World) -> None:
    """One of a newer operator, say: the group is still this object's, and gets no second one."""
    with_orders(world)
    world.apply("billing")
    await asyncio.sleep(5)
    body = world.shown("billing")
    assert body is not None
    body["status"]["reset"] = {"id": "x", "phase": "AwaitingApproval"}
    world.kube.put(CONSUMER_GROUPS, body)
    await asyncio.sleep(30)
    assert world.names() == ["billing"]
    assert "reset" not in world.status("billing")
    assert world.status("billing")["lag"] == 13


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


@in_a_world
async def test_brokers_that_are_away_make_it_unknown_and_nothing_hangs(world: World) -> None:
    with_orders(world)
    world.apply("billing")
    await asyncio.sleep(5)
    for call in ("groups", "group_ids"):
        world.c.fail_next(call, BrokersError("no broker of c answers"), times=30)
    world.apply("billing", paused=True)
    await asyncio.sleep(15)
    ready = world.status("billing")["conditions"][0]
    assert (ready["status"], ready["message"]) == ("Unknown", "no broker of c answers")
    assert world.status("billing")["lag"] == 13
    await asyncio.sleep(300)
    assert world.status("billing")["conditions"][0]["status"] == "True"


@in_a_world
async def test_two_objects_for_one_group_are_told_and_the_older_one_has_it(world: World) -> None:
    with_orders(world)
    world.apply("billing")
    world.apply("second", groupId="billing", reset=RESET)
    await asyncio.sleep(30)
    assert committed(world) == 7
    ready = world.status("second")["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("False", "Conflict")
    assert "billing" in ready["message"]


@in_a_world
async def test_paused_is_shown_and_not_touched(world: World) -> None:
    with_orders(world)
    world.apply("billing", paused=True, reset=RESET, deletionPolicy="Delete")
    await asyncio.sleep(30)
    assert committed(world) == 7
    assert world.c.calls["change_groups"] == 0
    assert world.status("billing")["lag"] == 13
