"""Queries log ends of partitions that other brokers lead, for the consumer lag in the metrics. Created by `broker`.

It sends ListOffsets to the leaders, as the admin client does (`client.admin.lag`), with thousands of partitions and
committed offsets per request. Partitions of a leader that does not respond in time are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from penstock.http.sources import PartitionName, RemoteOffsets
from penstock.runtime.logging import get_logger
from penstock.state.view import ClusterView
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

QUERY_TIMEOUT_S = 3.0
"""Timeout of all requests to one leader; well below a scrape timeout."""
MAX_OFFSETS = 5_000
"""Maximum number of committed offsets per request; a broker accepts twice that."""
LATEST, CONSUMER = -1, -1

log = get_logger("penstock.node")


class EndsChannel(Protocol):
    """The part of `peers.Peers` that lag needs."""

    async def list_offsets(self, broker_id: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Send ListOffsets. Raises OSError if the broker cannot be reached."""


class RemoteLeaders:
    """Implements `http.sources.RemoteOffsetsQuery`."""

    def __init__(self, view: ClusterView, broker_id: int, channel: EndsChannel) -> None:
        self.view, self.broker_id, self.channel = view, broker_id, channel

    async def __call__(self, offsets: Mapping[PartitionName, Collection[int]]) -> dict[PartitionName, RemoteOffsets]:
        """Return the log ends by partition of those that other brokers lead."""
        by_leader: dict[int, dict[PartitionName, list[int]]] = {}
        for name, committed in offsets.items():
            leader = self.leader_of(name)
            if leader is not None:
                by_leader.setdefault(leader, {})[name] = sorted(committed)
        found: dict[PartitionName, RemoteOffsets] = {}
        await asyncio.gather(*(self.query_leader(leader, requested, found) for leader, requested in by_leader.items()))
        return found

    def leader_of(self, name: PartitionName) -> int | None:
        """Return the other broker that leads; None if there is no leader or it is this broker."""
        topic = self.view.topics.get(name[0])
        if topic is None or not 0 <= name[1] < len(topic.partitions):
            return None
        leader = topic.partitions[name[1]].leader
        return leader if leader in self.view.brokers and leader != self.broker_id else None

    async def query_leader(
        self, leader: int, requested: Mapping[PartitionName, list[int]], found: dict[PartitionName, RemoteOffsets]
    ) -> None:
        """Query one leader and add its results to `found`."""
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                for batch in split_requests(requested):
                    answer = await self.channel.list_offsets(leader, request_of(batch))
                    found.update(ends_of(batch, answer))
        except OSError as e:  # also TimeoutError
            log.warning("lag query failed", broker=leader, reason=str(e) or "timeout")


def split_requests(requested: Mapping[PartitionName, list[int]]) -> Iterator[dict[PartitionName, list[int]]]:
    """Split the partitions into requests of at most `MAX_OFFSETS` offsets."""
    batch: dict[PartitionName, list[int]] = {}
    count = 0
    for name, offsets in requested.items():
        committed = offsets[:MAX_OFFSETS]
        if batch and count + len(committed) > MAX_OFFSETS:
            yield batch
            batch, count = {}, 0
        batch[name] = committed
        count += len(committed)
    if batch:
        yield batch


def request_of(batch: Mapping[PartitionName, list[int]]) -> ListOffsetsRequest:
    """Return the request for these partitions."""
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), offsets in batch.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name, partitions=[]))
        partition = ListOffsetsPartition(partition_index=index, timestamp=LATEST, committed_offsets=offsets)
        topic.partitions.append(partition)
    return ListOffsetsRequest(replica_id=CONSUMER, topics=list(topics.values()))


def ends_of(
    batch: Mapping[PartitionName, list[int]], answer: ListOffsetsResponse
) -> Iterator[tuple[PartitionName, RemoteOffsets]]:
    """Yield results without errors, skipping those of brokers too old to report start offsets."""
    for topic in answer.topics:
        for p in topic.partitions:
            name = topic.name, p.partition_index
            if name in batch and not p.error_code and p.start_offset >= 0 and p.offset >= 0:
                ages = zip(batch[name], p.unread_ages_ms, strict=False)
                yield name, RemoteOffsets(p.start_offset, p.offset, {offset: age for offset, age in ages if age >= 0})
