"""Client fetches and produce requests to one of the brokers, for the replication tests."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from cluster_kit import PEER, VERSION, Answered, Cluster
from replica_kit import batch_of

from penstock.api.exchange import PeerInfo
from penstock.api.produce import ProduceApi
from penstock.group.assigned_shards import AssignedShardOwnership
from penstock.group.coordinator import GroupCoordinator
from penstock.group.offset_loading import LazyOffsetLoader
from penstock.node.single import NoPeers
from penstock.runtime.stats import RequestStats
from penstock.txn.producer_ids import ProducerIds
from penstock.txn.service import TransactionService
from penstock.wire import codec
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.primitives import Buffer
from penstock.wire.produce_template import ProduceTemplate

PRODUCE = 9
MUCH = 1 << 20


def start_fetch(cluster: Cluster, broker_id: int, offsets: dict[str, int], **more: Any) -> Answered:
    """Send a fetch of the first partition of each topic, from the given offsets. `times` repeats the partitions,
    `place` sets further fields of them."""
    broker = cluster[broker_id]
    place, times = more.pop("place", {}), more.pop("times", 1)
    topics = [
        FetchTopic(
            topic_id=broker.view.topics[name].topic_id,
            partitions=[FetchPartition(**{"fetch_offset": offset, "partition_max_bytes": MUCH, **place})] * times,
        )
        for name, offset in offsets.items()
    ]
    request = FetchRequest(**{"max_bytes": MUCH, "min_bytes": 1, "topics": topics, **more})
    answered = Answered()
    received = codec.decode(FetchRequest, VERSION, codec.encode(request, VERSION))
    broker.fetch.handle(received, VERSION, 1, answered, PEER)
    return answered


async def fetch_topics(cluster: Cluster, broker_id: int, offsets: dict[str, int], **more: Any) -> list[PartitionData]:
    """Return the topics' responses in order, or one with the error of the request."""
    answered = start_fetch(cluster, broker_id, offsets, **more)
    response = codec.decode(FetchResponse, VERSION, memoryview(await answered.frame), 9)
    if response.error_code:
        return [PartitionData(error_code=response.error_code)]
    return [data for topic in response.responses for data in topic.partitions]


async def fetch_first(cluster: Cluster, broker_id: int, offset: int, **more: Any) -> PartitionData:
    """Return the response for the first partition of t."""
    (data,) = await fetch_topics(cluster, broker_id, {"t": offset}, **more)
    return data


class Producer:
    """A producer's connection to a broker. Implements `api.exchange.PeerConnection`."""

    peer = PeerInfo(1, "PLAINTEXT", "127.0.0.1", 5)
    meter = None

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        broker, store = cluster[broker_id], cluster.store
        config, ids = broker.config, ProducerIds(store)
        peers = NoPeers()
        owned = AssignedShardOwnership(store, broker.view, broker_id, broker.membership)
        groups = GroupCoordinator(
            store, broker.view, broker.clock, config, lambda: str(uuid4()), owned, LazyOffsetLoader
        )
        transactions = TransactionService(
            store, broker.view, broker.clock, config, ids, broker.replicas, groups, peers, peers
        )
        self.api = ProduceApi(broker.replicas, RequestStats(), transactions.verifier, broker.leaderships)
        self.exchanges: list[Answered] = []
        self.produce_template: ProduceTemplate | None = None

    def open_exchange(self) -> Answered:
        self.exchanges.append(Answered())
        return self.exchanges[-1]

    def reply(self, frame: Buffer) -> None:
        self.open_exchange().reply([frame])

    def send(self, *names: str, timeout_ms: int = 60_000, **more: Any) -> Answered:
        """Send a batch to the first partition of each topic, with acks=all."""
        topics = [
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=batch_of(**more))])
            for name in names
        ]
        request = ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=topics)
        self.api.handle(self, memoryview(bytearray(codec.encode(request, PRODUCE))), 0, PRODUCE, 1)
        return self.exchanges[-1]

    async def errors(self, exchange: Answered) -> list[int]:
        """Return the error of each topic."""
        response = codec.decode(ProduceResponse, PRODUCE, memoryview(await exchange.frame), 9)
        return [p.error_code for topic in response.responses for p in topic.partition_responses]

    def close(self) -> None:
        self.api.close()
