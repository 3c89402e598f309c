"""A Topic's life as its user sees it: applied, changed, deleted."""

from __future__ import annotations

import pytest
from doubles.brokers import InMemoryBrokers
from topics.topic_kit import NS, World

from penstock_operator.ports.brokers import DELETION_POLICY, OWNER
from penstock_operator.ports.kube import TOPICS, KubeError

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
    assert world.told == [("orders", "Created")]


async def test_partitions_that_were_left_out_are_the_brokers_default_and_no_number_is_made_up() -> None:
    # An operator of another system made -1 of an omitted number, and asked for that.
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
    assert world.told[1:] == [("orders", "SettingsChanged"), ("orders", "PartitionsAdded")]


async def test_fewer_partitions_are_refused_with_the_reason_and_the_rest_is_done() -> None:
    world = World()
    world.apply("orders", partitions=5)
    await world.settle()
    world.apply("orders", partitions=3, config={"retention.ms": "2"})
    await world.settle()
    assert world.condition("orders", "Synced") == ("False", "PartitionsCannotShrink")
    assert world.condition("orders", "Ready") == ("False", "PartitionsCannotShrink")
    assert "Ask for 5" in world.message("orders")
    assert world.brokers.topics_by_name["orders"].settings["retention.ms"] == "2"
    assert world.told.count(("orders", "PartitionsCannotShrink")) == 1
    await world.resync()
    await world.resync()
    assert world.told.count(("orders", "PartitionsCannotShrink")) == 1


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
    assert world.told[-1] == ("orders", "SettingsChanged")


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
    assert ("orders", "Recreated") in world.told


async def test_a_topic_that_somebody_made_anew_shows_its_new_identity() -> None:
    # Elsewhere a topic that was created again went on with the offsets of the old one, and nobody was told.
    world = World()
    world.apply("orders", config={"retention.ms": "7"})
    await world.settle()
    made = world.brokers.recreate("orders")
    await world.resync()
    assert world.topic("orders").status.topic_id == str(made.topic_id)
    assert world.brokers.topics_by_name["orders"].settings["retention.ms"] == "7"
    assert [reason for _, reason in world.told].count("IdentityChanged") == 1
    await world.resync()
    assert [reason for _, reason in world.told].count("IdentityChanged") == 1


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
    writes, told, changes = world.kube.writes, len(world.kube.told), changing(world.brokers)
    for _ in range(5):
        await world.controller.health.look()
        await world.resync()
    assert (world.kube.writes, len(world.kube.told), changing(world.brokers)) == (writes, told, changes)


def changing(brokers: InMemoryBrokers) -> int:
    names = ("create_topics", "grow_topics", "delete_topics", "change_topics", "reassign", "change_brokers")
    return sum(brokers.calls[name] for name in names)


# Deletion


async def test_a_deleted_object_leaves_its_topic_unless_it_says_otherwise() -> None:
    world = World()
    world.apply("orders")
    await world.settle()
    world.delete("orders")
    await world.settle()
    await world.resync()
    await world.resync()
    assert "orders" in world.brokers.topics_by_name


async def test_with_policy_delete_the_topic_goes_with_its_object() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    world.delete("orders")
    await world.settle()
    assert world.brokers.topics_by_name == {}
    assert world.told[-1] == ("orders", "Deleted")


@pytest.mark.parametrize(("stored", "last", "is_kept"), [("Retain", "Delete", False), ("Delete", "Retain", True)])
async def test_the_last_word_counts_though_the_brokers_had_not_heard_it(stored: str, last: str, is_kept: bool) -> None:
    world = World()
    world.apply("orders", deletionPolicy=stored)
    await world.settle()
    world.apply("orders", deletionPolicy=last)
    world.delete("orders")
    await world.settle()
    for _ in range(4):
        world.time += 700  # the deletion itself is forgotten
        await world.resync()
    assert ("orders" in world.brokers.topics_by_name) == is_kept


async def test_the_last_word_counts_however_long_the_brokers_were_away() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    for broker in (0, 1, 2):
        world.brokers.stop(broker)
    world.apply("orders", deletionPolicy="Retain")
    world.delete("orders")
    await world.settle()
    world.time += 3600  # the deletion itself is forgotten
    for broker in (0, 1, 2):
        world.brokers.restart(broker)
    for _ in range(4):
        await world.resync()
    assert world.brokers.topics_by_name["orders"].settings[DELETION_POLICY] == "Retain"


async def test_a_paused_object_waits_quietly_where_the_topic_of_its_deleted_namesake_has_to_go_first() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    world.delete("orders")
    world.apply("orders", deletionPolicy="Delete", paused=True)
    await world.settle()
    assert world.condition("orders", "Synced") == ("False", "Paused")
    asked = world.brokers.calls["topics"]
    await world.settle(60)
    assert world.brokers.calls["topics"] == asked
    assert "orders" in world.brokers.topics_by_name


async def test_an_object_deleted_and_made_again_gets_a_topic_of_another_identity() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    before = world.topic("orders").status.topic_id
    world.delete("orders")
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    assert world.condition("orders", "Ready") == READY
    assert world.topic("orders").status.topic_id not in (None, before)


async def test_an_object_restored_from_a_backup_takes_its_topic_over() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    before = world.topic("orders").status.topic_id
    world.vanish("orders")
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    await world.resync()
    await world.resync()
    assert world.topic("orders").status.topic_id == before
    assert world.told[-1] == ("orders", "Adopted")


async def away(world: World, *names: str) -> None:
    """Objects go while no operator runs; another one starts."""
    for name in names:
        world.vanish(name)
    world.time += 3600
    world.queue.due.clear()
    world.started()


async def test_a_topic_whose_object_went_while_nobody_looked_goes_after_two_lists() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    world.apply("kept")
    await world.settle()
    await away(world, "orders", "kept")
    await world.resync()
    assert "orders" in world.brokers.topics_by_name
    await world.resync()
    assert world.brokers.topics_by_name.keys() == {"kept"}
    assert world.told[-1] == ("c", "Deleted")


async def test_an_object_that_no_watch_has_told_of_yet_keeps_its_topic() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    before = world.topic("orders").status.topic_id
    await away(world, "orders")
    await world.resync()
    world.kube.hold()
    world.apply("orders", deletionPolicy="Delete")  # restored from a backup
    for _ in range(3):
        await world.resync()
    world.kube.release()
    await world.settle()
    assert world.topic("orders").status.topic_id == before


async def test_a_list_that_failed_is_no_list() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    await away(world, "orders")
    await world.resync()
    for _ in range(3):
        world.kube.fail("list", KubeError(500, "InternalError", "etcd is away"))
        await world.resync()
    assert "orders" in world.brokers.topics_by_name


async def test_an_object_that_only_the_watch_had_lost_keeps_its_topic() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    world.kube.objects.complete(TOPICS, None, set(), "1000000")
    assert world.kube.objects.get(TOPICS, NS, "orders") is None
    world.time += 3600
    for _ in range(4):
        await world.resync()
    assert "orders" in world.brokers.topics_by_name


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize(
    "what", ["namespace terminating", "namespace gone", "definition terminating", "definition gone"]
)
async def test_nothing_is_deleted_with_the_namespace_or_the_resource_definition(what: str, is_heard: bool) -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    if what == "namespace terminating":
        world.kube.terminating.add(NS)
    elif what == "namespace gone":
        world.kube.missing_namespaces.add(NS)
    elif what == "definition terminating":
        world.kube.crds_terminating.add(TOPICS)
    else:
        world.kube.crds_gone.add(TOPICS)
    if is_heard:
        world.delete("orders")
        await world.settle()
    else:
        await away(world, "orders")
    for _ in range(4):
        await world.resync()
    assert "orders" in world.brokers.topics_by_name
    if is_heard:  # and never for that absence afterwards
        assert world.brokers.topics_by_name["orders"].settings[DELETION_POLICY] == "Retain"
        world.kube.terminating.clear()
        world.kube.missing_namespaces.clear()
        world.kube.crds_terminating.clear()
        world.kube.crds_gone.clear()
        world.time += 3600
        for _ in range(4):
            await world.resync()
        assert "orders" in world.brokers.topics_by_name


async def test_without_the_right_to_try_nothing_is_deleted_and_it_is_tried_again() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    world.kube.fail("dry_run", KubeError(403, "Forbidden", "topics.penstock.io is forbidden: cannot create"))
    world.delete("orders")
    await world.settle(0.5)
    assert "orders" in world.brokers.topics_by_name
    assert "cannot tell" in world.errors[0]
    await world.settle()
    assert world.brokers.topics_by_name == {}


async def test_deletion_is_not_stuck_when_brokers_are_gone_and_is_done_when_they_are_back() -> None:
    # Finalizers made objects of other operators stay for ever when their system was gone.
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    for broker in (0, 1, 2):
        world.brokers.stop(broker)
    world.delete("orders")
    assert world.kube.read(TOPICS, NS, "orders") is None
    await world.settle()
    for broker in (0, 1, 2):
        world.brokers.restart(broker)
    await world.settle(30)
    assert world.brokers.topics_by_name == {}


async def test_a_deletion_that_the_brokers_put_off_is_tried_again() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    world.brokers.fail_for("delete_topics", "orders", times=2)
    world.delete("orders")
    await world.settle(10)
    assert world.brokers.topics_by_name == {}
    assert world.brokers.calls["delete_topics"] == 3
    assert len(world.errors) == 2
