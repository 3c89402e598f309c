"""Moves of replicas that wait for an approval: the plan in the status, and what its id approves."""

from __future__ import annotations

from clusters.cluster_kit import World, formed
from clusters.test_scale import is_balanced, recorded, replica_counts

from penstock_operator.model.cluster import RebalanceStatus
from penstock_operator.ports.brokers import BrokersError

MANUAL = {"automatic": False}


async def scaled_up(brokers: int = 4) -> World:
    """Return a cluster with an additional broker whose moves wait for an approval."""
    world = await formed()
    for number in range(10):
        world.brokers.add_topic(f"t{number}", 6, 3)
    world.apply(brokers={"replicas": brokers}, moving=MANUAL)
    await world.run(60)
    return world


def plan(world: World) -> RebalanceStatus:
    found = world.cluster.status.rebalance
    assert found is not None, "the status has a plan"
    return found


async def test_the_plan_stands_in_the_status_bounded_and_nothing_moves() -> None:
    world = await scaled_up()
    found = plan(world)
    assert world.brokers.calls["reassign"] == 0
    assert 3 not in replica_counts(world)
    assert found.partitions > len(found.moves) == 20
    assert found.reason == "broker 3 holds nothing"
    assert found.bytes == 30 * 1_000, "the new broker shares the 60 replicas of its zone; a replica has 1,000 bytes"
    assert all(move.to_brokers == (3,) and len(move.from_brokers) == 1 for move in found.moves if move.bytes)
    events = [event.message for _, event in world.kube.recorded if event.reason == "RebalanceProposed"]
    assert len(events) == 1
    assert f"penstock.io/rebalance={found.id}" in events[0]
    assert world.condition("Ready") == ("True", "Serving")
    assert world.condition("Progressing") == ("False", "Done")
    writes = world.kube.writes
    await world.run(120)
    assert world.kube.writes == writes
    assert world.brokers.calls["replica_sizes"] == 1


async def test_the_id_of_the_plan_starts_it() -> None:
    world = await scaled_up()
    world.annotate(rebalance=plan(world).id)
    world.moves_a_turn = 2
    await world.run(5)
    assert world.condition("Progressing") == ("True", "Moving")
    assert "was approved" in world.message("Progressing")
    assert world.cluster.status.rebalance is None
    world.moves_a_turn = 1000
    await world.run(60)
    assert is_balanced(world)
    assert 3 in replica_counts(world)
    assert "moving" not in recorded(world)
    assert world.condition("Progressing") == ("False", "Done")


async def test_the_id_of_another_plan_starts_nothing() -> None:
    world = await scaled_up()
    old = plan(world).id
    world.brokers.add_topic("new", [(0, 1, 2)] * 12)
    world.start()  # the plan is computed again
    await world.controller.resync()
    await world.run(30)
    assert plan(world).id != old
    world.annotate(rebalance=old)
    await world.run(30)
    assert world.brokers.calls["reassign"] == 0
    world.annotate(rebalance="yes")
    await world.run(30)
    assert world.brokers.calls["reassign"] == 0


async def test_an_operator_that_restarts_proposes_the_same_plan_and_completes_an_approved_one() -> None:
    world = await scaled_up()
    found = plan(world)
    world.start()
    await world.controller.resync()
    await world.run(30)
    assert plan(world) == found
    assert world.recorded.count("RebalanceProposed") == 1
    world.annotate(rebalance=found.id)
    world.moves_a_turn = 2
    await world.run(4)
    world.start()
    world.moves_a_turn = 1000
    await world.run(60)
    assert is_balanced(world)


async def test_an_approval_that_is_withdrawn_starts_no_more_moves() -> None:
    world = await scaled_up()
    world.annotate(rebalance=plan(world).id)
    world.moves_a_turn = 0
    await world.run(5)
    begun = world.brokers.items["reassign"]
    assert begun > 0
    world.annotate(rebalance=None)
    world.moves_a_turn = 1000
    await world.run(60)
    assert world.brokers.items["reassign"] == begun
    assert world.condition("Progressing") == ("False", "Done")


async def test_a_broker_that_joins_after_the_approval_makes_it_another_plan() -> None:
    world = await scaled_up()
    old = plan(world)
    world.annotate(rebalance=old.id)
    world.moves_a_turn = 1
    await world.run(4)
    world.apply(brokers={"replicas": 5}, moving=MANUAL)
    world.moves_a_turn = 1000
    await world.run(60)
    assert plan(world).id != old.id
    assert 4 not in replica_counts(world)


async def test_a_plan_can_be_requested_while_all_brokers_hold_replicas() -> None:
    world = await formed(brokers={"replicas": 4})
    for number in range(10):
        world.brokers.add_topic(f"t{number}", [(0, 1, 2)] * 6)
    world.brokers.add_topic("one", [(3, 0, 1)])
    world.annotate(rebalance="plan")
    await world.run(30)
    found = plan(world)
    assert found.reason == "requested by annotation"
    assert world.brokers.calls["reassign"] == 0
    world.annotate(rebalance=found.id)
    await world.run(60)
    assert is_balanced(world)
    world.annotate(rebalance="plan")
    await world.run(30)
    assert (plan(world).id, plan(world).partitions) == ("none", 0)
    world.annotate(rebalance=None)
    await world.run(30)
    assert world.cluster.status.rebalance is None


async def test_sizes_that_brokers_do_not_tell_are_left_out_and_asked_again() -> None:
    world = await formed()
    world.brokers.add_topic("t", 12, 3)
    world.brokers.fail_next("replica_sizes", BrokersError("no answer"), times=3)
    world.apply(brokers={"replicas": 4}, moving=MANUAL)
    while world.brokers.calls["replica_sizes"] < 3:
        await world.turn()
        world.time += 0.5
    assert plan(world).bytes is None
    assert "RebalanceProposed" not in world.recorded
    await world.run(30)
    assert plan(world).bytes
    assert "RebalanceProposed" in world.recorded


async def test_moves_that_become_automatic_start_without_an_approval() -> None:
    world = await scaled_up()
    world.apply(brokers={"replicas": 4}, moving={"automatic": True})
    await world.run(60)
    assert is_balanced(world)
    assert world.cluster.status.rebalance is None
