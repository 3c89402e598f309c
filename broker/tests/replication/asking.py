"""Client requests to one of the brokers and their responses, for the replication tests."""

from __future__ import annotations

from typing import Any

from cluster_kit import VERSION, Answered, Cluster
from replica_kit import batch_of

from penstock.api.exchange import PeerInfo
from penstock.api.produce import ProduceApi
from penstock.runtime.stats import RequestStats
from penstock.wire import codec
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.primitives import Buffer
from penstock.wire.produce_template import ProduceTemplate

PRODUCE = 9
MUCH = 1 << 20


def begun(cluster: Cluster, broker_id: int, offsets: dict[str, int], **more: Any) -> Answered:
    """A request for topic → offset of its first partition, named so many `times`; `place` are fields of each."""
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
    broker.fetch.handle(received, VERSION, 1, answered, "127.0.0.1")
    return answered


async def asked_for(cluster: Cluster, broker_id: int, offsets: dict[str, int], **more: Any) -> list[PartitionData]:
    """The answers of the topics, in order; one that tells why there are none."""
    answered = begun(cluster, broker_id, offsets, **more)
    response = codec.decode(FetchResponse, VERSION, memoryview(await answered.frame), 9)
    if response.error_code:
        return [PartitionData(error_code=response.error_code)]
    return [data for topic in response.responses for data in topic.partitions]


async def asked(cluster: Cluster, broker_id: int, offset: int, **more: Any) -> PartitionData:
    """The answer for the first partition of t."""
    (data,) = await asked_for(cluster, broker_id, {"t": offset}, **more)
    return data


class Producer:
    """A connection to one of the brokers, for its producers. Implements `api.exchange.PeerConnection`."""

    peer = PeerInfo(1, "PLAINTEXT", "127.0.0.1", 5)

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.api = ProduceApi(cluster[broker_id].replicas, RequestStats())
        self.exchanges: list[Answered] = []
        self.produce_template: ProduceTemplate | None = None

    def open_exchange(self) -> Answered:
        self.exchanges.append(Answered())
        return self.exchanges[-1]

    def reply(self, frame: Buffer) -> None:
        self.open_exchange().reply([frame])

    def send(self, *names: str, timeout_ms: int = 60_000, **more: Any) -> Answered:
        """A batch for the first partition of each of the topics, with acks=all."""
        topics = [
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=batch_of(**more))])
            for name in names
        ]
        request = ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=topics)
        self.api.handle(self, memoryview(bytearray(codec.encode(request, PRODUCE))), 0, PRODUCE, 1)
        return self.exchanges[-1]

    async def errors(self, exchange: Answered) -> list[int]:
        """What is answered for each of the topics."""
        response = codec.decode(ProduceResponse, PRODUCE, memoryview(await exchange.frame), 9)
        return [p.error_code for topic in response.responses for p in topic.partition_responses]

    def close(self) -> None:
        if self.api.expiry_timer is not None:
            self.api.expiry_timer.cancel()
