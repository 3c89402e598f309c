"""The errors of transactional requests, by version and in Kafka's order, and the descriptions of transactions."""

from __future__ import annotations

import pytest
from brokers_kit import Client, E, TxnCluster
from replica_kit import batch_of
from scenes import begun

from penstock.txn.state_machine import ProducerIdentity
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from penstock.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


async def client_of(brokers: TxnCluster) -> Client:
    """Return a producer without a transaction; broker 1 coordinates and leads."""
    await brokers.coordinate(1, "x", "g", "")
    await brokers.create("t", [1, 2, 3])
    return await begun(brokers)


async def verified(
    brokers: TxnCluster, version: int, producer: ProducerIdentity, topics: dict[str, list[int]]
) -> dict[tuple[str, int], int]:
    """Return the errors of a verify-only AddPartitionsToTxn by partition."""
    asked = AddPartitionsToTxnTransaction(
        transactional_id="x",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name=name, partitions=parts) for name, parts in topics.items()],
    )
    request = AddPartitionsToTxnRequest(transactions=[asked])
    answer = await brokers[1].ask(request, AddPartitionsToTxnResponse, version)
    results = answer.results_by_transaction[0].topic_results
    return {(t.name, p.partition_index): p.partition_error_code for t in results for p in t.results_by_partition}


async def committed(
    brokers: TxnCluster,
    version: int,
    producer: ProducerIdentity,
    parts: list[tuple[str, int]],
    generation: int = -1,
    offset: int = 1,
    **who: str,
) -> list[int]:
    """Return the errors of TxnOffsetCommit by partition."""
    topics = [
        TxnOffsetCommitRequestTopic(
            name=name, partitions=[TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset)]
        )
        for name, index in parts
    ]
    request = TxnOffsetCommitRequest(
        transactional_id=who.get("transactional_id", "x"),
        group_id=who.get("group_id", "g"),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=generation,
        topics=topics,
    )
    answer = await brokers[1].ask(request, TxnOffsetCommitResponse, version)
    return [p.error_code for t in answer.topics for p in t.partitions]


@pytest.mark.parametrize("version", [4, 5])
async def test_a_verification_names_unknown_partitions_before_anything_else(brokers: TxnCluster, version: int) -> None:
    client = await client_of(brokers)
    found = await verified(brokers, version, client.producer, {"t": [0, 5], "unknown": [0]})
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert found == {("t", 0): E.OPERATION_NOT_ATTEMPTED, ("t", 5): unknown, ("unknown", 0): unknown}
    stranger = ProducerIdentity(4711, 0)
    assert await verified(brokers, version, stranger, {"t": [5]}) == {("t", 5): unknown}


@pytest.mark.parametrize("version", [4, 5])
async def test_a_verification_of_a_partition_that_was_not_added_is_abortable(brokers: TxnCluster, version: int) -> None:
    client = await client_of(brokers)
    assert await verified(brokers, version, client.producer, {"t": [0]}) == {("t", 0): E.TRANSACTION_ABORTABLE}
    assert await client.add("t") is E.NONE
    assert await verified(brokers, version, client.producer, {"t": [0]}) == {("t", 0): E.NONE}


@pytest.mark.parametrize(
    ("version", "error"), [(9, E.INVALID_TXN_STATE), (10, E.INVALID_TXN_STATE), (11, E.TRANSACTION_ABORTABLE)]
)
async def test_a_batch_outside_of_a_transaction_is_abortable_for_clients_that_know_the_error(
    brokers: TxnCluster, version: int, error: E
) -> None:
    client = await client_of(brokers)
    batch = batch_of(1, producer=(*client.producer, 0), attributes=TRANSACTIONAL)
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id="x", acks=-1, timeout_ms=30_000, topic_data=[data])
    answer = await brokers[1].ask(request, ProduceResponse, version)
    assert answer.responses[0].partition_responses[0].error_code == error


@pytest.mark.parametrize(("version", "error"), [(3, E.INVALID_TXN_STATE), (4, E.TRANSACTION_ABORTABLE)])
async def test_offsets_outside_of_a_transaction_are_abortable_for_clients_that_know_the_error(
    brokers: TxnCluster, version: int, error: E
) -> None:
    client = await client_of(brokers)
    assert await committed(brokers, version, client.producer, [("t", 0)]) == [error]


async def test_unknown_partitions_are_named_before_the_transaction_and_the_group(brokers: TxnCluster) -> None:
    await client_of(brokers)
    stranger = ProducerIdentity(4711, 0)
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert await committed(brokers, 3, stranger, [("a b", 0), ("t", 5)], generation=7) == [unknown, unknown]
    found = await committed(brokers, 3, stranger, [("t", 5), ("t", 0)], generation=7)
    assert found == [unknown, E.INVALID_PRODUCER_ID_MAPPING]


async def test_the_transaction_is_verified_before_the_generation(brokers: TxnCluster) -> None:
    client = await client_of(brokers)
    parts = [("t", 0)]
    assert await committed(brokers, 3, client.producer, parts, 2, transactional_id="") == [E.INVALID_REQUEST]
    later = client.producer._replace(epoch=client.producer.epoch + 5)
    assert await committed(brokers, 3, later, parts, 2) == [E.INVALID_PRODUCER_EPOCH]
    assert await committed(brokers, 3, client.producer, parts, 2) == [E.INVALID_TXN_STATE]
    assert await client.add_group("g") is E.NONE
    assert await committed(brokers, 3, client.producer, parts, 2) == [E.ILLEGAL_GENERATION]
    assert await committed(brokers, 3, client.producer, parts, 2, group_id="") == [E.INVALID_GROUP_ID]
    assert await committed(brokers, 3, client.producer, parts) == [E.NONE]


async def test_a_transaction_keeps_its_start_until_its_producer_is_initialized_again(brokers: TxnCluster) -> None:
    client = await client_of(brokers)
    assert await started_ms(brokers) == -1
    began_ms = brokers.clock.wall_ms()
    assert await client.add("t") is E.NONE
    assert await started_ms(brokers) >= began_ms
    assert await client.end() is E.NONE
    await brokers.reaches("x", "CompleteCommit")
    assert await started_ms(brokers) >= began_ms
    assert await client.init() is E.NONE
    assert await started_ms(brokers) == -1


async def started_ms(brokers: TxnCluster) -> int:
    request = DescribeTransactionsRequest(transactional_ids=["x"])
    answer = await brokers[1].ask(request, DescribeTransactionsResponse, 0)
    return answer.transaction_states[0].transaction_start_time_ms


async def listed(brokers: TxnCluster, duration_filter: int) -> list[str]:
    request = ListTransactionsRequest(duration_filter=duration_filter)
    answer = await brokers[1].ask(request, ListTransactionsResponse, 1)
    return [one.transactional_id for one in answer.transaction_states]


async def test_a_filter_by_duration_lets_transactions_through_that_have_not_begun(brokers: TxnCluster) -> None:
    client = await client_of(brokers)
    assert await listed(brokers, 60_000) == ["x"]
    assert await client.add("t") is E.NONE
    assert await listed(brokers, 60_000) == []
    assert await listed(brokers, -1) == ["x"]


async def test_verifications_and_markers_leave_out_topics_without_partitions_as_in_kafka(brokers: TxnCluster) -> None:
    client = await client_of(brokers)
    asked = AddPartitionsToTxnTransaction(
        transactional_id="x",
        producer_id=client.producer.producer_id,
        producer_epoch=client.producer.epoch,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name="t", partitions=[0]), AddPartitionsToTxnTopic(name="t")],
    )
    request = AddPartitionsToTxnRequest(transactions=[asked])
    answer = await brokers[1].ask(request, AddPartitionsToTxnResponse, 4)
    assert [topic.name for topic in answer.results_by_transaction[0].topic_results] == ["t"]
    marker = WritableTxnMarker(
        producer_id=client.producer.producer_id,
        producer_epoch=0,
        topics=[WritableTxnMarkerTopic(), WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
    )
    written = await brokers[1].ask(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, 1)
    assert [topic.name for topic in written.markers[0].topics] == ["t"]


@pytest.mark.parametrize("offset", [-1, -2])
async def test_a_transaction_commits_a_negative_offset(brokers: TxnCluster, offset: int) -> None:
    client = await client_of(brokers)
    assert await client.add_group("g") is E.NONE
    assert await committed(brokers, 3, client.producer, [("t", 0)], offset=offset) == [E.NONE]
