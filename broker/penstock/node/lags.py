"""Where partitions end that other brokers lead, for the lag of groups in the metrics. Made by `broker` in a cluster.

Their leaders are asked by ListOffsets, as the admin client asks them (`client.admin_lag`): a request has thousands of
partitions and committed offsets. A leader that does not answer in good time keeps nobody waiting: its partitions are
not in the answer.
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

ANSWER_S = 3.0
"""For all that one leader is asked: well below the time after which a scraper gives up."""
MAX_OFFSETS = 5_000
"""Committed offsets of one request; a broker looks at twice that."""
LATEST, CONSUMER = -1, -1

log = get_logger("penstock.node")


class EndsChannel(Protocol):
    """`peers.Peers`, as far as lags need it."""

    async def list_offsets(self, broker_id: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Raises OSError where the broker cannot be reached."""


class RemoteLeaders:
    """Implements `http.sources.RemoteOffsetsQuery`."""

    def __init__(self, view: ClusterView, broker_id: int, channel: EndsChannel) -> None:
        self.view, self.broker_id, self.channel = view, broker_id, channel

    async def __call__(self, offsets: Mapping[PartitionName, Collection[int]]) -> dict[PartitionName, RemoteOffsets]:
        by_leader: dict[int, dict[PartitionName, list[int]]] = {}
        for place, those in offsets.items():
            leader = self.leader_of(place)
            if leader is not None:
                by_leader.setdefault(leader, {})[place] = sorted(those)
        found: dict[PartitionName, RemoteOffsets] = {}
        await asyncio.gather(*(self.ask(leader, wanted, found) for leader, wanted in by_leader.items()))
        return found

    def leader_of(self, place: PartitionName) -> int | None:
        """Another broker; None where nobody leads, or this one does and cannot tell."""
        topic = self.view.topics.get(place[0])
        if topic is None or not 0 <= place[1] < len(topic.partitions):
            return None
        leader = topic.partitions[place[1]].leader
        return leader if leader in self.view.brokers and leader != self.broker_id else None

    async def ask(
        self, leader: int, wanted: Mapping[PartitionName, list[int]], found: dict[PartitionName, RemoteOffsets]
    ) -> None:
        """Adds to `found` what a leader tells."""
        try:
            async with asyncio.timeout(ANSWER_S):
                for part in parts_of(wanted):
                    answer = await self.channel.list_offsets(leader, request_of(part))
                    found.update(ends_of(part, answer))
        except OSError as e:  # also TimeoutError
            log.warning("a broker does not tell the lag of groups", broker=leader, reason=str(e) or "no answer in time")


def parts_of(wanted: Mapping[PartitionName, list[int]]) -> Iterator[dict[PartitionName, list[int]]]:
    """What one request asks, each."""
    part: dict[PartitionName, list[int]] = {}
    count = 0
    for place, offsets in wanted.items():
        those = offsets[:MAX_OFFSETS]
        if part and count + len(those) > MAX_OFFSETS:
            yield part
            part, count = {}, 0
        part[place] = those
        count += len(those)
    if part:
        yield part


def request_of(part: Mapping[PartitionName, list[int]]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), offsets in part.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name, partitions=[]))
        asked = ListOffsetsPartition(partition_index=index, timestamp=LATEST, committed_offsets=offsets)
        topic.partitions.append(asked)
    return ListOffsetsRequest(replica_id=CONSUMER, topics=list(topics.values()))


def ends_of(
    part: Mapping[PartitionName, list[int]], answer: ListOffsetsResponse
) -> Iterator[tuple[PartitionName, RemoteOffsets]]:
    """What was told, without errors, and without partitions of a broker too old to say where they begin."""
    for topic in answer.topics:
        for p in topic.partitions:
            place = topic.name, p.partition_index
            if place in part and not p.error_code and p.start_offset >= 0 and p.offset >= 0:
                told = zip(part[place], p.unread_ages_ms, strict=False)
                yield place, RemoteOffsets(p.start_offset, p.offset, {offset: age for offset, age in told if age >= 0})
