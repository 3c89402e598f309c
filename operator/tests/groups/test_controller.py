"""A ConsumerGroup's changes apply exactly once, whenever the operator is killed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from doubles.broker_failures import refused
from world import AT, World, committed, in_a_world, with_orders

from penstock_operator.groups.controller import REJECTED_RETRY_S
from penstock_operator.ports.brokers import HIBERNATED, RESET_ID, BrokersError
from penstock_operator.ports.kube import CONSUMER_GROUPS

RESET = {"id": "one", "to": "earliest"}


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
    """The group's stored record prevents a repetition when the object is reapplied or deleted, or the operator
    restarts."""
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


async def breaks_off(world: World, **spec: Any) -> None:
    """Reset to the end, and stop the operator after it committed the offsets and before it recorded the reset."""
    with_orders(world)
    world.c.fail_next("change_groups", BrokersError("the operator was killed here"), times=1_000)
    world.apply("billing", reset={"id": "one", "to": "latest"}, **spec)
    while committed(world) != 20:
        await asyncio.sleep(0.1)
    await world.stop()
    world.c.mend()


def read(world: World, offset: int, members: int) -> None:
    """Set the position of consumers and their number."""
    world.c.log("orders").end = 120
    group = world.c.groups_by_id["billing"]
    group.offsets[AT], group.members, group.state = offset, members, "Stable" if members else "Empty"


@pytest.mark.parametrize("members", [0, 1])
@pytest.mark.parametrize("while_paused", [False, True])
def test_a_reset_that_broke_off_after_its_commit_is_not_done_again(members: int, while_paused: bool) -> None:
    @in_a_world
    async def play(world: World) -> None:
        await breaks_off(world)
        read(world, 20, members)
        if while_paused:
            world.apply("billing", reset={"id": "one", "to": "latest"}, paused=True)
            await world.restart()
            await asyncio.sleep(30)
            assert "billing" not in world.c.group_settings
            await world.stop()
            world.apply("billing", reset={"id": "one", "to": "latest"}, paused=False)
        await world.restart()
        await asyncio.sleep(30)
        assert (committed(world), world.c.group_settings["billing"][RESET_ID]) == (20, "one")
        assert world.status("billing")["reset"]["phase"] == "Done"
        assert world.status("billing")["reset"]["changes"] == ["orders-0: 7 → 20"]
        assert world.reasons().count("ResetDone") == 1
        read(world, 30, 0)
        await asyncio.sleep(30)
        assert committed(world) == 30, "90 records would be skipped"

    play()


@pytest.mark.parametrize("members", [0, 1])
@pytest.mark.parametrize("while_paused", [False, True])
def test_a_reset_that_broke_off_and_after_which_somebody_has_read_is_given_up(members: int, while_paused: bool) -> None:
    @in_a_world
    async def play(world: World) -> None:
        await breaks_off(world)
        read(world, 30, members)
        if while_paused:
            world.apply("billing", reset={"id": "one", "to": "latest"}, paused=True)
            await world.restart()
            await asyncio.sleep(30)
            await world.stop()
            world.apply("billing", reset={"id": "one", "to": "latest"}, paused=False)
        await world.restart()
        await asyncio.sleep(30)
        read(world, 30, 0)
        await asyncio.sleep(30)
        assert committed(world) == 30, "90 records would be skipped"
        reset = world.status("billing")["reset"]
        assert reset["phase"] == "Failed"
        assert "a consumer has committed since" in reset["message"]
        assert "another reset id" in reset["message"]
        world.apply("billing", reset={"id": "two", "to": "latest"})
        await asyncio.sleep(10)
        assert committed(world) == 120

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


@pytest.mark.parametrize("what", ["its topic comes", "its group comes", "another object does it"])
def test_a_reset_that_failed_is_not_done_later_unless_it_gets_another_id(what: str) -> None:
    @in_a_world
    async def play(world: World) -> None:
        reset: dict[str, Any] = RESET if what == "its group comes" else {**RESET, "topics": ["orders"]}
        if what != "its group comes":
            world.c.add_group("billing", {("bills", 0): 0})
        world.apply("billing", reset=reset)
        await asyncio.sleep(30)
        assert world.status("billing")["reset"]["phase"] == "Failed"
        assert "another reset id" in world.status("billing")["reset"]["message"]
        with_orders(world)
        if what == "another object does it":
            world.c.group_settings["billing"] = {RESET_ID: "one"}
        asked = world.c.calls["topics"]
        await asyncio.sleep(120)
        await world.restart()
        await asyncio.sleep(60)
        assert committed(world) == 7
        assert world.status("billing")["reset"]["phase"] == "Failed"
        assert world.reasons() == ["ResetFailed"]
        assert world.c.calls["topics"] == asked
        world.apply("billing", reset={**reset, "id": "two"})
        await asyncio.sleep(10)
        assert committed(world) == 2
        assert world.status("billing")["reset"]["phase"] == "Done"

    play()


@pytest.mark.parametrize("only_shown", [{"paused": True}, {"dry_run": True}])
def test_a_plan_that_is_only_looked_at_may_fail_and_become_another(only_shown: dict[str, Any]) -> None:
    @in_a_world
    async def play(world: World) -> None:
        reset = {**RESET, "topics": ["orders"], "dryRun": "dry_run" in only_shown}
        world.c.add_group("billing", {("bills", 0): 0})
        world.apply("billing", reset=reset, paused="paused" in only_shown)
        await asyncio.sleep(10)
        assert world.status("billing")["reset"]["phase"] == "Failed"
        with_orders(world)
        await asyncio.sleep(30)
        assert world.status("billing")["reset"]["phase"] == "Planned"
        world.apply("billing", reset={**reset, "dryRun": False}, paused=False)
        await asyncio.sleep(10)
        assert committed(world) == 2

    play()


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
    """For example after a downgrade: the group still belongs to this object, and gets no second one."""
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


@pytest.mark.parametrize(
    ("spec", "field"),
    [({"paused": "perhaps"}, "spec.paused"), ({"reset": {"id": "a", "to": "timestamp"}}, "spec.reset.timestamp")],
)
def test_an_object_that_cannot_be_read_says_which_field_is_wrong(spec: dict[str, Any], field: str) -> None:
    @in_a_world
    async def play(world: World) -> None:
        with_orders(world)
        world.apply("billing")
        await asyncio.sleep(5)
        body = world.apply("billing", **spec)
        await asyncio.sleep(60)
        status = world.status("billing")
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
        assert field in ready["message"]
        assert status["observedGeneration"] == ready["observedGeneration"] == body["metadata"]["generation"] == 2
        assert status["lag"] == 13, "as it was seen last"
        assert world.reasons().count("Invalid") == 1
        assert world.queue.failing("ConsumerGroup") == 0
        world.apply("billing")
        await asyncio.sleep(10)
        assert world.status("billing")["conditions"][0]["status"] == "True"

    play()


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
async def test_groups_of_a_hibernated_cluster_say_so_until_it_wakes(world: World) -> None:
    with_orders(world)
    world.apply("billing")
    await asyncio.sleep(5)
    world.c.unreachable = BrokersError('Cluster "c" is hibernated', code=HIBERNATED)
    await asyncio.sleep(30)
    ready = world.status("billing")["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("Unknown", "ClusterHibernated")
    assert world.status("billing")["lag"] == 13
    writes, calls = world.kube.writes, world.c.calls["groups"]
    await asyncio.sleep(600)
    assert (world.kube.writes, world.c.calls["groups"]) == (writes, calls), "the Cluster queues it when it wakes"
    world.c.mend()
    await asyncio.sleep(10)
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


@in_a_world
async def test_settings_of_a_group_follow_the_object(world: World) -> None:
    world.apply(
        "workers", type="share", config={"share.auto.offset.reset": "earliest", "share.delivery.count.limit": 3}
    )
    await asyncio.sleep(1)
    assert world.c.group_settings["workers"] == {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "3",
    }
    world.apply("workers", type="share", config={"share.delivery.count.limit": 4})
    await asyncio.sleep(1)
    assert world.c.group_settings["workers"] == {"share.delivery.count.limit": "4"}
    assert world.status("workers")["configured"] == ["share.delivery.count.limit"]
    world.c.add_group("workers")
    await asyncio.sleep(30)
    assert world.names() == ["workers"], "a number among the settings does not hide the object from discovery"


@in_a_world
async def test_a_setting_that_the_brokers_reject_is_named_in_the_condition_until_they_accept_it(world: World) -> None:
    why = refused("INVALID_CONFIG", "share.delivery.count.limit must be at most 10")
    world.c.fail_for("change_groups", "workers", why)
    world.apply("workers", config={"share.delivery.count.limit": 11})
    await asyncio.sleep(1)
    ready = world.status("workers")["conditions"][0]
    assert (ready["reason"], ready["message"]) == ("Rejected", str(why))
    world.c.mend()
    await asyncio.sleep(REJECTED_RETRY_S + 10)
    assert world.status("workers")["conditions"][0]["reason"] == "Absent"
    assert world.status("workers")["configured"] == ["share.delivery.count.limit"]


@in_a_world
async def test_a_share_group_is_discovered_and_its_start_offsets_are_reset(world: World) -> None:
    with_orders(world)
    world.c.groups_by_id["billing"].group_type = "share"
    await asyncio.sleep(10)
    assert (world.status("billing")["type"], world.status("billing")["lag"]) == ("share", 13)
    world.apply("billing", reset=RESET)
    await asyncio.sleep(10)
    assert committed(world) == 2
    assert world.status("billing")["reset"]["phase"] == "Done"
