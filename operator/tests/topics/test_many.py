"""Many topics: the number of requests and writes, without timing."""

from __future__ import annotations

import pytest
from topics.topic_kit import NS, World

from penstock_operator.ports.brokers import BrokersError
from penstock_operator.ports.kube import TOPICS, KubeError

READY = ("True", "Ready")


@pytest.mark.slow
async def test_a_thousand_topics_take_a_few_requests_and_one_write_each() -> None:
    # A queue of another operator failed beyond 1,024 keys; these keys arrive at once.
    world = World()
    count = 1500
    for number in range(count):
        world.apply(f"t{number}", partitions=2, config={"retention.ms": "1"})
    await world.settle()
    assert all(world.condition(f"t{n}", "Ready") == READY for n in range(count))
    assert world.kube.calls["patch_status"] == count
    assert world.brokers.calls["create_topics"] == 3
    assert world.brokers.items["create_topics"] == count
    assert world.brokers.calls["describe_cluster"] <= 4
    assert world.brokers.calls["topics"] <= 10
    assert world.brokers.calls["change_topics"] == 0


@pytest.mark.slow
async def test_an_operator_that_starts_writes_nothing_for_topics_that_are_as_they_should_be() -> None:
    world = World()
    count = 2500
    for number in range(count):
        world.apply(f"t{number}", deletionPolicy="Delete")
    await world.settle()
    world.brokers.calls.clear()
    world.kube.calls.clear()
    world.started()
    await world.resync()
    for number in range(count):
        world.queue.put(world.key(f"t{number}"))
    await world.resync()
    assert world.kube.writes == 0
    assert world.kube.calls["record_events"] == world.kube.calls["dry_run"] == world.kube.calls["list"] == 0
    assert not world.brokers.calls.keys() - {"describe_cluster", "topics"}
    assert world.brokers.calls["topics"] <= 20


@pytest.mark.slow
async def test_a_resync_looks_at_all_in_turns() -> None:
    world = World()
    for number in range(4100):
        world.apply(f"t{number}")
    await world.settle()
    for topic in world.brokers.topics_by_name.values():
        topic.settings["segment.ms"] = "9"  # type: ignore[index]
    for _ in range(3):
        await world.resync()
    assert not any("segment.ms" in topic.settings for topic in world.brokers.topics_by_name.values())


@pytest.mark.slow
async def test_many_failures_are_each_their_own() -> None:
    world = World()
    for number in range(100):
        world.apply(f"t{number}")
        if number % 3 == 0:
            world.brokers.fail_for("create_topics", f"t{number}", times=2)
    world.kube.fail("patch_status", KubeError(503, "Unavailable", "busy"), times=20, resource=TOPICS)
    await world.settle(20)
    assert all(world.condition(f"t{n}", "Ready") == READY for n in range(100))
    assert len(world.brokers.topics_by_name) == 100


@pytest.mark.slow
async def test_brokers_that_answer_none_cost_one_request_and_not_one_for_each_batch() -> None:
    world = World()
    world.brokers.unreachable = BrokersError("connection refused", code="NoBrokerAvailable")
    for number in range(1600):
        world.apply(f"t{number}")
    await world.settle(0)
    assert world.brokers.calls["describe_cluster"] == 1
    assert world.kube.read(TOPICS, NS, "t1599")["status"]["conditions"][0]["reason"] == "Unreachable"
