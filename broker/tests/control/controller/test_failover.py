"""The controller's reaction to brokers that crash, restart, stop cleanly or are unreachable."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from penstock.control.controller.index import PartitionId
from penstock.control.members import partition_name
from penstock.state import keys
from penstock.state.store import DeleteOp, PutOp, StoreUnavailable
from penstock.wire.errors import ErrorCode


async def test_partitions_of_a_killed_broker_are_led_by_others_within_a_fraction_of_a_second(three) -> None:
    await three.topic("t", *[[2, 3, 1]] * 300)
    await three.kill(2, notice=True)
    took_s = await three.time.until(lambda: all(p.leader == 3 for p in three.view.topics["t"].partitions))
    assert took_s < 1.0
    assert {tuple(p.isr) for p in three.view.topics["t"].partitions} == {(3, 1)}
    assert {p.leader_epoch for p in three.view.topics["t"].partitions} == {1}
    assert 2 not in three.view.brokers


async def test_a_silent_broker_is_replaced_when_its_lease_ends_and_not_before(three) -> None:
    await three.topic("t", [2, 3, 1])
    await three.kill(2)
    await three.time.advance(5)
    assert three.partition("t").leader == 2
    took_s = await three.time.until(lambda: three.partition("t").leader == 3)
    assert 0 < took_s + 5 < 9.5


async def test_the_controllers_own_death_is_noticed_by_the_others(three) -> None:
    await three.topic("t", [1, 2, 3])
    await three.kill(1, notice=True)
    took_s = await three.time.until(lambda: three.partition("t").leader == 2)
    assert took_s < 0.5, "the new controller does not wait once more until its predecessor counts as dead"
    assert three.view.controller_epoch == 2
    assert len(three.controllers()) == 1


async def test_a_silent_controller_is_succeeded_when_its_lease_ends(three) -> None:
    await three.topic("t", [1, 2, 3])
    await three.kill(1)
    assert await three.time.until(lambda: three.partition("t").leader == 2) < 10.5


async def test_where_more_than_a_third_seem_dead_leases_alone_decide(world) -> None:
    await world.start(1, 2, 3, 4, 5)
    await world.time.until(lambda: world.controllers() == [1])
    await world.topic("t", [2, 4, 1], [3, 4, 1])
    term = world.the_controller().term
    world.network.dead |= {2, 3}
    world.network.break_connections(2)
    world.network.break_connections(3)
    await world.time.advance(8)
    assert term.probes.fenced == 0
    assert [p.leader for p in world.view.topics["t"].partitions] == [2, 3]
    assert {2, 3} <= world.view.brokers.keys()


async def test_brokers_that_die_one_after_the_other_are_not_all_fenced_by_suspicion(world) -> None:
    await world.start(1, 2, 3)
    await world.time.until(lambda: world.controllers() == [1])
    await world.kill(2, notice=True)
    await world.time.until(lambda: 2 not in world.view.brokers)
    await world.kill(3, notice=True)
    await world.time.advance(5)
    assert 3 in world.view.brokers
    await world.time.until(lambda: 3 not in world.view.brokers)


async def test_who_was_fenced_within_a_lease_counts_among_the_suspects(world) -> None:
    await world.start(1, 2, 3, 4, 5, 6)
    await world.time.until(lambda: world.controllers() == [1])
    for broker in (2, 3):
        await world.kill(broker, notice=True)
        await world.time.until(lambda broker=broker: broker not in world.view.brokers, limit_s=2)
    await world.kill(4, notice=True)
    await world.time.advance(3)
    assert 4 in world.view.brokers


async def test_a_broken_connection_alone_is_no_suspicion(three) -> None:
    await three.topic("t", [2, 3, 1])
    for _ in range(3):
        three.network.break_connections(2)
        await three.time.advance(2)
    assert three.partition("t").leader == 2
    assert three.the_controller().term.probes.fenced == 0


async def test_a_broker_that_was_fenced_learns_that_it_is_no_longer_a_member(three) -> None:
    three.network.dead.add(2)  # the process runs, but no broker can connect to it
    three.network.break_connections(2)
    registration = three.brokers[2].registration
    await three.time.until(registration.lost.is_set)
    assert not registration.may_serve()
    assert "removed by the controller" in registration.lost_reason


async def test_a_broker_that_restarts_quickly_is_readmitted_as_another_incarnation(three) -> None:
    await three.topic("t", [2, 3, 1])
    before = three.epoch(2)
    await three.kill(2, notice=False)
    three.network.silent.clear()
    await three.start(2)
    assert three.epoch(2) > before
    await three.time.until(lambda: three.partition("t").leader == 3)
    assert three.partition("t").isr == [3, 1]
    await three.admit("t", 0, 2)
    await three.time.advance(1)
    assert three.partition("t").isr == [3, 1, 2]
    assert three.partition("t").isr_epochs[2] == three.epoch(2)


@pytest.mark.slow
async def test_leadership_goes_back_to_the_preferred_replica_after_a_while(three) -> None:
    await three.topic("t", [2, 3, 1])
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t").leader == 3)
    await three.start(2)
    await three.admit("t", 0, 2)
    took_s = await three.time.until(lambda: three.partition("t").leader == 2, limit_s=400)
    assert took_s > 200
    assert three.partition("t").leader_epoch == 2


async def test_a_broker_that_stops_in_good_order_hands_its_leaderships_over_first(three) -> None:
    await three.topic("t", *[[2, 3, 1], [2, 1, 3], [3, 2, 1], [2]])
    node = three.brokers[2]
    assert await three.finish(node.registration.request_handover(10)) is True
    assert [p.leader for p in three.view.topics["t"].partitions] == [3, 1, 3, 2]
    assert [p.isr for p in three.view.topics["t"].partitions] == [[2, 3, 1], [2, 1, 3], [3, 2, 1], [2]]
    await node.registration.leave()
    await three.time.until(lambda: three.partition("t", 3).leader == -1)
    assert [p.isr for p in three.view.topics["t"].partitions] == [[3, 1], [1, 3], [3, 1], [2]]
    assert not node.registration.lost.is_set()


async def test_the_last_replica_leads_again_when_it_is_back_with_its_directory(three) -> None:
    await three.topic("t", [2])
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t").leader == -1)
    assert three.partition("t").isr == [2]
    await three.start(2, was_unclean=True)
    await three.time.until(lambda: three.partition("t").leader == 2)
    assert three.partition("t").isr_epochs == [three.epoch(2)]
    assert three.partition("t").leader_epoch == 2


async def test_a_last_replica_whose_directory_was_replaced_does_not_lead(three) -> None:
    await three.topic("t", [2, 3], isr=[2])
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t").leader == -1)
    del three.directories[2]
    three.directories[2] = three.directories[1].__class__(int=999)
    await three.start(2)
    await three.time.advance(5)
    assert three.partition("t").leader == -1
    assert three.ends.queried == []


async def test_a_last_replica_that_relied_on_the_page_cache_and_lost_it_leads_only_after_all_were_asked(three) -> None:
    topic_id = await three.topic("t", [2, 3], overrides={"flush.messages": "1000", "min.insync.replicas": "2"})
    await three.kill(3, notice=True)
    await three.time.until(lambda: three.partition("t").isr == [2])
    assert three.partition("t").eligible == [3]
    await three.time.advance(10)  # a second failure within a lease would count as simultaneous
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t").leader == -1, limit_s=20)
    assert three.partition("t").last_isr == [2, 3]
    three.boots[2] = three.boots[3] = "boot-2"
    await three.start(2, was_unclean=True)
    await three.time.advance(3)
    assert three.partition("t").leader == -1
    assert three.ends.queried == []
    three.ends.known = {(2, topic_id, 0): (0, 10), (3, topic_id, 0): (0, 12)}
    await three.start(3, was_unclean=True)
    await three.time.until(lambda: three.partition("t").leader == 3)
    assert three.partition("t").isr == [3]


async def test_a_last_replica_of_which_recovery_cut_too_much_does_not_lead_by_itself(three) -> None:
    topic_id = await three.topic("t", [2])
    await three.topic("other", [2])
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t").leader == -1)
    three.damage[2] = [partition_name(topic_id, 0)]
    await three.start(2, was_unclean=True)
    await three.time.until(lambda: three.partition("other").leader == 2)
    assert three.partition("t").leader == -1
    three.damage.clear()
    await three.kill(2, notice=True)
    await three.start(2)
    await three.time.advance(12)
    assert three.partition("t").leader == -1, "a later start does not bring back what was cut"
    three.ends.known = {(2, topic_id, 0): (0, 3)}
    await three.time.until(lambda: three.partition("t").leader == 2)


async def test_an_unclean_election_needs_the_topics_permission(three) -> None:
    await three.topic("no", [2, 3], isr=[2])
    await three.topic("yes", [2, 3], isr=[2], overrides={"unclean.leader.election.enable": "true"})
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("yes").leader == 3)
    assert three.partition("no").leader == -1
    assert three.the_controller().term.keeper.elected_unclean == 1


async def test_a_last_replica_that_may_lack_something_is_elected_uncleanly_and_counted_so(three) -> None:
    topic_id = await three.topic("t", [2], overrides={"unclean.leader.election.enable": "true"})
    await three.topic("whole", [2], overrides={"unclean.leader.election.enable": "true"})
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t").leader == -1)
    three.damage[2] = [partition_name(topic_id, 0)]
    await three.start(2, was_unclean=True)
    await three.time.until(lambda: three.partition("t").leader == three.partition("whole").leader == 2)
    assert three.the_controller().term.keeper.elected_unclean == 1


async def test_a_controller_that_was_replaced_without_noticing_writes_nothing(three) -> None:
    """Its watch lags, so only the conditions of its transactions prevent the writes."""
    await three.topic("t", [2, 3, 1])
    term = three.the_controller().term
    term.leadership.revision -= 1  # as if another controller had been elected
    await three.store.txn([], [DeleteOp(keys.broker(2))])
    await three.time.until(term.leadership.lost.is_set)
    assert (term.writer.written, term.writer.transactions) == (0, 1)
    await three.time.until(lambda: three.partition("t").leader == 3)
    assert three.view.controller_epoch == 2


async def test_work_ends_at_once_when_the_controllers_key_is_gone(three) -> None:
    await three.topic("t", [2, 3, 1])
    term = three.the_controller().term
    await three.store.txn([], [DeleteOp(keys.CONTROLLER)])
    await three.time.until(lambda: three.view.controller_epoch == 2)
    assert term.leadership.lost.is_set()
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t").leader == 3)


async def test_a_partition_that_is_changed_meanwhile_does_not_hold_up_the_others(three) -> None:
    await three.topic("t", *[[2, 3, 1]] * 200)
    meddling = True

    async def meddle() -> None:
        while meddling:
            await three.change("t", 77, lambda record: replace(record, eligible=[] if record.eligible else [3]))

    task = asyncio.ensure_future(meddle())
    await three.kill(2, notice=True)
    others = [i for i in range(200) if i != 77]
    await three.time.until(lambda: all(three.partition("t", i).leader == 3 for i in others))
    meddling = False
    await task
    await three.time.until(lambda: three.partition("t", 77).leader == 3)


async def test_a_record_that_contradicts_itself_does_not_hold_up_the_others(three) -> None:
    await three.topic("t", [2, 3, 1], [2, 3, 1])
    await three.change("t", 0, lambda record: replace(record, replicas=[2]))
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t", 1).leader == 3)


async def test_topics_created_in_a_cluster_have_their_incarnations_and_are_spread(three) -> None:
    (outcome,) = await three.create("t", 6, 3)
    assert outcome.error is ErrorCode.NONE
    partitions = three.view.topics["t"].partitions
    assert sorted(p.leader for p in partitions) == [1, 1, 2, 2, 3, 3]
    assert all(p.isr_epochs == [three.epoch(b) for b in p.isr] for p in partitions)


async def test_a_new_controller_finds_what_happened_while_there_was_none(three) -> None:
    await three.topic("alone", [3])
    await three.topic("t", [3, 2])
    await three.kill(3)
    await three.store.txn([], [DeleteOp(keys.broker(3)), DeleteOp(keys.CONTROLLER)])
    await three.time.until(lambda: three.view.controller_epoch == 2)
    await three.time.until(lambda: three.partition("alone").leader == -1 and three.partition("t").leader == 2)
    await three.time.until(lambda: 3 in three.the_controller().term.registry.absent)


async def test_a_record_whose_epochs_do_not_match_the_isr_is_read_once_it_is_repaired(three) -> None:
    await three.topic("t", [2, 3, 1], [2, 3, 1])
    epochs = three.partition("t", 0).isr_epochs
    await three.change("t", 0, lambda record: replace(record, isr_epochs=record.isr_epochs[:1]))
    await three.kill(2, notice=True)
    await three.time.until(lambda: three.partition("t", 1).leader == 3)
    assert three.partition("t", 0).isr_epochs == epochs, "the last consistent value stays in effect"
    await three.change("t", 0, lambda record: replace(record, isr_epochs=epochs))
    await three.time.until(lambda: three.partition("t", 0).leader == 3)


async def test_a_preferred_election_survives_a_lost_compare(three) -> None:
    await three.topic("t", [1, 2, 3])
    await three.change("t", 0, lambda record: replace(record, leader=2))
    key = keys.partition(three.view.topics["t"].topic_id, 0)
    real = three.store.txn
    meddled = False

    async def meddling(compares, puts, otherwise=()):
        nonlocal meddled
        if not meddled and any(isinstance(put, PutOp) and put.key == key for put in puts):
            meddled = True
            entry = await three.store.get(key)
            await real([], [PutOp(key, entry.value)])
        return await real(compares, puts, otherwise)

    three.store.txn = meddling
    three.the_controller().term.keeper.prefer([PartitionId(three.view.topics["t"].topic_id, 0)])
    await three.time.until(lambda: three.partition("t").leader == 1, limit_s=30)
    assert meddled


async def test_writes_go_on_after_the_store_was_away(three) -> None:
    await three.topic("t", [2, 3, 1])
    real = three.store.txn

    async def away(*arguments):
        raise StoreUnavailable("away")

    three.store.txn = away
    await three.kill(2, notice=True)
    await three.time.advance(2)
    assert three.partition("t").leader == 2
    three.store.txn = real
    await three.time.until(lambda: three.partition("t").leader == 3)
