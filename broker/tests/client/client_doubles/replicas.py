"""A partition with several replicas, in place of the cluster that a fetcher queries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast
from uuid import UUID

from penstock.client.backoff import Backoff
from penstock.client.metadata import MetadataCache
from penstock.client.types import Node, PartitionInfo, TopicInfo, TopicPartition
from penstock.wire.batch_builder import build_batch
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.record import Record
from penstock.wire.schema import Payload

TP = TopicPartition("t", 0)
LEADER, FOLLOWER = 1, 2
R = TypeVar("R", bound=Payload)
Answer = Callable[[PartitionData], None]


class Replicas:
    """`log` has batches of one record each. A fetch returns the batches within its size limit, but at least one.

    `scripts` changes a broker's response or raises instead; `asked` lists the brokers of the fetches.
    """

    def __init__(self, count: int, size_bytes: int = 10) -> None:
        records = [Record(n, 1000, None, b"x" * size_bytes) for n in range(count)]
        self.log = [build_batch([record], base_offset=record.offset) for record in records]
        nodes = {n: Node(n, "127.0.0.1", n, None) for n in (LEADER, FOLLOWER)}
        partition = PartitionInfo(0, LEADER, 0, (LEADER, FOLLOWER), (LEADER, FOLLOWER), ())
        topic = TopicInfo(TP.topic, UUID(int=1), False, {0: partition})
        self.metadata = MetadataCache("c", LEADER, nodes, {TP.topic: topic})
        self.backoff = Backoff(base_ms=1, max_ms=2)
        self.request_timeout_ms = self.metadata_max_age_ms = 60_000.0
        self.asked: list[int] = []
        self.scripts: dict[int, Answer] = {}

    def invalidate(self) -> None:
        """Do nothing: the metadata is fixed."""

    def follow(self, topics: object) -> None:
        """Do nothing: the metadata is fixed."""

    async def call(self, node_id: int, request: Payload, response: type[R], *, timeout_ms: float | None = None) -> R:
        assert isinstance(request, FetchRequest)
        self.asked.append(node_id)
        await asyncio.sleep(0)
        ((wanted,),) = (topic.partitions for topic in request.topics)
        data = PartitionData(partition_index=0, high_watermark=len(self.log), records=b"")
        script = self.scripts.get(node_id)
        if script is not None:
            script(data)
        if not data.error_code and data.preferred_read_replica in (-1, node_id):
            at = wanted.fetch_offset
            data.records = self._read(at, wanted.partition_max_bytes)
            if at >= len(self.log):
                await asyncio.sleep(0.01)
        answer = FetchResponse(responses=[FetchableTopicResponse(topic=TP.topic, partitions=[data])])
        return cast(R, answer)

    def _read(self, offset: int, limit_bytes: int) -> bytes:
        found = b"".join(self.log[offset : offset + 1])
        for batch in self.log[offset + 1 :]:
            if len(found) + len(batch) > limit_bytes:
                break
            found += batch
        return found


def prefers(replica: int) -> Answer:
    """Return a script of a leader that refers consumers to another replica (KIP-392)."""

    def answer(data: PartitionData) -> None:
        data.preferred_read_replica = replica

    return answer


def refuses(code: ErrorCode) -> Answer:
    def answer(data: PartitionData) -> None:
        data.error_code = code

    return answer
