"""Transactions across brokers are atomic, whichever coordinator or leader fails over in between."""

from __future__ import annotations

import pytest
from brokers_kit import Client, E, TxnCluster
from replica_kit import until
from scenes import check_whole, leave_isr, scene, work

from penstock.state import keys
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.write_txn_markers import WriteTxnMarkersRequest

# --- without failures


async def test_what_other_brokers_hold_of_a_transaction_counts_with_its_end(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    assert await brokers.visible(2, "t") == []
    assert await brokers.committed("g") is E.UNSTABLE_OFFSET_COMMIT
    assert await brokers.committed("g", stable=False) == -1
    assert await client.end(False) is E.NONE
    await brokers.reaches("x", "CompleteAbort")
    await check_whole(brokers, [])
    await work(client, 2)
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [2])


async def test_everybody_tells_who_coordinates_a_transactional_id(brokers: TxnCluster) -> None:
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])

    async def told() -> list[tuple[int, int]]:
        answers = [await b.ask(request, FindCoordinatorResponse, 4) for b in brokers.brokers.values()]
        return [(a.coordinators[0].error_code, a.coordinators[0].node_id) for a in answers]

    assert await told() == [(E.COORDINATOR_NOT_AVAILABLE, -1)] * 3
    await brokers.coordinate(2, "x")
    assert [b.txns.coordinator.coordinator_of("x") for b in brokers.brokers.values()] == [2, 2, 2]
    for other in (1, 3):
        assert await Client(brokers, "x", other).init() is E.NOT_COORDINATOR


@pytest.mark.slow
async def test_until_a_shard_is_loaded_producers_are_told_to_wait(brokers: TxnCluster) -> None:
    brokers[1].line.is_cut = True
    await brokers.give(keys.shard_of("x"), 1, waits=False)
    client = Client(brokers, "x", 1)
    await until(lambda: brokers[1].view.shards)
    assert await client.init() is E.COORDINATOR_LOAD_IN_PROGRESS
    brokers[1].line.is_cut = False
    await until(lambda: brokers[1].owns(keys.shard_of("x")))
    assert await client.init() is E.NONE


async def test_without_its_lease_a_coordinator_decides_nothing(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    brokers[1].membership.serves = False
    assert await client.end() is E.NOT_COORDINATOR
    assert await client.produce(3, b"later", "u", 0) is E.NONE, "what was verified goes on"
    assert (await brokers.transaction("x")).state == "Ongoing"


async def test_a_transaction_is_complete_when_its_markers_are_on_all_replicas_that_count(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    await brokers.caught_up(2, 1, 3, name="t")
    for follower in (1, 3):
        brokers.cut(follower, 2)
    assert await client.end() is E.NONE
    end = brokers[2].end("t")
    await until(lambda: brokers[2].end("t") > 1)
    assert brokers[2].leader("t").high_watermark < brokers[2].end("t"), end
    assert (await brokers.transaction("x")).state == "PrepareCommit"
    assert await brokers.visible(2, "t") == []
    brokers.heal()
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [1])


# --- moves of the transaction coordinator


async def test_an_open_transaction_goes_on_at_the_next_coordinator(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    await brokers.coordinate(2, "x")
    assert await client.end() is E.NOT_COORDINATOR
    client.coordinator = 2
    assert await client.produce(3, b"more", "u") is E.NONE
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(3, "u") == [b"1", b"more"]
    assert await brokers.committed("g") == 1


@pytest.mark.parametrize("committed", [True, False])
async def test_a_decision_of_which_half_is_told_is_told_whole_by_the_next_coordinator(
    brokers: TxnCluster, committed: bool
) -> None:
    client = await scene(brokers)
    held = brokers.hold(WriteTxnMarkersRequest, 3)
    assert await client.end(committed) is E.NONE
    await held.has()
    await until(lambda: brokers[2].leader("t").last_stable_offset == 2)
    await brokers.kill(1)
    await leave_isr(brokers)
    assert await brokers.visible(3, "u") == []
    brokers.holds.clear()
    await brokers.coordinate(2, "x")
    done = await brokers.reaches("x", "CompleteCommit" if committed else "CompleteAbort")
    assert done.partitions == {}
    await check_whole(brokers, [1] if committed else [])
    held.let_go()


async def test_a_coordinator_that_does_not_know_that_it_was_replaced_changes_nothing(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    await brokers[1].watcher.stop()
    await brokers.give(keys.shard_of("x"), 2, waits=False)
    await until(lambda: brokers[2].owns(keys.shard_of("x")))
    successor = Client(brokers, "x", 2)
    assert await successor.init() is E.NONE
    assert await client.end() is E.NOT_COORDINATOR, "it finds out when it writes"
    assert (await brokers.transaction("x")).state == "Empty"
    await check_whole(brokers, [])


async def test_who_was_replaced_and_does_not_know_it_vouches_for_nothing_that_has_ended(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    for broker_id in (1, 3):
        await brokers[broker_id].watcher.stop()
    await brokers.give(keys.shard_of("x"), 2, waits=False)
    await until(lambda: brokers[2].owns(keys.shard_of("x")))
    client.coordinator = 2
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert not brokers[1].txns.coordinator.verify("x", client.producer, brokers[1].view.topics["u"].topic_id, 0).error
    assert await client.produce(3, b"late", "u", sequence=1) is E.NOT_ENOUGH_REPLICAS
    assert await client.commit_offset(3, "g", 9) is E.COORDINATOR_LOAD_IN_PROGRESS
    await check_whole(brokers, [1])


async def test_a_transaction_that_takes_too_long_is_aborted_by_whoever_coordinates_it_then(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    await brokers.kill(1)
    await leave_isr(brokers)
    brokers.clock.advance(120_000)
    await brokers.coordinate(2, "x")
    done = await brokers.reaches("x", "CompleteAbort")
    assert done.epoch == client.producer.epoch + 1
    await check_whole(brokers, [])
    client.coordinator = 2
    assert await client.end() is E.PRODUCER_FENCED
    assert await client.produce(2, b"zombie", "t", sequence=1) is E.INVALID_PRODUCER_EPOCH
    assert await client.init(claimed=True) is E.NONE, "who took too long may go on by naming its old epoch"
    await work(client, 2)
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [2])


async def test_after_all_brokers_were_killed_what_was_decided_is_completed(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    held = [brokers.hold(WriteTxnMarkersRequest, broker_id) for broker_id in (2, 3)]
    assert await client.end() is E.NONE
    for hold in held:
        await hold.has()
    for broker_id in (1, 2, 3):
        await brokers.kill(broker_id)
    for hold in held:
        hold.let_go()
    for broker_id in (1, 2, 3):
        await brokers.start(broker_id)
    await brokers.elect(2, [2, 3, 1], "t")
    await brokers.elect(3, [3, 1, 2], "u")
    await brokers.coordinate(2, "x")
    await brokers.coordinate(1, "g")
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [1])


# --- moves of the group coordinator


async def test_pending_offsets_are_pending_at_the_next_coordinator_of_the_group(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    await brokers.coordinate(2, "g")
    assert await brokers.committed("g") is E.UNSTABLE_OFFSET_COMMIT
    assert not brokers[3].txns.offsets.pending("g")
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert brokers[2].owns(keys.shard_of("g"))
    await check_whole(brokers, [1])


async def test_a_decision_follows_the_group_to_its_next_coordinator(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    held = brokers.hold(WriteTxnMarkersRequest, 3)
    assert await client.end() is E.NONE
    await held.has()
    await brokers.coordinate(2, "g")
    held.let_go()
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [1])


async def test_who_does_not_know_that_it_lost_the_group_does_not_say_that_nothing_was_pending(
    brokers: TxnCluster,
) -> None:
    client = await scene(brokers)
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    for broker_id in (1, 3):
        await brokers[broker_id].watcher.stop()
    await brokers.give(keys.shard_of("g"), 2, waits=False)
    await until(lambda: brokers[2].owns(keys.shard_of("g")))
    assert await client.add_group("g") is E.NONE
    assert await client.commit_offset(2, "g", 2) is E.NONE
    refused = brokers.hold(WriteTxnMarkersRequest, 3, answers=True)
    assert await client.end() is E.NONE
    await refused.has()
    assert (await brokers.transaction("x")).state == "PrepareCommit"
    assert len(await brokers.pending()) == 1
    refused.let_go()
    brokers[1].view.shards = brokers[2].view.shards
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.pending() == []


async def test_offsets_without_an_answer_of_the_store_are_decided_like_the_others(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    for took_effect in (True, False):
        brokers[3].line.holds = keys.TXN_OFFSETS
        assert await client.commit_offset(3, "g", 50) is E.COORDINATOR_NOT_AVAILABLE
        brokers[3].line.holds = ""
        if took_effect:
            assert await brokers[3].line.deliver() == [True]
        assert await client.end(False) is E.NONE
        await brokers.reaches("x", "CompleteAbort")
        assert await brokers.pending() == []
        if not took_effect:
            assert await brokers[3].line.deliver() == [False], "shut out before anything else is written"
        assert await brokers.pending() == []
        assert await brokers.committed("g") == -1
        await work(client, 2)
