"""What a client is answered that fetches from one of the brokers. For the tests of replication."""

from __future__ import annotations

from typing import Any

from cluster_kit import VERSION, Answered, Cluster

from penstock.wire import codec
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

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
