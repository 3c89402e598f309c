"""Fewer partitions by a Topic: the confirmation, the progress in its status, operators that restart, the way back."""

from __future__ import annotations

from topics.topic_kit import NS, World

from penstock_operator.model.topic import DrainingReader, TopicSeal
from penstock_operator.ports.brokers import ObservedReader
from penstock_operator.ports.kube import TOPICS

READY = ("True", "Ready")
LONG_S = 30.0


async def decreasing(partitions: int = 5, to: int = 2) -> World:
    """Return a world with a topic whose partitions are being sealed."""
    world = World()
    world.apply("orders", partitions=partitions)
    await world.settle()
    world.apply("orders", partitions=to, decreasePartitionsTo=to)
    await world.settle()
    return world


def reasons(world: World) -> list[str]:
    return [reason for _, reason in world.recorded]


async def test_a_confirmed_decrease_is_followed_until_clients_no_longer_see_the_partitions() -> None:
    world = await decreasing()
    assert world.condition("orders", "Synced") == ("False", "Sealing")
    assert world.condition("orders", "Progressing") == ("True", "Sealing")
    assert world.condition("orders", "Ready") == ("True", "Sealing")
    world.brokers.waiting["orders"] = (ObservedReader("slow", 3, 30), ObservedReader("fast", 1, 2))
    world.brokers.seal("orders")
    await world.settle(LONG_S)
    status = world.topic("orders").status
    assert world.condition("orders", "Synced") == ("False", "Draining")
    assert status.partitions == 5
    assert status.decrease is not None
    assert (status.decrease.phase, status.decrease.remaining, status.decrease.sealed) == ("Draining", 2, 3)
    assert status.decrease.seals[0] == TopicSeal(partition=2, offset=10, target=0)
    assert status.decrease.waiting_groups[0] == DrainingReader(group="slow", partitions=3, lag=30)
    assert status.decrease.waiting_group_count == 2
    assert '"slow" (30 records), "fast" (2 records)' in world.message("orders")
    world.brokers.hide("orders")
    await world.settle(LONG_S)
    status = world.topic("orders").status
    assert status.decrease is not None
    assert (status.partitions, status.decrease.phase, status.decrease.waiting_groups) == (2, "Retired", ())
    assert world.condition("orders", "Synced") == ("True", "Synced")
    assert world.condition("orders", "Progressing")[0] == "False"
    assert world.brokers.calls["shrink_topics"] == 1
    assert reasons(world) == ["Created", "PartitionsDecreasing", "PartitionsDraining", "PartitionsRetired"]


async def test_groups_that_read_on_are_shown_without_an_event() -> None:
    world = await decreasing()
    world.brokers.waiting["orders"] = (ObservedReader("slow", 3, 30),)
    world.brokers.seal("orders")
    await world.settle(LONG_S)
    told = len(world.recorded)
    world.brokers.waiting["orders"] = (ObservedReader("slow", 1, 4),)
    await world.settle(LONG_S)
    decrease = world.topic("orders").status.decrease
    assert decrease is not None
    assert decrease.waiting_groups == (DrainingReader(group="slow", partitions=1, lag=4),)
    assert len(world.recorded) == told


async def test_an_operator_that_takes_over_continues_where_the_other_has_stopped() -> None:
    world = await decreasing()
    world.take_over()
    world.brokers.seal("orders")
    await world.settle(LONG_S)
    assert world.condition("orders", "Synced") == ("False", "Draining")
    world.take_over()
    world.brokers.hide("orders")
    await world.settle(LONG_S)
    assert world.condition("orders", "Ready") == READY
    assert world.brokers.calls["shrink_topics"] == 1
    assert reasons(world).count("PartitionsDraining") == reasons(world).count("PartitionsRetired") == 1


async def test_the_earlier_number_takes_a_decrease_back() -> None:
    world = await decreasing()
    world.brokers.seal("orders")
    await world.settle()
    world.apply("orders", partitions=5, decreasePartitionsTo=2)
    await world.settle()
    assert world.condition("orders", "Synced") == ("False", "Opening")
    assert reasons(world)[-1] == "PartitionsReopened"
    world.brokers.open("orders")
    await world.settle(LONG_S)
    assert world.condition("orders", "Synced") == ("True", "Synced")
    status = world.topic("orders").status
    assert (status.partitions, status.decrease) == (5, None)
    assert reasons(world)[-1] == "PartitionsOpened"


async def test_hidden_partitions_are_shown_again() -> None:
    world = await decreasing()
    world.brokers.seal("orders")
    world.brokers.hide("orders")
    await world.settle(LONG_S)
    world.apply("orders", partitions=4)
    await world.settle()
    assert world.topic("orders").status.partitions == 4
    assert world.condition("orders", "Synced") == ("False", "Opening")


async def test_a_decrease_that_another_client_made_is_reverted_if_the_number_is_managed() -> None:
    world = World()
    world.apply("orders", partitions=4)
    world.apply("unmanaged")
    await world.settle()
    await world.controller.health.check_clusters()
    for name in ("orders", "unmanaged"):
        await world.brokers.grow_topics({name: 6})
        await world.brokers.shrink_topics({name: 2})
    await world.controller.health.check_clusters()
    await world.settle()
    assert world.condition("orders", "Synced") == ("False", "Opening")
    assert world.condition("unmanaged", "Synced") == ("False", "Sealing")


async def test_the_poll_finds_that_partitions_were_sealed() -> None:
    world = await decreasing()
    await world.controller.health.check_clusters()
    world.queue.due.clear()
    world.brokers.seal("orders")
    await world.controller.health.check_clusters()
    await world.settle()
    assert world.condition("orders", "Synced") == ("False", "Draining")


async def test_what_the_brokers_refuse_is_told_with_their_reason() -> None:
    world = World()
    world.apply("orders", partitions=5, config={"cleanup.policy": "compact"})
    await world.settle()
    world.apply("orders", partitions=2, decreasePartitionsTo=2, config={"cleanup.policy": "compact"})
    await world.settle()
    assert world.condition("orders", "Synced") == ("False", "Refused")
    assert "is compacted" in world.message("orders")


async def test_groups_that_cannot_be_read_leave_the_last_known_ones_and_the_topic_goes_on() -> None:
    world = await decreasing()
    world.brokers.waiting["orders"] = (ObservedReader("slow", 3, 30),)
    world.brokers.seal("orders")
    await world.settle(LONG_S)
    world.brokers.fail_next("waiting_readers", times=100)
    world.time += 60
    world.apply("orders", partitions=2, decreasePartitionsTo=2, config={"retention.ms": "5"})
    await world.settle(LONG_S)
    decrease = world.topic("orders").status.decrease
    assert decrease is not None
    assert decrease.waiting_groups == (DrainingReader(group="slow", partitions=3, lag=30),)
    assert world.brokers.topics_by_name["orders"].settings["retention.ms"] == "5"
    world.brokers.mend()
    world.brokers.hide("orders")
    await world.settle(LONG_S)
    assert world.condition("orders", "Ready") == READY


async def test_many_draining_topics_share_one_query_of_groups() -> None:
    world = World()
    names = [f"t{number}" for number in range(20)]
    for name in names:
        world.apply(name, partitions=3)
    await world.settle()
    for name in names:
        world.apply(name, partitions=1, decreasePartitionsTo=1)
    await world.settle()
    for name in names:
        world.brokers.seal(name)
    await world.settle(LONG_S)
    assert all(world.condition(name, "Synced") == ("False", "Draining") for name in names)
    assert world.brokers.calls["waiting_readers"] <= 5
    world.time += 60
    queries = world.brokers.calls["waiting_readers"]
    for name in names:
        world.apply(name, partitions=1, decreasePartitionsTo=1, config={"retention.ms": "5"})
        await world.settle(0.1)
    assert world.brokers.calls["waiting_readers"] == queries + 1


async def test_a_topic_that_was_never_decreased_costs_no_query_of_groups() -> None:
    world = World()
    world.apply("orders", partitions=5)
    await world.settle()
    await world.resync()
    assert world.brokers.calls["waiting_readers"] == 0
    assert "decrease" not in world.kube.read(TOPICS, NS, "orders")["status"]
