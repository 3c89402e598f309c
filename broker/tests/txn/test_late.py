"""Late messages between brokers affect no other transaction than their own."""

from __future__ import annotations

import asyncio

import pytest
from brokers_kit import Client, E, TxnCluster
from replica_kit import until
from scenes import begun, check_whole, scene, work

from penstock.state import keys
from penstock.state.records import OffsetRecord, TransactionRecord, TxnOffsetRecord, encode
from penstock.state.store import DeleteOp, PutOp
from penstock.txn.latest_transactions import MAX_PRODUCERS, LatestTransactions
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def done(cluster: TxnCluster) -> Client:
    """Return a client whose first transaction is complete."""
    client = await scene(cluster)
    assert await client.end() is E.NONE
    await cluster.reaches("x", "CompleteCommit")
    return client


# --- writes that were verified before the end of the transaction


async def test_a_batch_whose_transaction_ended_after_it_was_verified_is_refused(brokers: TxnCluster) -> None:
    client = await done(brokers)
    assert await client.add("u") is E.NONE
    answer = brokers.hold(AddPartitionsToTxnRequest, 1, answers=True)
    late = asyncio.ensure_future(client.produce(3, b"late", "u"))
    await answer.has()
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    answer.let_go()
    assert await late is E.NOT_ENOUGH_REPLICAS
    assert await client.produce(3, b"late", "u") is E.TRANSACTION_ABORTABLE
    leader = brokers[3].leader("u")
    assert leader.last_stable_offset == leader.high_watermark, "no transaction is left open"
    await check_whole(brokers, [1])


async def test_offsets_whose_transaction_ended_after_they_were_verified_are_refused(brokers: TxnCluster) -> None:
    client = await done(brokers)
    for committed in (True, False):
        assert await client.add_group("g") is E.NONE
        answer = brokers.hold(AddPartitionsToTxnRequest, 1, answers=True)
        late = asyncio.ensure_future(client.commit_offset(3, "g", 9))
        await answer.has()
        assert await client.end(committed) is E.NONE
        await brokers.reaches("x", "CompleteCommit" if committed else "CompleteAbort")
        answer.let_go()
        assert await late is E.COORDINATOR_LOAD_IN_PROGRESS
        assert await client.commit_offset(3, "g", 9) is E.INVALID_TXN_STATE
        await check_whole(brokers, [1])


async def test_offsets_that_were_verified_in_an_earlier_ownership_term_of_the_shard_are_refused(
    brokers: TxnCluster,
) -> None:
    """Another coordinator ended the transaction in the meantime; this one does not know it."""
    client = await done(brokers)
    assert await client.add_group("g") is E.NONE
    answer = brokers.hold(AddPartitionsToTxnRequest, 1, answers=True)
    late = asyncio.ensure_future(client.commit_offset(3, "g", 9))
    await answer.has()
    await brokers.coordinate(2, "g")
    assert await client.end(False) is E.NONE
    await brokers.reaches("x", "CompleteAbort")
    await brokers.coordinate(3, "g")
    answer.let_go()
    assert await late is E.COORDINATOR_NOT_AVAILABLE
    await check_whole(brokers, [1])


async def test_a_batch_that_was_verified_under_an_earlier_leadership_is_refused(brokers: TxnCluster) -> None:
    client = await done(brokers)
    assert await client.add("u") is E.NONE
    answer = brokers.hold(AddPartitionsToTxnRequest, 1, answers=True)
    late = asyncio.ensure_future(client.produce(3, b"late", "u"))
    await answer.has()
    await brokers.elect(2, name="u")
    assert await client.end(False) is E.NONE
    await brokers.reaches("x", "CompleteAbort")
    await brokers.elect(3, name="u")
    answer.let_go()
    end = brokers[3].end("u")
    assert await late is E.NOT_LEADER_OR_FOLLOWER
    assert brokers[3].end("u") == end
    assert not brokers[3].leader("u").producers.transactions.open, "no transaction is left open"
    await check_whole(brokers, [1])


async def test_batches_of_one_producer_that_are_verified_together_keep_their_order(brokers: TxnCluster) -> None:
    client = await done(brokers)
    assert await client.add("u") is E.NONE
    answer = brokers.hold(AddPartitionsToTxnRequest, 1, answers=True)
    sent = [asyncio.ensure_future(client.produce(3, b"%d" % n, "u", sequence=n + 1)) for n in range(5)]
    await answer.has()
    answer.let_go()
    assert await asyncio.gather(*sent) == [E.NONE] * 5
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(3, "u") == [b"1", b"0", b"1", b"2", b"3", b"4"]


# --- requests that arrive after their sender has failed


async def test_the_end_of_one_transaction_never_ends_the_next(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    brokers.straying = WriteTxnMarkersRequest, 3
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert len(brokers.strays) == 1
    await work(client, 2)
    assert await brokers.arrive() == [{E.TRANSACTION_COORDINATOR_FENCED}]
    assert await brokers.visible(3, "u") == [b"1"]
    assert len(await brokers.pending()) == 1
    assert await client.end(False) is E.NONE
    await brokers.reaches("x", "CompleteAbort")
    await check_whole(brokers, [1])


async def test_nor_does_it_where_neither_the_leader_nor_the_groups_coordinator_heard_of_the_next(
    brokers: TxnCluster,
) -> None:
    client = await scene(brokers)
    brokers.straying = WriteTxnMarkersRequest, 3
    await brokers.coordinate(2, "x")
    client.coordinator = 2
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await brokers.elect(2, name="u")
    await brokers.coordinate(2, "g")
    await work(client, 2, u=2, g=2)
    await brokers.elect(3, name="u")
    await brokers.coordinate(3, "g")
    brokers[3].txns.verifier._latest._last.clear()
    assert await brokers.arrive() == [{E.FENCED_LEADER_EPOCH, E.NONE}]
    assert await brokers.visible(3, "u") == [b"1"]
    assert len(await brokers.pending()) == 1
    assert await client.end(False) is E.NONE
    await brokers.reaches("x", "CompleteAbort")
    await check_whole(brokers, [1])


async def test_an_answer_that_is_lost_is_made_up_for_and_nothing_is_written_twice(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    answer = brokers.hold(WriteTxnMarkersRequest, 3, answers=True)
    assert await client.end() is E.NONE
    await answer.has()
    end = brokers[3].end("u")
    brokers.lost_ways.add((1, 3))
    answer.let_go()
    await asyncio.sleep(0.1)
    assert (await brokers.transaction("x")).state == "PrepareCommit"
    brokers.lost_ways.clear()
    await brokers.reaches("x", "CompleteCommit")
    assert brokers[3].end("u") == end
    await check_whole(brokers, [1])


# --- fenced producers and recreated topics


async def test_a_second_producer_fences_the_first_at_every_broker(brokers: TxnCluster) -> None:
    zombie = await scene(brokers)
    successor = await begun(brokers)
    await check_whole(brokers, [])
    assert await zombie.produce(2, b"zombie", "t", sequence=1) is E.INVALID_PRODUCER_EPOCH
    assert await zombie.produce(3, b"zombie", "u", sequence=1) is E.INVALID_PRODUCER_EPOCH
    assert await zombie.commit_offset(3, "g", 9) is E.INVALID_PRODUCER_EPOCH
    assert await zombie.end() is E.PRODUCER_FENCED
    await work(successor, 2)
    assert await successor.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [2])


async def test_a_topic_made_anew_under_its_name_shares_nothing_with_the_transaction(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    await brokers[1].watcher.stop()
    old = brokers[2].view.topics["t"]
    removed = [
        DeleteOp(keys.topic_name("t")),
        DeleteOp(keys.topic(old.topic_id)),
        DeleteOp(keys.partition(old.topic_id, 0)),
    ]
    await brokers.store.txn([], removed)
    await recreate(brokers)
    assert brokers[1].view.topics["t"].topic_id == old.topic_id
    assert await client.produce(2, b"new", "t", sequence=0) is E.TRANSACTION_ABORTABLE
    assert await client.end() is E.NONE
    await until(lambda: brokers[3].leader("u").last_stable_offset == 2)
    brokers[1].view.topics_by_id.pop(old.topic_id)
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(3, "u") == [b"1"]
    assert brokers[2].leader("t").log.end_offset == 0, "no marker came to the new one"


async def recreate(brokers: TxnCluster) -> None:
    """Recreate topic t while broker 1's view is frozen."""
    frozen = brokers.brokers.pop(1)
    await brokers.create("t", [2, 3])
    brokers.brokers[1] = frozen


# --- manual markers, and pending offsets


async def test_what_hangs_can_be_ended_by_hand_in_groups_too(brokers: TxnCluster) -> None:
    client = await scene(brokers)
    topics = [
        WritableTxnMarkerTopic(name="u", partition_indexes=[0]),
        WritableTxnMarkerTopic(name="__consumer_offsets", partition_indexes=[keys.shard_of("g")]),
    ]
    marker = WritableTxnMarker(
        producer_id=client.producer.producer_id,
        producer_epoch=client.producer.epoch,
        transaction_result=False,
        coordinator_epoch=1,
        topics=topics,
    )
    answer = await brokers[3].ask(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, 1)
    assert [p.error_code for t in answer.markers[0].topics for p in t.partitions] == [E.NONE, E.NONE]
    assert brokers[3].leader("u").last_stable_offset == 2
    assert await brokers.pending() == []


@pytest.mark.parametrize(
    ("state", "number", "stays"),
    [
        ("Ongoing", 5, True),
        ("PrepareCommit", 5, True),
        ("PrepareAbort", 5, True),
        ("CompleteCommit", 5, False),
        ("Ongoing", 6, False),
        ("Empty", 4, True),
        (None, 0, False),
    ],
)
async def test_only_offsets_of_transactions_that_are_complete_for_good_are_dropped(
    brokers: TxnCluster, state: str | None, number: int, stays: bool
) -> None:
    topic_id = await brokers.create("t", [2, 3, 1])
    pending = TxnOffsetRecord(transactional_id="x", epoch=0, record=OffsetRecord(offset=9), number=5)
    puts = [PutOp(keys.txn_offset("g", 77, topic_id, 0), encode(pending))]
    if state is not None:
        record = TransactionRecord(
            producer_id=77, epoch=0, state=state, timeout_ms=10**8, number=number, updated_ms=brokers.clock.wall_ms()
        )
        puts.append(PutOp(keys.transaction("x"), encode(record)))
    await brokers.store.txn([], puts)
    await brokers.coordinate(3, "g")
    assert await brokers.committed("g") in (E.UNSTABLE_OFFSET_COMMIT, -1)
    orphans = brokers[3].txns._orphans
    await until(lambda: orphans._task is None)
    await brokers[3].groups.offsets.writers.drain()
    assert len(await brokers.pending()) == stays
    assert await brokers.committed("g") == (E.UNSTABLE_OFFSET_COMMIT if stays else -1)


def test_what_was_heard_last_of_a_producer_decides_what_is_late() -> None:
    latest = LatestTransactions()
    assert latest.observe_ongoing(1, 5)
    assert latest.observe_ongoing(1, 5), "another partition of it"
    assert not latest.observe_ended(1, 4)
    assert latest.observe_ended(1, 5)
    assert latest.observe_ended(1, 5), "repeated"
    assert not latest.observe_ongoing(1, 5)
    assert latest.observe_ongoing(1, 6)
    assert latest.observe_ongoing(2, 1), "another producer"
    assert latest.observe_ended(1, -1), "by hand"
    assert latest.observe_ongoing(1, 6)


def test_what_is_remembered_of_producers_is_bounded() -> None:
    latest = LatestTransactions()
    for producer_id in range(MAX_PRODUCERS + 10):
        assert latest.observe_ended(producer_id, 1)
    assert len(latest._last) == MAX_PRODUCERS
    assert not latest.observe_ongoing(MAX_PRODUCERS, 1)
