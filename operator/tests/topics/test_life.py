"""Applying and changing a Topic, from the user's view."""

from __future__ import annotations

from doubles.brokers import InMemoryBrokers
from topics.topic_kit import NS, World

from penstock_operator.ports.brokers import DELETION_POLICY, OWNER
from penstock_operator.ports.kube import TOPICS

READY = ("True", "Ready")


async def test_an_applied_topic_is_created_and_becomes_ready_with_one_status_write() -> None:
    world = World()
    body = world.apply("orders", partitions=6, replicas=2, config={"retention.ms": "1000"})
    await world.settle()
    there = world.brokers.topics_by_name["orders"]
    assert len(there.partitions) == 6
    assert there.settings == {
        "retention.ms": "1000",
        OWNER: body["metadata"]["uid"],
        DELETION_POLICY: "Retain",
    }
    status = world.topic("orders").status
    assert (status.partitions, status.replicas, status.in_sync, status.offline) == (6, 2, 6, 0)
    assert status.topic_id == str(there.topic_id)
    assert {kind: world.condition("orders", kind)[0] for kind in ("Ready", "Synced", "Healthy", "Progressing")} == {
        "Ready": "True",
        "Synced": "True",
        "Healthy": "True",
        "Progressing": "False",
    }
    assert world.kube.calls["patch_status"] == 1
    assert world.recorded == [("orders", "Created")]


async def test_partitions_that_were_left_out_are_the_brokers_default_and_no_number_is_made_up() -> None:
    # An operator for another system replaced an omitted number by -1, and requested that.
    world = World(InMemoryBrokers(range(3), default_partitions=4, default_replicas=2))
    world.apply("orders")
    await world.settle()
    status = world.topic("orders").status
    assert (status.partitions, status.replicas) == (4, 2)
    assert "partitions" not in world.kube.read(TOPICS, NS, "orders")["spec"]
    world.apply("orders", config={"retention.ms": "1"})
    await world.settle()
    assert world.condition("orders", "Ready") == READY
    assert len(world.brokers.topics_by_name["orders"].partitions) == 4
    assert world.brokers.calls["grow_topics"] == 0


async def test_more_partitions_and_other_settings_are_made_so_and_told() -> None:
    world = World()
    world.apply("orders", partitions=2, config={"retention.ms": "1", "segment.ms": "5"})
    await world.settle()
    world.apply("orders", partitions=5, config={"retention.ms": "2"})
    await world.settle()
    there = world.brokers.topics_by_name["orders"]
    assert len(there.partitions) == 5
    assert there.settings["retention.ms"] == "2"
    assert "segment.ms" not in there.settings
    assert world.condition("orders", "Ready") == READY
    assert world.recorded[1:] == [("orders", "SettingsChanged"), ("orders", "PartitionsAdded")]


async def test_fewer_partitions_are_refused_with_the_reason_and_the_rest_is_done() -> None:
    world = World()
    world.apply("orders", partitions=5)
    await world.settle()
    world.apply("orders", partitions=3, config={"retention.ms": "2"})
    await world.settle()
    assert world.condition("orders", "Synced") == ("False", "DecreaseNotConfirmed")
    assert world.condition("orders", "Ready") == ("False", "DecreaseNotConfirmed")
    assert "Otherwise set partitions to 5" in world.message("orders")
    assert world.brokers.topics_by_name["orders"].settings["retention.ms"] == "2"
    assert world.recorded.count(("orders", "DecreaseNotConfirmed")) == 1
    await world.resync()
    await world.resync()
    assert world.recorded.count(("orders", "DecreaseNotConfirmed")) == 1
    assert world.brokers.calls["shrink_topics"] == 0


async def test_a_setting_that_somebody_changed_is_repaired() -> None:
    world = World()
    world.apply("orders", config={"retention.ms": "1"})
    await world.settle()
    world.brokers.topics_by_name["orders"].settings["retention.ms"] = "99"  # type: ignore[index]
    world.brokers.topics_by_name["orders"].settings["segment.ms"] = "99"  # type: ignore[index]
    await world.resync()
    settings = world.brokers.topics_by_name["orders"].settings
    assert settings["retention.ms"] == "1"
    assert "segment.ms" not in settings
    assert world.recorded[-1] == ("orders", "SettingsChanged")


async def test_more_replicas_are_copied_with_progress_and_ready_when_they_are_there() -> None:
    world = World(InMemoryBrokers(range(4)))
    world.apply("orders", partitions=4, replicas=1)
    await world.settle()
    world.apply("orders", partitions=4, replicas=3)
    await world.settle()
    assert world.condition("orders", "Progressing") == ("True", "Moving")
    assert world.condition("orders", "Ready") == ("False", "ReplicasMoving")
    assert world.topic("orders").status.replicas == 1
    assert world.topic("orders").status.moving == 4
    world.brokers.progress(2)
    await world.settle()
    assert world.topic("orders").status.moving == 2
    world.brokers.progress()
    await world.settle()
    assert world.condition("orders", "Ready") == READY
    assert world.topic("orders").status.replicas == 3
    assert world.brokers.calls["reassign"] == 1


async def test_a_topic_that_somebody_deleted_is_created_again_and_told() -> None:
    world = World()
    world.apply("orders")
    await world.settle()
    before = world.topic("orders").status.topic_id
    del world.brokers.topics_by_name["orders"]
    await world.resync()
    assert world.condition("orders", "Ready") == READY
    assert world.topic("orders").status.topic_id not in (None, before)
    assert ("orders", "Recreated") in world.recorded


async def test_a_topic_that_somebody_made_anew_shows_its_new_identity() -> None:
    # In other systems a topic that was created again silently continued with the offsets of the old one.
    world = World()
    world.apply("orders", config={"retention.ms": "7"})
    await world.settle()
    made = world.brokers.recreate("orders")
    await world.resync()
    assert world.topic("orders").status.topic_id == str(made.topic_id)
    assert world.brokers.topics_by_name["orders"].settings["retention.ms"] == "7"
    assert [reason for _, reason in world.recorded].count("IdentityChanged") == 1
    await world.resync()
    assert [reason for _, reason in world.recorded].count("IdentityChanged") == 1


async def test_a_paused_topic_is_left_alone_and_its_status_stays_true() -> None:
    world = World()
    world.apply("orders", partitions=1)
    await world.settle()
    world.apply("orders", partitions=3, paused=True)
    await world.settle()
    assert len(world.brokers.topics_by_name["orders"].partitions) == 1
    assert world.condition("orders", "Synced") == ("False", "Paused")
    world.brokers.stop(world.brokers.topics_by_name["orders"].partitions[0].replicas[0])
    await world.resync()
    assert world.topic("orders").status.under_replicated == 1
    world.brokers.restart(0)
    world.brokers.restart(1)
    world.brokers.restart(2)
    world.apply("orders", partitions=3, paused=False)
    await world.settle()
    assert len(world.brokers.topics_by_name["orders"].partitions) == 3


async def test_steady_state_writes_nothing_and_tells_nothing() -> None:
    world = World()
    for number in range(20):
        world.apply(f"t{number}", partitions=2, config={"cleanup.policy": "compact, delete"})
    await world.settle()
    writes, told, changes = world.kube.writes, len(world.kube.recorded), changing(world.brokers)
    for _ in range(5):
        await world.controller.health.check_clusters()
        await world.resync()
    assert (world.kube.writes, len(world.kube.recorded), changing(world.brokers)) == (writes, told, changes)


def changing(brokers: InMemoryBrokers) -> int:
    names = ("create_topics", "grow_topics", "delete_topics", "change_topics", "reassign", "change_brokers")
    return sum(brokers.calls[name] for name in names)
