"""Batches of one producer in a partition keep their order, even if some wait for verification."""

from __future__ import annotations

import asyncio

import pytest
from brokers_kit import Client, E, Hold, TxnCluster
from scenes import begun

from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.schema import Payload


async def in_transaction(cluster: TxnCluster, transactional_id: str = "x") -> Client:
    """Return a client with an open transaction. Broker 1 coordinates x; broker 3 leads u, which has no batch yet."""
    await cluster.coordinate(1, transactional_id)
    await cluster.create("u", [3, 1, 2])
    client = await begun(cluster, transactional_id=transactional_id)
    assert await client.add("u") is E.NONE
    return client


def held_answer(cluster: TxnCluster) -> Hold:
    """Hold the coordinator's response to the next verification."""
    return cluster.hold(AddPartitionsToTxnRequest, 1, answers=True)


async def test_batches_that_arrive_in_any_turn_of_the_loop_are_appended_in_order(brokers: TxnCluster) -> None:
    """One batch arrives in each loop iteration while the verification's response is received, distributed and
    applied."""
    client = await in_transaction(brokers)
    answer = held_answer(brokers)
    sent = [client.send_batch(3, b"0", 0, "u")]
    await answer.has()
    answer.let_go()
    while not brokers[3].end("u") or len(sent) < 30:
        sent.append(client.send_batch(3, b"%d" % len(sent), len(sent), "u"))
        await asyncio.sleep(0)
    outcomes = [await client.outcome(3, exchange) for exchange in sent]
    assert outcomes == [(E.NONE, "")] * len(sent)
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(3, "u") == [b"%d" % n for n in range(len(sent))]


async def test_producers_do_not_wait_for_each_other(brokers: TxnCluster) -> None:
    client = await in_transaction(brokers)
    await brokers.coordinate(3, "y")
    other = await begun(brokers, 3, "y")
    assert await other.add("u") is E.NONE
    answer = held_answer(brokers)
    first = client.send_batch(3, b"first", 0, "u")
    await answer.has()
    assert await other.produce(3, b"other", "u") is E.NONE
    assert not first.completed
    answer.let_go()
    assert await client.outcome(3, first) == (E.NONE, "")


async def test_what_was_sent_behind_a_batch_that_could_not_be_verified_waits_for_it(brokers: TxnCluster) -> None:
    """The producer is new to the partition, which would otherwise accept the second batch and then never the first."""
    client = await in_transaction(brokers)
    brokers.lost_ways.add((3, 1))
    error, message = await client.outcome(3, client.send_batch(3, b"0", 0, "u"))
    assert error is E.NOT_ENOUGH_REPLICAS
    assert "coordinator cannot be reached" in message
    brokers.lost_ways.clear()
    assert await client.produce(3, b"1", "u", sequence=1) is E.NOT_ENOUGH_REPLICAS
    assert not brokers[3].end("u")
    assert await client.produce(3, b"0", "u", sequence=0) is E.NONE
    assert await client.produce(3, b"1", "u", sequence=1) is E.NONE


async def test_the_next_leader_epoch_knows_of_the_batches_that_were_refused(brokers: TxnCluster) -> None:
    client = await in_transaction(brokers)
    brokers.lost_ways.add((3, 1))
    assert await client.produce(3, b"0", "u", sequence=0) is E.NOT_ENOUGH_REPLICAS
    brokers.lost_ways.clear()
    epoch = brokers[3].leader("u").leader_epoch
    await brokers.elect(3, name="u")
    assert brokers[3].leader("u").leader_epoch > epoch
    assert await client.produce(3, b"1", "u", sequence=1) is E.NOT_ENOUGH_REPLICAS
    assert await client.produce(3, b"0", "u", sequence=0) is E.NONE


async def test_batches_behind_one_that_is_refused_share_its_verification(brokers: TxnCluster) -> None:
    client = await in_transaction(brokers)
    seen: list[Payload] = []
    brokers.hold(AddPartitionsToTxnRequest, 1, only=lambda request: seen.append(request) is not None)
    asked = brokers.hold(AddPartitionsToTxnRequest, 1)
    sent = [client.send_batch(3, b"%d" % n, n, "u") for n in range(5)]
    await asked.has()
    brokers.lost_ways.add((3, 1))
    asked.let_go()
    assert [(await client.outcome(3, exchange))[0] for exchange in sent] == [E.NOT_ENOUGH_REPLICAS] * 5
    assert len(seen) == 1


async def test_a_batch_of_the_next_leader_epoch_does_not_overtake_one_that_still_waits(brokers: TxnCluster) -> None:
    client = await in_transaction(brokers)
    answer = held_answer(brokers)
    first = client.send_batch(3, b"0", 0, "u")
    await answer.has()
    await brokers.elect(2, name="u")
    await brokers.elect(3, name="u")
    second = client.send_batch(3, b"1", 1, "u")
    answer.let_go()
    assert (await client.outcome(3, first))[0] is E.NOT_LEADER_OR_FOLLOWER
    assert (await client.outcome(3, second))[0] is E.NOT_LEADER_OR_FOLLOWER
    assert not brokers[3].end("u")
    assert await client.produce(3, b"0", "u", sequence=0) is E.NONE
    assert await client.produce(3, b"1", "u", sequence=1) is E.NONE


async def test_a_batch_that_is_sent_again_while_it_waits_is_written_once(brokers: TxnCluster) -> None:
    client = await in_transaction(brokers)
    answer = held_answer(brokers)
    sent = [client.send_batch(3, b"%d" % n, n, "u") for n in (0, 1, 0, 1, 2)]
    await answer.has()
    answer.let_go()
    assert [await client.outcome(3, exchange) for exchange in sent] == [(E.NONE, "")] * 5
    assert brokers[3].end("u") == 3


async def test_a_new_epoch_goes_on_behind_a_batch_of_the_old_one(brokers: TxnCluster) -> None:
    client = await in_transaction(brokers)
    answer = held_answer(brokers)
    old = client.send_batch(3, b"old", 0, "u")
    await answer.has()
    assert await client.init() is E.NONE
    assert await client.add("u") is E.NONE
    new = client.send_batch(3, b"new", 0, "u")
    answer.let_go()
    assert (await client.outcome(3, new))[0] is E.NONE
    assert (await client.outcome(3, old))[0] is not E.NONE
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(3, "u") == [b"new"]


@pytest.mark.parametrize(
    ("coordinator", "cause"), [(1, "cannot be reached"), (2, "not part of the ongoing transaction")]
)
async def test_a_refusal_names_its_cause(brokers: TxnCluster, coordinator: int, cause: str) -> None:
    await brokers.coordinate(coordinator, "x")
    await brokers.create("u", [3, 1, 2])
    client = await begun(brokers, coordinator)
    brokers.lost_ways.add((3, 1))
    error, message = await client.outcome(3, client.send_batch(3, b"0", 0, "u"))
    assert error is (E.NOT_ENOUGH_REPLICAS if coordinator == 1 else E.TRANSACTION_ABORTABLE)
    assert message.startswith('batch not verified for the transaction of "x": ')
    assert cause in message
