"""Takeover by a standby: no operator has checked DELETED events that arrived before it became leader."""

from __future__ import annotations

from topics.topic_kit import World

from penstock_operator.ports.kube import TOPICS


async def a_topic_that_goes(**spec: str) -> World:
    """Delete the topic's object; the acting operator dies before it reconciles."""
    world = World()
    world.apply("another")
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    if spec:
        world.brokers.down.update((0, 1, 2))
        world.apply("orders", **spec)
        await world.settle()
        world.brokers.down.clear()
    world.delete("orders")
    world.queue.due.clear()
    return world


async def test_topics_keep_their_records_whose_definition_went_and_came_back_while_nobody_acted() -> None:
    world = await a_topic_that_goes()
    before = str(world.brokers.topics_by_name["orders"].topic_id)
    world.apply("orders", deletionPolicy="Delete")
    world.take_over()
    await world.settle()
    assert world.topic("orders").status.topic_id == before
    for _ in range(4):
        await world.resync()
    assert world.topic("orders").status.topic_id == before


async def test_a_topic_whose_object_is_not_back_goes_by_two_lists() -> None:
    world = await a_topic_that_goes()
    world.take_over()
    await world.settle()
    await world.resync()
    assert "orders" in world.brokers.topics_by_name
    await world.resync()
    assert world.brokers.topics_by_name.keys() == {"another"}


async def test_the_last_word_that_a_topic_stays_counts_whoever_heard_it() -> None:
    world = await a_topic_that_goes(deletionPolicy="Retain")
    world.take_over()
    await world.settle()
    for _ in range(4):
        await world.resync()
    assert "orders" in world.brokers.topics_by_name


async def test_what_is_deleted_from_then_on_goes_at_once() -> None:
    world = await a_topic_that_goes()
    world.take_over()
    world.apply("bills", deletionPolicy="Delete")
    await world.settle()
    body = world.delete("bills")
    await world.settle()
    assert world.kube.objects.has_same_cluster(TOPICS, body["metadata"]["uid"])
    assert "bills" not in world.brokers.topics_by_name
