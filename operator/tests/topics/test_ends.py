"""Topics whose Topic object is deleted: the policy applies, given evidence of a user's request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from topics.topic_kit import CLUSTER, EPOCH_S, NS, World, manifest

from penstock_operator.ports.brokers import DELETION_POLICY
from penstock_operator.ports.kube import CLUSTERS, TOPICS, KubeError

READY = ("True", "Ready")


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
    assert world.recorded[-1] == ("orders", "Deleted")


@pytest.mark.parametrize("is_seen", [True, False])
async def test_the_topic_of_an_object_that_was_paused_stays(is_seen: bool) -> None:
    world = World()
    world.apply("orders", partitions=1, deletionPolicy="Delete")
    await world.settle()
    world.apply("orders", partitions=2, deletionPolicy="Delete", paused=True)
    await world.settle()
    assert world.condition("orders", "Synced") == ("False", "Paused"), world.message("orders", "Synced")
    assert "deletion" not in world.message("orders", "Synced")
    if is_seen:
        world.delete("orders")
        await world.settle()
    else:
        await away(world, "orders")
    for _ in range(4):
        await world.resync()
    assert len(world.brokers.topics_by_name["orders"].partitions) == 1


async def test_the_topic_of_an_object_stays_though_nobody_saw_that_it_was_paused() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    world.apply("orders", deletionPolicy="Delete", paused=True)
    world.delete("orders")
    await world.settle()
    assert "orders" in world.brokers.topics_by_name


async def test_that_a_paused_topic_is_to_stay_and_cannot_be_noted_is_no_difference() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    world.brokers.fail_for("change_topics", "orders")
    world.apply("orders", deletionPolicy="Delete", paused=True)
    await world.settle(10)
    assert world.condition("orders", "Synced") == ("True", "Synced")
    assert world.errors, "and it is tried again"


async def test_an_object_that_is_not_paused_any_more_takes_its_topic_with_it() -> None:
    world = World()
    for paused in (False, True, False):
        world.apply("orders", deletionPolicy="Delete", paused=paused)
        await world.settle()
        policy = world.brokers.topics_by_name["orders"].settings[DELETION_POLICY]
        assert policy == ("Retain" if paused else "Delete")
        assert world.condition("orders", "Ready") == READY
    assert [reason for _, reason in world.recorded] == ["Created"], "a note is no news"
    world.delete("orders")
    await world.settle()
    assert world.brokers.topics_by_name == {}


@pytest.mark.parametrize(("stored", "last", "is_kept"), [("Retain", "Delete", False), ("Delete", "Retain", True)])
async def test_the_last_word_counts_though_the_brokers_had_not_heard_it(stored: str, last: str, is_kept: bool) -> None:
    world = World()
    world.apply("orders", deletionPolicy=stored)
    await world.settle()
    world.apply("orders", deletionPolicy=last)
    world.delete("orders")
    await world.settle()
    for _ in range(4):
        world.time += 700  # after the cache has expired the deletion
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
    world.time += 3600  # after the cache has expired the deletion
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
    assert world.recorded[-1] == ("orders", "Adopted")


async def away(world: World, *names: str) -> None:
    """Delete objects while no operator runs, then start another operator."""
    for name in names:
        world.vanish(name)
    world.time += 3600
    world.queue.due.clear()
    world.started()


async def test_a_topic_whose_object_went_while_nobody_looked_goes_after_two_lists() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    world.apply("kept")
    world.apply("another")
    await world.settle()
    await away(world, "orders", "kept")
    await world.resync()
    assert "orders" in world.brokers.topics_by_name
    await world.resync()
    assert world.brokers.topics_by_name.keys() == {"another", "kept"}
    assert world.recorded[-1] == ("c", "Deleted")


def made_again(world: World) -> None:
    """Create the Cluster again, as after the deletion of the definitions with all objects."""
    world.kube.put(CLUSTERS, cluster_made_at(world.time))


def cluster_made_at(time: float) -> dict[str, Any]:
    stamp = datetime.fromtimestamp(EPOCH_S + time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": {"name": CLUSTER, "namespace": NS, "creationTimestamp": stamp}, "spec": {}}


async def test_topics_of_a_cluster_that_was_made_again_wait_for_their_objects_to_come_back() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    world.apply("another")
    await world.settle()
    before = world.topic("orders").status.topic_id
    await away(world, "orders")
    made_again(world)
    for _ in range(8):
        await world.resync()
    assert "orders" in world.brokers.topics_by_name
    world.apply("orders", deletionPolicy="Delete")
    for _ in range(6):
        await world.resync()
    assert world.topic("orders").status.topic_id == before
    assert world.condition("orders", "Ready") == READY


async def test_topics_whose_objects_do_not_come_back_go_ten_minutes_after_the_cluster_was_made_again() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    world.apply("another")
    await world.settle()
    await away(world, "orders")
    made_again(world)
    for _ in range(11):
        await world.resync()
    assert "orders" in world.brokers.topics_by_name, "the first list that counts is the eleventh"
    await world.resync()
    assert world.brokers.topics_by_name.keys() == {"another"}


async def test_where_only_the_definition_of_topics_was_made_again_all_wait_for_their_objects_to_come_back() -> None:
    world = World()
    for name in ("orders", "bills", "late"):
        world.apply(name, deletionPolicy="Delete")
    await world.settle()
    before = world.topic("orders").status.topic_id
    await away(world, "orders", "bills", "late")
    for _ in range(8):
        await world.resync()
    stamp = cluster_made_at(world.time)["metadata"]["creationTimestamp"]
    restored = manifest("orders", deletionPolicy="Delete")
    restored["metadata"]["creationTimestamp"] = stamp
    world.kube.put(TOPICS, restored)
    for _ in range(8):
        await world.resync()
    assert world.brokers.topics_by_name.keys() == {"orders", "bills", "late"}
    world.apply("bills", deletionPolicy="Delete")
    for _ in range(4):
        await world.resync()
    assert world.brokers.topics_by_name.keys() == {"orders", "bills"}
    assert world.topic("orders").status.topic_id == before


@pytest.mark.parametrize("what", ["gone", "going", "made again"])
async def test_nothing_is_deleted_by_lists_where_the_api_server_has_no_such_cluster_any_more(what: str) -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    world.apply("another")
    await world.settle()
    await away(world, "orders")
    await world.resync()
    world.kube.hold()  # no watch has reported it yet
    if what == "gone":
        world.kube.remove(CLUSTERS, NS, CLUSTER)
    elif what == "going":
        world.kube.put(CLUSTERS, {"metadata": {"name": CLUSTER, "namespace": NS, "deletionTimestamp": "now"}})
    else:
        made_again(world)
    for _ in range(3):
        await world.resync()
    assert "orders" in world.brokers.topics_by_name


async def test_lists_of_before_do_not_count_where_another_object_of_the_topic_is_deleted() -> None:
    world = World()
    first = world.apply("first", topicName="orders", deletionPolicy="Delete")
    await world.settle()
    await away(world, "first")
    world.apply("second", topicName="orders", deletionPolicy="Delete", paused=True)
    await world.settle()
    world.controller._absences[first["metadata"]["uid"]] = 5
    made_again(world)
    world.delete("second")
    await world.settle()
    assert "orders" in world.brokers.topics_by_name


async def test_a_deletion_that_was_told_does_not_wait_for_the_cluster_to_grow_old() -> None:
    world = World()
    made_again(world)
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    world.delete("orders")
    await world.settle()
    assert world.brokers.topics_by_name == {}


async def test_an_object_that_no_watch_has_told_of_yet_keeps_its_topic() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    world.apply("another")
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
    world.apply("another")
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
    world.apply("another")
    await world.settle()
    world.kube.objects.apply_list(TOPICS, None, set(), "1000000")
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
    if is_heard:  # the absence of the namespace or definition does not count later either
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
    assert "cannot check" in world.errors[0]
    await world.settle()
    assert world.brokers.topics_by_name == {}


async def test_deletion_is_not_stuck_when_brokers_are_gone_and_is_done_when_they_are_back() -> None:
    # Objects with finalizers of other operators hang forever when their system is gone.
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


@pytest.mark.parametrize("first", ["cluster", "brokers", "topics"])
async def test_topics_of_a_namespace_that_went_and_was_restored_at_once_keep_their_records(first: str) -> None:
    """The restored objects have the same names and other UIDs, while the cache still has the DELETED events of the old
    ones."""
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    before = world.topic("orders").status.topic_id
    world.kube.terminating.add(NS)
    if first == "cluster":
        world.kube.remove(CLUSTERS, NS, CLUSTER)
        del world.connections.by_cluster[NS, CLUSTER]
    elif first == "brokers":
        world.brokers.down.update((0, 1, 2))
    else:
        world.queue.due.clear()
    world.delete("orders")
    if first != "topics":
        await world.settle()
    else:
        world.queue.due.clear()  # as in a standby replica
    if first != "cluster":
        world.kube.remove(CLUSTERS, NS, CLUSTER)
    world.kube.terminating.clear()
    world.brokers.down.clear()
    made_again(world)
    world.connections.by_cluster[NS, CLUSTER] = world.brokers
    await world.settle(30)
    world.apply("orders", deletionPolicy="Delete")
    await world.settle(30)
    for _ in range(4):
        await world.resync()
    assert world.topic("orders").status.topic_id == before
    assert world.condition("orders", "Ready") == READY


async def test_what_went_with_its_definition_is_no_wish_though_brokers_were_away_just_then() -> None:
    world = World()
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    before = world.topic("orders").status.topic_id
    world.brokers.down.update((0, 1, 2))
    world.kube.crds_terminating.add(TOPICS)
    world.kube.fail("dry_run", KubeError(500, "InternalError", "etcd is away"))
    world.delete("orders")
    await world.settle()
    assert any("cannot check" in error for error in world.errors), "and it is tried again"
    world.kube.crds_terminating.clear()
    world.brokers.down.clear()
    await world.settle(30)
    world.apply("orders", deletionPolicy="Delete")
    await world.settle()
    assert world.topic("orders").status.topic_id == before
