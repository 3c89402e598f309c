"""Requests about offsets: start and end offsets, timestamps, committed offsets. Used by consumer and admin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError, check
from penstock.client.group_protocol import by_topic
from penstock.client.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition, UndeliveredRecords
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

MEMBER_EPOCH_VERSION = 9
"""The version of OffsetFetch from which members report their epochs (KIP-848)."""
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
"""Special timestamps for `list_offsets`. MAX_TIMESTAMP finds the record with the largest timestamp (KIP-734)."""

ListedOffsets = dict[TopicPartition, OffsetAndTimestamp]


async def list_offsets(
    cluster: ClusterConnections,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation_level: int = 0,
    timeout_ms: float | None = None,
) -> ListedOffsets:
    """Return the offset of each partition's first record at or after a timestamp (or LATEST, EARLIEST, MAX_TIMESTAMP).

    Sends one request to each leader, and retries if leaders change. Raises `ClientError` after `timeout_ms`.
    """
    found: ListedOffsets = {}
    remaining = dict(timestamps)
    if remaining:
        await cluster.fetch_topics({tp.topic for tp in remaining}, timeout_ms)

    async def attempt() -> ListedOffsets:
        responses = await asyncio.gather(
            *(
                list_offsets_at(cluster, node, part, isolation_level)
                for node, part in group_by_leader(cluster, remaining).items()
            ),
            return_exceptions=True,
        )
        failure: BaseException | None = None
        for response in responses:
            if isinstance(response, BaseException):
                failure = failure or response
                continue
            offsets, error = response
            found.update(offsets)
            failure = failure or error
        for tp in found:
            remaining.pop(tp, None)
        if failure is not None:
            raise failure
        return found

    return await cluster.retrying(attempt, timeout_ms)


def group_by_leader(
    cluster: ClusterConnections, timestamps: Mapping[TopicPartition, int]
) -> dict[int, dict[TopicPartition, int]]:
    """Group partitions by leader. Raises a retriable error if a partition has no leader."""
    nodes: dict[int, dict[TopicPartition, int]] = {}
    for tp, timestamp in timestamps.items():
        leader = cluster.metadata.leader(tp.topic, tp.partition)
        if leader < 0:
            info = cluster.metadata.topics.get(tp.topic)
            is_missing = info is not None and tp.partition not in info.partitions
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_missing else ErrorCode.LEADER_NOT_AVAILABLE
            raise BrokerError(code, str(tp))
        nodes.setdefault(leader, {})[tp] = timestamp
    return nodes


async def list_offsets_at(
    cluster: ClusterConnections, node_id: int, timestamps: Mapping[TopicPartition, int], isolation_level: int
) -> tuple[ListedOffsets, ClientError | None]:
    """Return the offsets found by one broker, and one of the errors."""
    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[
                ListOffsetsPartition(partition_index=p, timestamp=timestamps[TopicPartition(topic, p)])
                for p in partitions
            ],
        )
        for topic, partitions in by_topic(timestamps).items()
    ]
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=topics, timeout_ms=int(cluster.request_timeout_ms)
    )
    response = await cluster.call(node_id, request, ListOffsetsResponse)
    found: ListedOffsets = {}
    error: ClientError | None = None
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                error = BrokerError(p.error_code, str(tp))
            else:
                found[tp] = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)
    return found, error


async def list_undelivered(
    cluster: ClusterConnections, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, UndeliveredRecords]:
    """Return by partition what waits for the topic's `delivery.delay.ms`. Brokers without delays are left out."""
    listed = dict.fromkeys(partitions, LATEST)
    if listed:
        await cluster.fetch_topics({tp.topic for tp in listed}, None)

    async def request(node_id: int, timestamps: Mapping[TopicPartition, int]) -> list[ListOffsetsTopicResponse]:
        topics = [
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=p, timestamp=LATEST, include_undelivered=True) for p in indexes
                ],
            )
            for topic, indexes in by_topic(timestamps).items()
        ]
        message = ListOffsetsRequest(replica_id=-1, topics=topics, timeout_ms=int(cluster.request_timeout_ms))
        return (await cluster.call(node_id, message, ListOffsetsResponse)).topics

    async def attempt() -> dict[TopicPartition, UndeliveredRecords]:
        found: dict[TopicPartition, UndeliveredRecords] = {}
        nodes = group_by_leader(cluster, listed)
        for topics in await asyncio.gather(*(request(node, part) for node, part in nodes.items())):
            for topic in topics:
                for p in topic.partitions:
                    tp = TopicPartition(topic.name, p.partition_index)
                    check(p.error_code, str(tp))
                    if p.undelivered >= 0:
                        found[tp] = UndeliveredRecords(p.undelivered, p.next_due_ms if p.next_due_ms >= 0 else None)
        return found

    return await cluster.retrying(attempt, None)


async def fetch_committed(
    cluster: ClusterConnections,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    member_id: str | None = None,
    member_epoch: int = -1,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a group's committed offsets for these partitions, or all (None); others are omitted.

    With a member of the consumer protocol, raises `BrokerError` if the member has another epoch (KIP-848).
    """
    request, newest = OffsetFetchRequest(group_id=group, require_stable=True), None
    topics = None if partitions is None else by_topic(partitions).items()
    if topics is not None:
        request.topics = [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in topics]
    if member_id is not None:
        newest = MEMBER_EPOCH_VERSION
        named = None if topics is None else [OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in topics]
        request.groups = [
            OffsetFetchRequestGroup(group_id=group, member_id=member_id, member_epoch=member_epoch, topics=named)
        ]

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
        response = await cluster.call_coordinator(group, request, OffsetFetchResponse, newest=newest)
        results: Sequence[OffsetFetchResponse | OffsetFetchResponseGroup] = response.groups or [response]
        check_group(cluster, group, results[0].error_code)
        found = {}
        for topic in results[0].topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                check_group(cluster, group, p.error_code, str(tp))
                if p.committed_offset >= 0:
                    found[tp] = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
        return found

    return await cluster.retrying(attempt, timeout_ms)


async def commit_offsets(
    cluster: ClusterConnections,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    timeout_ms: float | None = None,
) -> None:
    """Commit offsets as a member of the group, or without a generation for a group without members. Raises
    `BrokerError`.
    """
    topics = [
        OffsetCommitRequestTopic(name=topic, partitions=[commit_partition(topic, p, offsets) for p in partitions])
        for topic, partitions in by_topic(offsets).items()
    ]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member_id, group_instance_id=instance_id,
        topics=topics,
    )  # fmt: skip

    async def attempt() -> None:
        response = await cluster.call_coordinator(group, request, OffsetCommitResponse)
        for topic in response.topics:
            for p in topic.partitions:
                check_group(cluster, group, p.error_code, f'group "{group}", {topic.name}-{p.partition_index}')

    if topics:
        await cluster.retrying(attempt, timeout_ms)


def commit_partition(
    topic: str, partition: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> OffsetCommitRequestPartition:
    """Return the request's entry for a partition."""
    offset = offsets[TopicPartition(topic, partition)]
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


def check_group(cluster: ClusterConnections, group: str, code: int, about: str = "") -> None:
    """Raise `BrokerError` unless `code` is 0. Discards the cached coordinator if it has moved."""
    if code in COORDINATOR_MOVED:
        cluster.forget_coordinator(group)
    check(code, about or f'group "{group}"')
