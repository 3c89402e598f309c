"""Producers with an expired, unassigned or empty id are never fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from brokers_kit import Client, E, TxnCluster
from scenes import begun

from penstock.control.group_settings import MAX_GROUP_ID_CHARS
from penstock.state import keys
from penstock.txn.state_machine import ProducerIdentity
from penstock.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse


async def expired(cluster: TxnCluster) -> Client:
    """Return a producer that committed once and whose transactional id then expired; broker 2 owns the shard."""
    await cluster.coordinate(1, "x")
    await cluster.create("t", [3, 1, 2])
    client = await begun(cluster)
    assert await client.add("t") is E.NONE
    assert await client.produce(3, b"1") is E.NONE
    assert await client.end() is E.NONE
    await cluster.reaches("x", "CompleteCommit")
    cluster.clock.advance(cluster[1].config.transactional_id_expiration_ms)
    await cluster.coordinate(2, "x")
    client.coordinator = 2
    async with asyncio.timeout(60):
        while await cluster.store.get(keys.transaction("x")) is not None:
            await asyncio.sleep(0.01)
    return client


async def test_a_producer_whose_transactional_id_has_expired_goes_on_after_it_was_initialized(
    brokers: TxnCluster,
) -> None:
    client = await expired(brokers)
    before = client.producer
    assert await client.add("t") is E.INVALID_PRODUCER_ID_MAPPING
    error, message = await client.outcome(3, client.send_batch(3, b"2", 1))
    assert error is E.INVALID_PRODUCER_ID_MAPPING
    assert "expired" in message
    assert await client.end(False) is E.INVALID_PRODUCER_ID_MAPPING
    assert await client.init(claimed=True) is E.NONE
    assert client.producer.producer_id != before.producer_id
    assert await client.add("t") is E.NONE
    assert await client.produce(3, b"2") is E.NONE
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(3) == [b"1", b"2"]


async def test_a_commit_is_not_answered_as_done_after_its_transactional_id_has_expired(brokers: TxnCluster) -> None:
    """The coordinator no longer knows the outcome; a client that retries must not count the transaction twice."""
    client = await expired(brokers)
    assert await client.end(True) is E.INVALID_PRODUCER_ID_MAPPING


async def test_a_producer_is_fenced_where_another_instance_has_its_expired_transactional_id(
    brokers: TxnCluster,
) -> None:
    client = await expired(brokers)
    other = await begun(brokers, 2)
    assert await client.init(claimed=True) is E.PRODUCER_FENCED
    assert await other.add("t") is E.NONE


async def test_clients_that_claim_id_0_and_epoch_0_by_default_fence_each_other(brokers: TxnCluster) -> None:
    await brokers.coordinate(1, "x")
    first, second = Client(brokers, "x", 1), Client(brokers, "x", 1)
    second.producer = first.producer = ProducerIdentity(0, 0)
    assert await first.init(claimed=True) is E.NONE
    assert await second.init(claimed=True) is not E.NONE or second.producer != first.producer


Ask = Callable[[Client], Awaitable[E]]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.add("t"),
        lambda client: client.add_group("g"),
        lambda client: client.end(),
        lambda client: client.produce(3, b"1"),
    ],
    ids=["AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "Produce"],
)
async def test_an_empty_transactional_id_is_an_invalid_request(brokers: TxnCluster, ask: Ask) -> None:
    await brokers.coordinate(1, "")
    await brokers.create("t", [3, 1, 2])
    client = Client(brokers, "", 1)
    client.producer = ProducerIdentity(4711, 0)
    assert await ask(client) is E.INVALID_REQUEST


async def test_an_empty_transactional_id_cannot_be_described(brokers: TxnCluster) -> None:
    request = DescribeTransactionsRequest(transactional_ids=[""])
    answer = await brokers[1].ask(request, DescribeTransactionsResponse, 0)
    assert answer.transaction_states[0].error_code == E.INVALID_REQUEST


async def test_the_producer_is_examined_before_the_group_that_it_names(brokers: TxnCluster) -> None:
    await brokers.coordinate(1, "x")
    client = await begun(brokers)
    assert await client.add_group("") is E.NONE
    assert await client.add_group("g" * (MAX_GROUP_ID_CHARS + 1)) is E.INVALID_GROUP_ID
    client.producer = ProducerIdentity(4711, 0)
    assert await client.add_group("") is E.INVALID_PRODUCER_ID_MAPPING


async def test_a_batch_of_an_epoch_that_was_never_given_is_of_an_invalid_epoch_in_an_open_transaction(
    brokers: TxnCluster,
) -> None:
    await brokers.coordinate(1, "x")
    await brokers.create("t", [3, 1, 2])
    client = await begun(brokers)
    assert await client.add("t") is E.NONE
    assert await client.produce(3, b"1") is E.NONE
    client.producer = client.producer._replace(epoch=client.producer.epoch + 1)
    assert await client.produce(3, b"2", sequence=0) is E.INVALID_PRODUCER_EPOCH
