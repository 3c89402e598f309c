"""Replica moves: by request, off draining or long-absent brokers, and placement of new replicas."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from penstock.config.broker import BrokerConfig
from penstock.control.broker_availability import is_removable
from penstock.control.controller.evacuation import REPLAN_S, rebalance
from penstock.control.controller.reassignment_requests import ReassignmentRequest, ReassignmentRequests
from penstock.control.members import BROKER_PREFIX
from penstock.control.results import TopicRequest
from penstock.state import keys
from penstock.state.records import BrokerConfigRecord, PartitionRecord, encode
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode


def requests_of(world) -> ReassignmentRequests:
    node = world.brokers[min(world.brokers)]
    return ReassignmentRequests(world.store, node.view, node.watcher, world.time, BrokerConfig())


async def reassign(world, *requests: ReassignmentRequest) -> list[ErrorCode]:
    return [outcome.error for outcome in await world.finish(requests_of(world).reassign(requests))]


async def set_draining(world, broker: int, value: str = "true") -> None:
    record = BrokerConfigRecord(settings={"broker.draining": value})
    await world.store.txn([], [PutOp(keys.broker_config(broker), encode(record))])
    await world.time.settle()


@pytest.fixture
async def four(world):
    await world.start(1, 2, 3, 4)
    await world.time.until(lambda: world.controllers() == [1])
    return world


async def test_replicas_change_by_adding_catching_up_and_removing(four) -> None:
    await four.topic("t", [1, 2, 3])
    assert await reassign(four, ReassignmentRequest("t", 0, [4, 2, 3])) == [ErrorCode.NONE]
    partition = four.partition("t")
    assert (partition.replicas, partition.adding, partition.removing) == ([4, 2, 3, 1], [4], [1])
    assert (partition.isr, partition.leader) == ([1, 2, 3], 1)
    await four.time.advance(5)
    assert four.partition("t").adding == [4], "nothing goes before what comes has caught up"
    await four.admit("t", 0, 4)
    await four.time.until(lambda: not four.partition("t").removing)
    partition = four.partition("t")
    assert (partition.replicas, partition.adding, sorted(partition.isr)) == ([4, 2, 3], [], [2, 3, 4])
    assert (partition.leader, partition.leader_epoch) == (4, 1)


async def test_a_reassignment_is_cancelled_to_what_was_there(four) -> None:
    await four.topic("t", [1, 2])
    assert await reassign(four, ReassignmentRequest("t", 0, None)) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    await reassign(four, ReassignmentRequest("t", 0, [3, 4]))
    await four.admit("t", 0, 3)
    assert await reassign(four, ReassignmentRequest("t", 0, None)) == [ErrorCode.NONE]
    partition = four.partition("t")
    assert (sorted(partition.replicas), partition.isr, partition.adding, partition.removing) == ([1, 2], [1, 2], [], [])


async def test_a_later_wish_replaces_an_earlier_one(four) -> None:
    await four.topic("t", [1, 2])
    await reassign(four, ReassignmentRequest("t", 0, [1, 3]))
    await four.time.advance(1)
    assert await reassign(four, ReassignmentRequest("t", 0, [1, 4])) == [ErrorCode.NONE]
    partition = four.partition("t")
    assert (partition.replicas, partition.adding, partition.removing) == ([1, 4, 2], [4], [2])


async def test_an_order_alone_changes_at_once_and_makes_another_leader(four) -> None:
    await four.topic("t", [1, 2, 3])
    await reassign(four, ReassignmentRequest("t", 0, [2, 1, 3]))
    assert (four.partition("t").replicas, four.partition("t").leader) == ([2, 1, 3], 2)


async def test_a_replica_less_waits_for_those_that_stay_to_be_enough(four) -> None:
    await four.topic("t", [1, 2, 3], overrides={"min.insync.replicas": "2"})
    await four.kill(3, notice=True)
    await four.time.until(lambda: four.partition("t").isr == [1, 2])
    await reassign(four, ReassignmentRequest("t", 0, [3, 1]))
    await four.time.advance(2)
    assert sorted(four.partition("t").replicas) == [1, 2, 3]
    await four.start(3)
    await four.admit("t", 0, 3)
    await four.time.until(lambda: four.partition("t").replicas == [3, 1])


@pytest.mark.parametrize(
    ("replicas", "error"),
    [
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, -1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (list(range(200)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_replicas_that_cannot_be_are_refused(four, replicas, error) -> None:
    await four.topic("t", [1, 2])
    assert await reassign(four, ReassignmentRequest("t", 0, replicas)) == [error]
    assert (
        await reassign(
            four, ReassignmentRequest("t", 5, [1]), ReassignmentRequest("u", 0, [1]), ReassignmentRequest("t", -1, [1])
        )
        == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3
    )
    assert four.partition("t").replicas == [1, 2]


async def test_a_factor_that_is_to_stay_stays(four) -> None:
    await four.topic("t", [1, 2])
    assert await reassign(four, ReassignmentRequest("t", 0, [1], may_change_factor=False)) == [
        ErrorCode.INVALID_REPLICATION_FACTOR
    ]
    assert await reassign(four, ReassignmentRequest("t", 0, [1, 3], may_change_factor=False)) == [ErrorCode.NONE]


async def test_a_factor_that_is_to_stay_is_that_of_the_move_in_hand(four) -> None:
    await four.topic("t", [1, 2])
    assert await reassign(four, ReassignmentRequest("t", 0, [1, 2, 3])) == [ErrorCode.NONE]
    assert four.partition("t").adding == [3]
    assert await reassign(four, ReassignmentRequest("t", 0, [1, 2, 4], may_change_factor=False)) == [ErrorCode.NONE]
    assert await reassign(four, ReassignmentRequest("t", 0, [1, 4], may_change_factor=False)) == [
        ErrorCode.INVALID_REPLICATION_FACTOR
    ]


async def test_what_a_failed_growth_has_left_is_no_partition_yet(four) -> None:
    topic_id = await four.topic("t", [1, 2])
    record = PartitionRecord(replicas=[1, 2], leader=1, isr=[1, 2])
    await four.store.txn([], [PutOp(keys.partition(topic_id, 1), encode(record))])
    assert await reassign(four, ReassignmentRequest("t", 1, [1, 3])) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("assignments", [None, [[2, 3, 4]]])
async def test_partitions_added_during_a_move_have_as_many_replicas_as_the_moved_will_have(four, assignments) -> None:
    await four.topic("t", [1, 2, 3], [2, 3, 1])
    await reassign(four, ReassignmentRequest("t", 0, [4, 2, 3]))
    assert len(four.partition("t").replicas) == 4
    outcome = await four.finish(four.brokers[1].topics.create_partitions("t", 3, assignments))
    assert outcome.error is ErrorCode.NONE, outcome
    assert len(four.partition("t", 2).replicas) == 3


async def test_nothing_is_moved_to_a_broker_that_drains(four) -> None:
    await four.topic("t", [1, 2])
    await set_draining(four, 4)
    assert await reassign(four, ReassignmentRequest("t", 0, [1, 4])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


async def test_a_draining_broker_is_emptied_and_then_removable(four) -> None:
    await four.topic("t", *[[4, 1, 2], [1, 4, 3], [2, 3, 1]] * 10)
    await set_draining(four, 4)
    await four.time.until(lambda: all(4 in p.removing or 4 not in p.replicas for p in four.view.topics["t"].partitions))
    assert not is_removable(four.view, 4)
    untouched = [p for p in four.view.topics["t"].partitions if p.index % 3 == 2]
    assert all(p.replicas == [2, 3, 1] for p in untouched)
    for partition in list(four.view.topics["t"].partitions):
        for broker in partition.adding:
            await four.admit("t", partition.index, broker)
    await four.time.until(lambda: is_removable(four.view, 4))
    assert all(len(p.replicas) == 3 == len(p.isr) for p in four.view.topics["t"].partitions)


async def test_a_broker_that_drains_and_is_empty_takes_nothing_from_another_that_drains(four) -> None:
    await four.topic("t", [4, 1])
    await four.topic("crowded", *[[1, 3]] * 6)
    await set_draining(four, 2)
    await four.time.advance(1)
    await set_draining(four, 4)
    await four.time.until(lambda: four.partition("t").removing == [4])
    assert four.partition("t").adding == [3]


async def test_a_drain_moves_nothing_that_is_not_on_the_broker(four) -> None:
    await four.topic("t", [4, 1])
    await four.topic("crowded", *[[1, 2]] * 6)
    await set_draining(four, 4)
    await four.time.until(lambda: four.partition("t").removing == [4])
    await four.time.advance(2)
    assert all(p.replicas == [1, 2] for p in four.view.topics["crowded"].partitions)


async def test_a_draining_broker_keeps_what_nobody_else_could_hold(three) -> None:
    await three.topic("t", [1, 2, 3])
    await three.topic("u", [3, 1])
    await set_draining(three, 3)
    await three.time.until(lambda: three.partition("u").removing == [3])
    assert three.partition("t").replicas == [1, 2, 3]


async def test_a_plan_that_cannot_be_made_is_not_tried_again_at_each_look(three, capsys) -> None:
    await three.topic("t", [1, 2])
    for broker in (1, 2, 3):
        await set_draining(three, broker)
    await three.time.advance(6)
    assert "no placement for the replicas of draining or absent brokers" in capsys.readouterr().out
    await three.time.advance(REPLAN_S)
    assert capsys.readouterr().out.count("no placement for the replicas of draining or absent brokers") == 1


async def test_replicas_of_a_broker_that_is_gone_for_long_are_placed_elsewhere(four) -> None:
    await four.topic("t", [4, 1, 2], [1, 2, 3])
    await four.kill(4, notice=True)
    await four.time.until(lambda: four.partition("t").leader == 1)
    four.time.wall_offset_ms += 1_700_000
    await four.time.advance(12)
    assert not four.partition("t").adding
    four.time.wall_offset_ms += 100_000
    await four.time.until(lambda: four.partition("t").adding == [3])
    assert four.partition("t").removing == [4]
    assert four.partition("t", 1).replicas == [1, 2, 3]


async def test_a_broker_that_comes_back_in_time_keeps_its_replicas(four) -> None:
    await four.topic("t", [4, 1, 2])
    await four.kill(4, notice=True)
    await four.time.until(lambda: 4 in four.the_controller().term.registry.absent)
    four.time.wall_offset_ms += 1_000_000
    await four.start(4)
    await four.time.until(lambda: 4 not in four.the_controller().term.registry.absent)
    four.time.wall_offset_ms += 1_000_000
    await four.time.advance(12)
    assert not four.partition("t").adding


async def test_since_when_a_broker_is_gone_outlives_the_controller(four) -> None:
    await four.topic("t", [4, 1, 2])
    await four.kill(4, notice=True)
    await four.time.until(lambda: 4 in four.the_controller().term.registry.absent)
    since_ms = four.the_controller().term.registry.absent[4]
    four.time.wall_offset_ms += 1_000_000
    await four.time.advance(10)
    await four.kill(1, notice=True)
    await four.time.until(lambda: four.controllers())
    await four.time.advance(1)
    assert four.the_controller().term.registry.absent[4] == since_ms


async def test_a_broker_that_is_away_is_emptied_once_and_stays_noted(four) -> None:
    await four.topic("t", [4, 1, 2])
    await four.kill(4, notice=True)
    await four.time.until(lambda: 4 in four.the_controller().term.registry.absent)
    since_ms = four.the_controller().term.registry.absent[4]
    four.time.wall_offset_ms += 2_000_000
    await four.time.until(lambda: four.partition("t").adding == [3])
    await four.admit("t", 0, 3)
    await four.time.until(lambda: 4 not in four.partition("t").replicas)
    await four.time.advance(40)
    assert four.the_controller().term.registry.absent[4] == since_ms


async def test_a_topic_gets_a_replica_on_a_broker_that_restarts_where_the_others_do_not_suffice(three) -> None:
    await three.kill(3, notice=True)
    await three.time.until(lambda: 3 in three.the_controller().term.registry.absent)
    three.time.wall_offset_ms += 15_000
    assert (await three.create("t", 4, 3))[0].error is ErrorCode.NONE
    placed = three.view.topics["t"].partitions
    assert all(p.replicas[2] == 3 and sorted(p.isr) == [1, 2] and p.leader != 3 for p in placed)
    assert (await three.create("two", 4, 2))[0].error is ErrorCode.NONE
    assert all(3 not in p.replicas for p in three.view.topics["two"].partitions)
    assert (await three.create("four", 1, 4))[0].error is ErrorCode.INVALID_REPLICATION_FACTOR
    await three.start(3)
    await three.admit("t", 0, 3)
    assert sorted(three.partition("t").isr) == [1, 2, 3]


async def test_by_default_a_topic_has_as_many_replicas_while_a_broker_restarts(three) -> None:
    three.brokers[1].config.default_replication_factor = 3
    await three.kill(3, notice=True)
    assert (await three.create("t", 1, -1))[0].error is ErrorCode.NONE
    assert len(three.partition("t").replicas) == 3


async def test_a_broker_that_is_gone_for_long_or_drains_gets_no_new_replica(three) -> None:
    await set_draining(three, 2)
    await three.kill(2, notice=True)
    assert (await three.create("t", 1, 3))[0].error is ErrorCode.INVALID_REPLICATION_FACTOR
    await three.kill(3, notice=True)
    await three.time.until(lambda: 3 in three.the_controller().term.registry.absent)
    assert (await three.create("t", 1, 2))[0].error is ErrorCode.NONE
    three.time.wall_offset_ms += 1_800_000
    assert (await three.create("u", 1, 2))[0].error is ErrorCode.INVALID_REPLICATION_FACTOR


async def test_a_wish_may_name_a_broker_that_restarts_beside_one_that_is_there(three) -> None:
    await three.topic("t", [1])
    await three.kill(3, notice=True)
    await three.time.until(lambda: 3 in three.the_controller().term.registry.absent)
    assert await reassign(three, ReassignmentRequest("t", 0, [1, 3])) == [ErrorCode.NONE]
    assert three.partition("t").adding == [3]
    assert await reassign(three, ReassignmentRequest("t", 0, [3])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    await three.start(3)
    await three.admit("t", 0, 3)
    await three.time.until(lambda: not three.partition("t").adding)
    assert three.partition("t").replicas == [1, 3]


async def test_partitions_are_added_with_all_replicas_while_a_broker_restarts(three) -> None:
    await three.topic("t", [1, 2, 3])
    await three.kill(3, notice=True)
    await three.time.until(lambda: three.partition("t").isr == [1, 2])
    node = three.brokers[1]
    assert (await three.finish(node.topics.create_partitions("t", 2))).error is ErrorCode.NONE
    assert sorted(three.partition("t", 1).replicas) == [1, 2, 3]
    only_away = await three.finish(node.topics.create_partitions("t", 3, [[3]]))
    assert only_away.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_elections_by_request(four) -> None:
    await four.topic("t", [1, 2], [2, 1])
    elections = requests_of(four)
    await four.finish(elections.reassign([ReassignmentRequest("t", 0, [2, 1]), ReassignmentRequest("t", 1, [1, 2])]))

    async def elect(is_unclean: bool, *partitions) -> list[ErrorCode]:
        return [o.error for o in await four.finish(elections.elect(list(partitions), is_unclean))]

    assert await elect(False, ("t", 0), ("t", 9)) == [
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    await four.topic("u", [3, 2], isr=[2])
    assert await elect(False, ("u", 0)) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    await four.admit("u", 0, 3)
    assert await elect(False, ("u", 0)) == [ErrorCode.NONE]
    assert (four.partition("u").leader, four.partition("u").leader_epoch) == (3, 1)
    assert await elect(True, ("u", 0)) == [ErrorCode.ELECTION_NOT_NEEDED]


async def test_an_unclean_election_by_request_needs_no_permission_of_the_topic(three) -> None:
    await three.topic("t", [2, 3], isr=[2])
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t").leader == -1)
    outcome = await three.finish(requests_of(three).elect([("t", 0)], True))
    assert [o.error for o in outcome] == [ErrorCode.NONE]
    assert (three.partition("t").leader, three.partition("t").isr) == (3, [3])
    assert three.partition("t").isr_epochs == [three.epoch(3)]


# ReplicaPlacer


async def test_small_topics_created_one_after_the_other_or_together_are_spread(four) -> None:
    admin = four.brokers[1].topics
    await four.finish(admin.create([TopicRequest(f"a{i}", 1, 2) for i in range(8)]))
    for i in range(8):
        await four.finish(admin.create([TopicRequest(f"b{i}", 1, 2)]))
    partitions = [p for topic in four.view.topics.values() for p in topic.partitions]
    assert len(partitions) == 16
    assert set(Counter(b for p in partitions for b in p.replicas).values()) == {8}
    assert set(Counter(p.leader for p in partitions).values()) <= {3, 4, 5}


async def test_new_partitions_are_spread_over_failure_domains_and_keep_off_draining_brokers(world) -> None:
    world.domains = {1: "a/n1", 2: "a/n1", 3: "b/n2", 4: "b/n3"}
    await world.start(1, 2, 3, 4)
    await world.time.until(lambda: world.controllers() == [1])
    await world.create("t", 8, 2)
    for partition in world.view.topics["t"].partitions:
        assert len({world.domains[b][0] for b in partition.replicas}) == 2
    await set_draining(world, 3)
    await world.create("u", 8, 2)
    assert all(3 not in p.replicas for p in world.view.topics["u"].partitions)
    outcomes = await world.create("v", 1, 4)
    assert outcomes[0].error is ErrorCode.INVALID_REPLICATION_FACTOR
    admin = world.brokers[1].topics
    assert (await world.finish(admin.create_partitions("u", 12))).error is ErrorCode.NONE
    assert all(3 not in p.replicas for p in world.view.topics["u"].partitions)
    assert len(world.view.topics["u"].partitions) == 12


async def test_a_topic_is_not_placed_on_a_broker_that_begins_to_drain_meanwhile(four) -> None:
    """The drain starts between the placement and the write of the name."""
    admin = four.brokers[1].topics
    real = four.store.range

    async def then_drain(prefix: str, revision: int = 0):
        listing = await real(prefix, revision)
        if prefix == BROKER_PREFIX:
            for broker in (1, 2, 3, 4):
                record = BrokerConfigRecord(settings={"broker.draining": "true"})
                await four.store.txn([], [PutOp(keys.broker_config(broker), encode(record))])
        return listing

    four.store.range = then_drain
    (outcome,) = await four.finish(admin.create([TopicRequest("t", 1, 1)]))
    assert outcome.error is ErrorCode.REQUEST_TIMED_OUT
    assert "t" not in four.view.topics


async def test_a_new_broker_is_given_its_share_by_a_rebalance(three) -> None:
    await three.create("t", 12, 3)
    assert rebalance(three.view) == []
    await three.start(4)
    await three.time.until(lambda: 4 in three.view.brokers)
    moves = await asyncio.to_thread(rebalance, three.view)
    assert Counter(b for move in moves for b in move.adds) == {4: 9}
