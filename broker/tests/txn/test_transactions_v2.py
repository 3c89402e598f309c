"""Transactions v2 across brokers (KIP-890, part 2): nothing is added by the client, and each end raises the epoch."""

from __future__ import annotations

import asyncio

import pytest
from brokers_kit import Client, ClientV2, E, TxnCluster
from replica_kit import until
from scenes import begun, check_whole, leave_isr, scene, work

from penstock.state import keys
from penstock.state.records import ClusterRecord, decode, encode
from penstock.state.store import PutOp
from penstock.txn.state_machine import MAX_EPOCH, MAX_PRODUCER_EPOCH, ProducerIdentity
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.write_txn_markers import WriteTxnMarkersRequest


def raised(producer: ProducerIdentity) -> ProducerIdentity:
    return producer._replace(epoch=producer.epoch + 1)


async def resend_end(
    cluster: TxnCluster, coordinator: int, before: ProducerIdentity, committed: bool
) -> EndTxnResponse:
    """Send EndTxn 5 with the identity of the ended transaction, repeated while the markers are being written."""
    request = EndTxnRequest(
        transactional_id="x", producer_id=before.producer_id, producer_epoch=before.epoch, committed=committed
    )
    async with asyncio.timeout(30):
        while True:
            answer = await cluster[coordinator].ask(request, EndTxnResponse, 5)
            if answer.error_code != E.CONCURRENT_TRANSACTIONS:
                return answer
            await asyncio.sleep(0.01)


async def set_level(cluster: TxnCluster, level: int) -> None:
    """Set the cluster's feature level, as if an older version had created it."""
    entry = await cluster.store.get(keys.CLUSTER)
    assert entry is not None
    record = decode(ClusterRecord, entry.key, entry.value)
    older = ClusterRecord(cluster_id=record.cluster_id, feature_level=level)
    await cluster.applied((await cluster.store.txn([], [PutOp(keys.CLUSTER, encode(older))])).revision)


@pytest.mark.parametrize("coordinator", [1, 2, 3])
async def test_batches_and_offsets_add_themselves_and_each_end_raises_the_epoch(
    brokers: TxnCluster, coordinator: int
) -> None:
    await brokers.coordinate(coordinator, "x")
    await brokers.coordinate(3, "g")
    await brokers.create("t", [2, 3, 1])
    await brokers.create("u", [3, 1, 2])
    client = await begun(brokers, coordinator, kind=ClientV2)
    shown: list[int] = []
    for number, committed in enumerate((True, False, True, True)):
        before = client.producer
        await work(client, number)
        record = await brokers.transaction("x")
        assert (record.state, sum(map(len, record.partitions.values())), record.groups) == ("Ongoing", 2, ["g"])
        assert await client.end(committed) is E.NONE
        assert client.producer == raised(before)
        shown += [number] * committed
        await brokers.reaches("x", "CompleteCommit" if committed else "CompleteAbort")
        await check_whole(brokers, shown)


async def test_the_next_transaction_waits_until_the_markers_of_the_one_before_are_written(brokers: TxnCluster) -> None:
    client = await scene(brokers, ClientV2)
    held = brokers.hold(WriteTxnMarkersRequest, 3)
    assert await client.end() is E.NONE
    await held.has()
    early = client.send_batch(3, b"2", 0, "u")
    assert (await client.outcome(3, early))[0] is E.NOT_ENOUGH_REPLICAS
    following = asyncio.ensure_future(work(client, 2))
    held.let_go()
    await following
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [1, 2])


async def test_batches_that_arrive_while_their_partition_is_added_keep_their_order(brokers: TxnCluster) -> None:
    client = await scene(brokers, ClientV2)
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    answer = brokers.hold(AddPartitionsToTxnRequest, 1, answers=True)
    sent = [client.send_batch(3, b"%d" % n, n, "u") for n in range(5)]
    await answer.has()
    answer.let_go()
    assert [(await client.outcome(3, one))[0] for one in sent] == [E.NONE] * 5
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(3, "u") == [b"1", b"0", b"1", b"2", b"3", b"4"]


# --- fencing


@pytest.mark.parametrize("committed", [True, False])
async def test_a_late_batch_of_an_ended_transaction_is_fenced_in_every_partition_also_after_a_failover(
    brokers: TxnCluster, committed: bool
) -> None:
    client = await scene(brokers, ClientV2)
    await brokers.create("v", [2, 3, 1])
    late = Client(brokers, "x", 1)
    late.produce_version, late.producer = 12, client.producer
    assert await client.end(committed) is E.NONE
    await brokers.reaches("x", "CompleteCommit" if committed else "CompleteAbort")
    for leader, name, sequence in ((2, "t", 1), (3, "u", 1), (2, "v", 0)):
        assert await late.produce(leader, b"late", name, sequence=sequence) is E.INVALID_PRODUCER_EPOCH
    await brokers.elect(3, name="t")
    assert await late.produce(3, b"late", "t", sequence=1) is E.INVALID_PRODUCER_EPOCH
    assert not brokers[3].leader("t").producers.transactions.open, "no transaction is left open"
    assert not brokers[2].leader("v").producers.transactions.open, "no transaction is left open"
    late.commit_version = 5
    assert await late.commit_offset(3, "g", 9) is E.INVALID_PRODUCER_EPOCH
    await check_whole(brokers, [1] if committed else [], t=3)


async def test_a_batch_whose_partition_was_added_before_the_end_and_that_is_written_after_it_is_fenced(
    brokers: TxnCluster,
) -> None:
    client = await scene(brokers, ClientV2)
    await brokers.create("v", [2, 3, 1])
    answer = brokers.hold(AddPartitionsToTxnRequest, 1, answers=True)
    late = client.send_batch(2, b"late", 0, "v")
    await answer.has()
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    answer.let_go()
    error, _ = await client.outcome(2, late)
    assert error in (E.INVALID_PRODUCER_EPOCH, E.NOT_ENOUGH_REPLICAS)
    assert await brokers.visible(2, "v") == []
    assert not brokers[2].leader("v").producers.transactions.open, "no transaction is left open"


@pytest.mark.parametrize("kinds", [(Client, ClientV2), (ClientV2, Client)])
async def test_clients_of_both_versions_fence_each_other_on_one_transactional_id(
    brokers: TxnCluster, kinds: tuple[type[Client], type[Client]]
) -> None:
    old = await scene(brokers, kinds[0])
    heir = await begun(brokers, kind=kinds[1])
    await brokers.reaches("x", "Empty")
    assert await old.produce(2, b"zombie", "t", sequence=1) is E.INVALID_PRODUCER_EPOCH
    assert await old.commit_offset(3, "g", 9) is E.INVALID_PRODUCER_EPOCH
    assert await old.end() is E.PRODUCER_FENCED
    assert await old.end(False) is E.PRODUCER_FENCED
    await work(heir, 2)
    assert await heir.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [2])


async def test_a_producer_changes_its_version_between_two_transactions(brokers: TxnCluster) -> None:
    client: Client = await scene(brokers, ClientV2)
    for number, kind in ((2, Client), (3, ClientV2), (4, Client), (5, ClientV2)):
        assert await client.end() is E.NONE
        other = kind(brokers, "x", 1)
        other.producer, other.sequences = client.producer, client.sequences
        client = other
        await brokers.reaches("x", "CompleteCommit")
        await work(client, number)
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [1, 2, 3, 4, 5])


# --- exhausted epochs


@pytest.mark.parametrize("committed", [True, False])
async def test_the_last_epoch_of_a_producer_id_is_followed_by_a_new_id(brokers: TxnCluster, committed: bool) -> None:
    await brokers.coordinate(1, "x")
    await brokers.coordinate(3, "g")
    await brokers.create("t", [2, 3, 1])
    await brokers.create("u", [3, 1, 2])
    client = await begun(brokers, kind=ClientV2)
    aged = (await brokers.transaction("x")).producer_id
    stored = await brokers.transaction("x")
    await brokers.coordinate(2, "x")
    last = {"epoch": MAX_PRODUCER_EPOCH}
    fields = {name: getattr(stored, name) for name in stored.__struct_fields__} | last
    await brokers.store.txn([], [PutOp(keys.transaction("x"), encode(type(stored)(**fields)))])
    await brokers.coordinate(1, "x")
    client.producer = ProducerIdentity(aged, MAX_PRODUCER_EPOCH)
    await work(client)
    held = brokers.hold(WriteTxnMarkersRequest, 3)
    before = client.producer
    assert await client.end(committed) is E.NONE
    assert client.producer.epoch == 0
    assert client.producer.producer_id != aged
    await held.has()
    prepared = await brokers.transaction("x")
    assert (prepared.producer_id, prepared.epoch) == (aged, MAX_EPOCH)
    assert prepared.next_producer_id == client.producer.producer_id
    await brokers.coordinate(2, "x")
    client.coordinator = 2
    held.let_go()
    answer = await resend_end(brokers, 2, before, committed)
    assert ProducerIdentity(answer.producer_id, answer.producer_epoch) == client.producer
    await work(client, 2)
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [1, 2] if committed else [2])


# --- moves of the coordinator


async def test_what_was_added_is_part_of_the_transaction_at_the_next_coordinator(brokers: TxnCluster) -> None:
    client = await scene(brokers, ClientV2)
    await brokers.kill(1)
    await leave_isr(brokers)
    await brokers.coordinate(2, "x")
    client.coordinator = 2
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert not brokers[2].leader("t").producers.transactions.open, "no transaction is left open"
    assert not brokers[3].leader("u").producers.transactions.open, "no transaction is left open"
    await check_whole(brokers, [1])


@pytest.mark.parametrize("committed", [True, False])
async def test_a_retried_end_gets_the_same_identity_from_the_next_coordinator(
    brokers: TxnCluster, committed: bool
) -> None:
    client = await scene(brokers, ClientV2)
    before = client.producer
    held = brokers.hold(WriteTxnMarkersRequest, 3)
    assert await client.end(committed) is E.NONE
    await held.has()
    await brokers.kill(1)
    await leave_isr(brokers)
    brokers.holds.clear()
    await brokers.coordinate(2, "x")
    held.let_go()
    for _ in range(2):
        answer = await resend_end(brokers, 2, before, committed)
        assert not answer.error_code
        assert ProducerIdentity(answer.producer_id, answer.producer_epoch) == raised(before)
    refused = E.INVALID_TXN_STATE if committed else E.PRODUCER_FENCED
    assert (await resend_end(brokers, 2, before, not committed)).error_code == refused
    client.coordinator = 2
    await work(client, 2)
    assert (await resend_end(brokers, 2, before, committed)).error_code == E.PRODUCER_FENCED
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [1, 2] if committed else [2])


async def test_an_end_without_a_transaction_survives_the_move_of_the_coordinator(brokers: TxnCluster) -> None:
    await brokers.coordinate(1, "x")
    client = await begun(brokers, kind=ClientV2)
    before = client.producer
    assert await client.end(False) is E.NONE
    assert client.producer == raised(before)
    await brokers.coordinate(2, "x")
    answer = await resend_end(brokers, 2, before, False)
    assert ProducerIdentity(answer.producer_id, answer.producer_epoch) == client.producer


async def test_while_the_coordinator_cannot_be_reached_batches_and_offsets_are_to_be_sent_again(
    brokers: TxnCluster,
) -> None:
    client = await scene(brokers, ClientV2)
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    brokers.lost_ways = {(3, 1)}
    plain = Client(brokers, "x", 1)
    plain.produce_version, plain.commit_version, plain.producer = 12, 5, client.producer
    assert await plain.produce(3, b"2", "u") is E.NOT_ENOUGH_REPLICAS
    assert await plain.commit_offset(3, "g", 2) is E.COORDINATOR_LOAD_IN_PROGRESS
    brokers.lost_ways = set()
    await work(client, 2)
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [1, 2])


# --- with older versions


@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_that_an_older_version_prepared_is_completed(brokers: TxnCluster, committed: bool) -> None:
    """An older version keeps the epoch and does not know the fields of transactions v2."""
    client = await scene(brokers)
    held = brokers.hold(WriteTxnMarkersRequest, 3)
    assert await client.end(committed) is E.NONE
    await held.has()
    entry = await brokers.store.get(keys.transaction("x"))
    assert entry is not None
    older = entry.value.replace(b',"next_producer_id":-1', b"")
    assert older != entry.value
    await brokers.kill(1)
    await leave_isr(brokers)
    await brokers.store.txn([], [PutOp(entry.key, older)])
    brokers.holds.clear()
    await brokers.coordinate(2, "x")
    held.let_go()
    await brokers.reaches("x", "CompleteCommit" if committed else "CompleteAbort")
    await check_whole(brokers, [1] if committed else [])


async def test_until_all_brokers_support_it_nothing_adds_itself_and_no_end_raises_the_epoch(
    brokers: TxnCluster,
) -> None:
    await set_level(brokers, 1)
    client = await scene(brokers)
    client.produce_version = 12
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await client.produce(3, b"2", "u") is E.TRANSACTION_ABORTABLE
    client.commit_version = 5
    assert await client.commit_offset(3, "g", 2) is E.TRANSACTION_ABORTABLE
    client.commit_version = 3
    assert await client.add("u") is E.NONE
    assert await client.produce(3, b"2", "u") is E.NONE, "a client may use Produce 12 and add its partitions"
    newer = Client(brokers, "x", 1)
    newer.end_version, newer.producer = 5, client.producer
    assert await newer.end() is E.UNSUPPORTED_VERSION
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await brokers.visible(3, "u") == [b"1", b"2"]


async def test_a_coordinator_whose_view_is_behind_reads_the_level_before_it_refuses(brokers: TxnCluster) -> None:
    client = await scene(brokers, ClientV2)
    await brokers[1].watcher.stop()
    brokers[1].view.feature_level = 1
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    await check_whole(brokers, [1])
    brokers[1].line.is_cut = True
    assert await client.end(False) is E.COORDINATOR_NOT_AVAILABLE, "the level is unknown, so the client tries again"
    brokers[1].line.is_cut = False
    await until(lambda: brokers[1].owns(keys.shard_of("x")))
