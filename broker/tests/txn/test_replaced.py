"""A deposed coordinator with a valid lease never returns a fatal error to a producer of the shard."""

from __future__ import annotations

import asyncio

import pytest
from brokers_kit import Client, E, TxnCluster
from replica_kit import until
from scenes import begun

from penstock.state import keys
from penstock.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from penstock.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse


async def moved_unseen(cluster: TxnCluster, *unseeing: int) -> None:
    """Move the shard of x to broker 2, with the views of some brokers frozen."""
    for broker_id in unseeing:
        await cluster[broker_id].watcher.stop()
    await cluster.give(keys.shard_of("x"), 2, waits=False)
    await until(lambda: cluster[2].owns(keys.shard_of("x")))


@pytest.mark.parametrize("leader", [1, 3], ids=["itself", "asked by another"])
@pytest.mark.parametrize("remembers", ["nothing", "an earlier instance", "no transaction"])
async def test_who_was_replaced_and_does_not_know_it_refuses_nothing_for_good(
    brokers: TxnCluster, leader: int, remembers: str
) -> None:
    await brokers.coordinate(1, "x")
    await brokers.coordinate(leader, "g")
    await brokers.create("t", [leader, 2, 4 - leader])
    client = Client(brokers, "x", 1)
    if remembers != "nothing":
        assert await client.init() is E.NONE
    await moved_unseen(brokers, *{1, leader})
    client.coordinator = 2
    if remembers != "no transaction":
        assert await client.init() is E.NONE
    assert await client.add("t") is E.NONE
    assert await client.add_group("g") is E.NONE
    assert brokers[leader].txns.coordinator.coordinator_of("x") == 1
    assert await client.produce(leader, b"1") is E.NOT_ENOUGH_REPLICAS
    assert await client.commit_offset(leader, "g", 1) is E.COORDINATOR_LOAD_IN_PROGRESS
    brokers[leader].view.shards = brokers[2].view.shards
    assert await client.produce(leader, b"1") is E.NONE
    assert await client.commit_offset(leader, "g", 1) is E.NONE
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(leader) == [b"1"]
    assert await brokers.committed("g") == 1


async def test_an_end_that_is_asked_for_again_is_that_of_the_transaction_that_ended(brokers: TxnCluster) -> None:
    await brokers.coordinate(1, "x")
    await brokers.create("t", [2, 3, 1])
    client = await begun(brokers)
    assert await client.add("t") is E.NONE
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await moved_unseen(brokers, 1)
    client.coordinator = 2
    assert await client.add("t") is E.NONE
    client.coordinator = 1
    assert await client.end() is E.NOT_COORDINATOR, "the one before was committed: this one is not"
    assert (await brokers.transaction("x")).state == "Ongoing"


async def test_who_has_the_shard_refuses_for_good_as_soon_as_the_store_has_said_so(brokers: TxnCluster) -> None:
    await brokers.coordinate(1, "x", "g")
    await brokers.create("t", [1, 2, 3])
    await brokers.create("u", [3, 1, 2])
    client = await begun(brokers)
    brokers[1].line.is_cut = True
    for leader, name in ((1, "t"), (3, "u")):
        assert await client.produce(leader, b"1", name) is E.NOT_ENOUGH_REPLICAS
    assert await client.commit_offset(1, "g", 1) is E.COORDINATOR_LOAD_IN_PROGRESS
    brokers[1].line.is_cut = False
    for leader, name in ((1, "t"), (3, "u")):
        assert await client.produce(leader, b"1", name) is E.TRANSACTION_ABORTABLE
    assert await client.commit_offset(1, "g", 1) is E.INVALID_TXN_STATE


async def test_batches_keep_their_order_while_the_store_is_asked(
    brokers: TxnCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await brokers.coordinate(1, "x")
    await brokers.create("t", [1, 2, 3])
    client = await begun(brokers)
    coordinator = brokers[1].txns.coordinator
    asked, opened, confirmed = asyncio.Event(), asyncio.Event(), coordinator.confirm_ownership

    async def held(transactional_id: str) -> E:
        asked.set()
        await opened.wait()
        return await confirmed(transactional_id)

    monkeypatch.setattr(coordinator, "confirm_ownership", held)
    first = asyncio.ensure_future(client.produce(1, b"0", sequence=0))
    await asked.wait()
    assert await client.add("t") is E.NONE
    second = asyncio.ensure_future(client.produce(1, b"1", sequence=1))
    await asyncio.sleep(0.05)
    assert not brokers[1].end("t")
    opened.set()
    assert await asyncio.gather(first, second) == [E.NONE, E.NONE]
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(1) == [b"0", b"1"]


async def test_who_was_replaced_and_does_not_know_it_reports_no_transaction(brokers: TxnCluster) -> None:
    await brokers.coordinate(1, "x")
    await begun(brokers)
    listing, description = ListTransactionsRequest(), DescribeTransactionsRequest(transactional_ids=["x"])

    async def reported(broker_id: int) -> tuple[list[str], int]:
        listed = await brokers[broker_id].ask(listing, ListTransactionsResponse, 1)
        described = await brokers[broker_id].ask(description, DescribeTransactionsResponse, 0)
        return [one.transactional_id for one in listed.transaction_states], described.transaction_states[0].error_code

    assert await reported(1) == (["x"], E.NONE)
    await moved_unseen(brokers, 1)
    assert await reported(2) == (["x"], E.NONE)
    assert await reported(1) == ([], E.NOT_COORDINATOR)


async def test_transactions_are_not_reported_while_the_store_cannot_be_asked(brokers: TxnCluster) -> None:
    await brokers.coordinate(1, "x")
    await begun(brokers)
    brokers[1].line.is_cut = True
    answer = await brokers[1].ask(ListTransactionsRequest(), ListTransactionsResponse, 1)
    assert (answer.error_code, answer.transaction_states) == (E.COORDINATOR_NOT_AVAILABLE, [])
