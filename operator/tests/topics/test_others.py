"""Several objects for a topic, existing topics, failures of brokers and API server."""

from __future__ import annotations

from doubles.brokers import InMemoryBrokers
from topics.topic_kit import CLUSTER, NS, World, manifest

from penstock_operator.ports.brokers import DELETION_POLICY, HIBERNATED, OWNER, BrokersError
from penstock_operator.ports.kube import CLUSTERS, TOPICS, KubeError
from penstock_operator.topics.batch import MAX_MOVING

READY = ("True", "Ready")


async def test_of_two_objects_for_one_topic_the_older_has_it_and_the_other_is_told_whose_it_is() -> None:
    world = World()
    world.apply("first", topicName="orders", partitions=2)
    world.apply("second", topicName="orders", partitions=9)
    await world.settle()
    assert len(world.brokers.topics_by_name["orders"].partitions) == 2
    assert world.condition("first", "Ready") == READY
    assert world.condition("second", "Ready") == ("False", "Conflict")
    assert "first" in world.message("second")
    assert world.recorded.count(("second", "Conflict")) == 1


async def test_the_other_gets_the_topic_when_the_first_is_gone() -> None:
    world = World()
    world.apply("first", topicName="orders", deletionPolicy="Delete")
    world.apply("second", topicName="orders")
    await world.settle()
    before = world.topic("first").status.topic_id
    world.delete("first")
    await world.settle()
    assert world.condition("second", "Ready") == READY
    assert world.topic("second").status.topic_id == before  # an object that specifies the topic keeps it


async def test_one_that_turns_out_to_be_older_takes_the_topic_over() -> None:
    world = World()
    world.apply("second", topicName="orders")
    await world.settle()
    body = manifest("first", topicName="orders")
    body["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    first = world.kube.put(TOPICS, body)
    await world.settle()
    assert world.condition("second", "Ready") == ("False", "Conflict")
    assert world.brokers.topics_by_name["orders"].settings[OWNER] == first["metadata"]["uid"]


async def test_one_that_was_made_in_the_same_second_does_not_take_the_topic_whatever_its_uid() -> None:
    world = World()
    made = world.apply("first", topicName="orders")["metadata"]["creationTimestamp"]
    await world.settle()
    for uid in ("00000000", "ffffffff"):
        body = manifest(f"second-{uid}", topicName="orders")
        body["metadata"] |= {"creationTimestamp": made, "uid": f"{uid}-0000-4000-8000-000000000000"}
        world.kube.put(TOPICS, body)
        await world.settle()
        assert world.condition(f"second-{uid}", "Ready") == ("False", "Conflict")
        assert world.condition("first", "Ready") == READY


async def test_a_topic_that_was_there_is_adopted_and_keeps_what_the_object_does_not_say() -> None:
    world = World()
    there = world.brokers.add_topic("orders", 3, 2, {"retention.ms": "-1", "segment.ms": "5"})
    world.apply("orders", config={"segment.ms": "6"})
    await world.settle()
    now = world.brokers.topics_by_name["orders"]
    assert now.topic_id == there.topic_id
    assert (now.settings["retention.ms"], now.settings["segment.ms"]) == ("-1", "6")
    assert world.condition("orders", "Ready") == READY
    assert world.topic("orders").status.kept_settings == ("retention.ms",)
    await world.resync()
    assert world.brokers.topics_by_name["orders"].settings["retention.ms"] == "-1"
    world.apply("orders", config={"segment.ms": "6", "retention.ms": "7"})
    await world.settle()
    world.apply("orders", config={"segment.ms": "6"})  # the object now manages the topic and deletes it
    await world.settle()
    assert "retention.ms" not in world.brokers.topics_by_name["orders"].settings


async def test_an_operator_that_ends_in_the_middle_of_an_adoption_does_not_take_settings_back() -> None:
    world = World()
    world.brokers.add_topic("orders", 1, 1, {"retention.ms": "-1"})
    world.apply("orders")
    world.kube.fail("patch_status", KubeError(500, "InternalError", "away"), times=3)
    await world.settle(2)
    world.started()
    await world.settle(10)
    assert world.brokers.topics_by_name["orders"].settings["retention.ms"] == "-1"
    assert world.condition("orders", "Ready") == READY


async def test_an_adopted_topic_is_neither_shrunk_nor_deleted() -> None:
    world = World()
    world.brokers.add_topic("orders", 5)
    world.apply("orders", partitions=2)
    await world.settle()
    assert len(world.brokers.topics_by_name["orders"].partitions) == 5
    assert world.condition("orders", "Ready") == ("False", "DecreaseNotConfirmed")


async def test_a_topic_that_somebody_wants_is_not_deleted_for_an_owner_that_is_missing() -> None:
    world = World()
    world.apply("first", topicName="orders", deletionPolicy="Delete")
    await world.settle()
    world.apply("second", topicName="orders", paused=True)
    world.vanish("first")
    world.time += 3600
    for _ in range(4):
        await world.resync()
    assert "orders" in world.brokers.topics_by_name
    assert world.brokers.topics_by_name["orders"].settings[DELETION_POLICY] == "Delete"


async def test_topics_without_an_object_are_nobodys_business() -> None:
    world = World()
    world.brokers.add_topic("theirs", 1, 1, {OWNER: "an operator elsewhere", DELETION_POLICY: "Retain"})
    world.brokers.add_topic("plain")
    world.apply("orders")
    await world.settle()
    for _ in range(4):
        await world.resync()
    assert world.brokers.topics_by_name.keys() == {"orders", "plain", "theirs"}


async def test_a_topic_waits_for_its_cluster() -> None:
    world = World()
    world.kube.remove(CLUSTERS, NS, CLUSTER)
    world.connections.by_cluster.clear()
    world.apply("orders")
    await world.settle()
    assert world.condition("orders", "Ready") == ("Unknown", "ClusterNotFound")
    world.connections.by_cluster[NS, CLUSTER] = world.brokers
    world.kube.put(CLUSTERS, {"metadata": {"name": CLUSTER, "namespace": NS}, "spec": {}})
    await world.settle()
    assert world.condition("orders", "Ready") == READY


async def test_brokers_that_are_away_for_a_moment_are_no_write() -> None:
    world = World()
    world.apply("orders")
    await world.settle()
    writes = world.kube.writes
    world.brokers.fail_next("describe_cluster")
    await world.resync()
    await world.settle(10)
    assert world.kube.writes == writes
    assert world.condition("orders", "Ready") == READY


async def test_brokers_that_stay_away_make_ready_unknown_and_their_return_mends_it() -> None:
    world = World()
    world.apply("orders", partitions=2)
    await world.settle()
    await world.controller.health.check_clusters()
    world.brokers.unreachable = BrokersError("connection refused", code="NoBrokerAvailable")
    await world.resync()
    await world.settle(60)
    assert world.condition("orders", "Ready") == ("Unknown", "Unreachable")
    assert world.topic("orders").status.partitions == 2
    writes = world.kube.writes
    await world.settle(300)
    assert world.kube.writes == writes
    world.brokers.mend()
    world.time += 30
    world.queue.due.clear()
    await world.controller.health.check_clusters()  # detects that the brokers are back
    await world.settle()
    assert world.condition("orders", "Ready") == READY


async def test_a_topic_of_a_hibernated_cluster_keeps_its_figures_says_why_and_waits_for_the_cluster() -> None:
    world = World()
    world.apply("orders", partitions=2)
    await world.settle()
    await world.controller.health.check_clusters()
    world.brokers.unreachable = BrokersError('Cluster "c" is hibernated', code=HIBERNATED)
    await world.controller.health.check_clusters()
    await world.resync()
    assert world.condition("orders", "Ready") == ("Unknown", "ClusterHibernated")
    assert world.topic("orders").status.partitions == 2
    assert not world.errors
    assert not [key for key in world.queue.due if key.kind == "Topic"], "the Cluster queues it when it wakes"
    world.brokers.mend()
    await world.resync()
    assert world.condition("orders", "Ready") == READY


async def test_a_new_topic_is_told_at_once_that_nobody_answers() -> None:
    world = World()
    world.brokers.unreachable = BrokersError("connection refused", code="NoBrokerAvailable")
    world.apply("orders")
    await world.settle(1)
    assert world.condition("orders", "Ready") == ("Unknown", "Unreachable")


async def test_one_topic_that_is_refused_does_not_keep_the_others() -> None:
    world = World()
    world.apply("bad", config={"no.such.setting": "1"})
    world.apply("good")
    world.apply("late")
    world.brokers.fail_for("create_topics", "late", times=1)
    await world.settle()
    assert world.condition("bad", "Ready") == ("False", "Refused")
    assert "no.such.setting" in world.message("bad")
    assert world.condition("good", "Ready") == READY
    assert world.condition("late", "Ready") == READY
    assert world.recorded.count(("bad", "Refused")) == 1


async def test_a_broker_that_is_behind_makes_nothing_happen_twice() -> None:
    world = World()
    world.brokers.answer_as_of_now()
    world.apply("orders", partitions=3)
    await world.settle(1)
    assert world.brokers.calls["create_topics"] == 2  # one request for each reconciliation that misses the topic
    world.brokers.catch_up()
    await world.settle(10)
    assert world.condition("orders", "Ready") == READY
    assert world.recorded == [("orders", "Created")]
    writes = [status for status in ("patch_status",) for _ in range(world.kube.calls[status])]
    assert len(writes) == 1


async def test_an_operator_that_ends_between_creation_and_status_goes_on() -> None:
    world = World()
    world.kube.fail("patch_status", KubeError(500, "InternalError", "away"), times=1)
    world.apply("orders")
    await world.settle(0)
    world.queue.due.clear()
    world.started()
    await world.resync()
    assert world.condition("orders", "Ready") == READY
    assert world.brokers.items["create_topics"] == 1


async def test_lost_replicas_are_seen_without_an_event_and_told_when_a_partition_is_offline() -> None:
    world = World(InMemoryBrokers(range(3)))
    world.apply("wide", replicas=3)
    world.apply("narrow", replicas=1)
    await world.settle()
    await world.controller.health.check_clusters()
    world.brokers.stop(world.brokers.topics_by_name["narrow"].partitions[0].replicas[0])
    await world.controller.health.check_clusters()
    await world.settle()
    assert world.condition("narrow", "Ready") == ("False", "Offline")
    assert world.condition("wide", "Healthy") == ("False", "UnderReplicated")
    assert world.condition("wide", "Ready") == READY
    assert ("narrow", "Offline") in world.recorded
    writes = world.kube.writes
    await world.controller.health.check_clusters()
    await world.settle()
    assert world.kube.writes == writes
    for broker in list(world.brokers.down):
        world.brokers.restart(broker)
    await world.controller.health.check_clusters()
    await world.settle()
    assert world.condition("narrow", "Ready") == READY
    assert ("narrow", "Online") in world.recorded


async def test_a_topic_that_goes_is_seen_without_an_event() -> None:
    world = World()
    world.apply("orders")
    await world.settle()
    await world.controller.health.check_clusters()
    del world.brokers.topics_by_name["orders"]
    await world.controller.health.check_clusters()
    await world.settle()
    assert "orders" in world.brokers.topics_by_name


async def test_badly_placed_replicas_move_unless_the_cluster_says_otherwise() -> None:
    for automatic in (False, True):
        world = World(InMemoryBrokers({0: "a/1", 1: "a/2", 2: "b/3"}))
        world.kube.put(
            CLUSTERS, {"metadata": {"name": CLUSTER, "namespace": NS}, "spec": {"moving": {"automatic": automatic}}}
        )
        world.brokers.moves_at_once = True
        world.brokers.add_topic("orders", [(0, 1), (1, 2)])
        world.apply("orders")
        await world.settle()
        replicas = [set(p.replicas) for p in world.brokers.topics_by_name["orders"].partitions]
        assert (replicas == [{0, 2}, {1, 2}]) == automatic
        assert world.condition("orders", "Ready") == READY


async def test_an_object_that_cannot_be_read_is_left_alone_and_says_why() -> None:
    world = World()
    body = manifest("orders")
    body["spec"]["partitions"] = "many"
    world.kube.put(TOPICS, body)
    world.apply("good")
    await world.settle()
    assert world.condition("good", "Ready") == READY
    assert world.brokers.topics_by_name.keys() == {"good"}
    read = world.kube.read(TOPICS, NS, "orders")
    assert read is not None
    (ready,) = read["status"]["conditions"]
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("False", "InvalidSpec", 1)
    assert "spec.partitions" in ready["message"]
    assert read["status"]["observedGeneration"] == 1
    assert world.recorded.count(("orders", "Invalid")) == 1
    writes = world.kube.writes
    await world.resync()
    assert world.kube.writes == writes
    world.apply("orders", partitions=2)
    await world.settle()
    assert world.condition("orders", "Ready") == READY


async def test_brokers_that_answer_and_tell_nothing_of_topics_are_a_trouble_that_lasts() -> None:
    # As without a controller: the brokers respond, but do not report moving replicas.
    world = World()
    world.apply("orders")
    await world.settle()
    world.brokers.fail_next("topics", BrokersError("no controller"), times=1000)
    world.apply("orders", partitions=2)
    await world.settle(60)
    assert world.condition("orders", "Ready") == ("Unknown", "Unreachable")
    world.brokers.mend()
    await world.settle(60)
    assert world.condition("orders", "Ready") == READY


async def test_batches_share_how_many_partitions_may_move_at_a_time() -> None:
    world = World()
    world.controller.batch = 1
    for number, name in enumerate(("first", "second")):
        world.brokers.add_topic(name, [[number]] * 150)
        world.apply(name, replicas=2)
    await world.controller.health.check_clusters()
    await world.settle()
    assert world.brokers.moving == MAX_MOVING
