"""Requests about offsets: where logs begin and end, what a group committed. Used by consumer and admin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError, check
from penstock.client.group_protocol import by_topic
from penstock.client.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
"""What may stand for a timestamp in `list_offsets`; MAX_TIMESTAMP is the record with the largest one (KIP-734)."""

Found = dict[TopicPartition, OffsetAndTimestamp]


async def list_offsets(
    cluster: ClusterConnections,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: int = 0,
    timeout_ms: float | None = None,
) -> Found:
    """For each partition the offset of its first record at or after a timestamp (or LATEST, EARLIEST, ...).

    Asks each leader once, and again where leaders change. Raises `ClientError` when `timeout_ms` is over.
    """
    found: Found = {}
    left = dict(wanted)
    if left:
        await cluster.topics_known({tp.topic for tp in left}, timeout_ms)

    async def ask() -> Found:
        answers = await asyncio.gather(
            *(ask_leader(cluster, node, part, isolation_level) for node, part in by_leader(cluster, left).items()),
            return_exceptions=True,
        )
        failure: BaseException | None = None
        for answer in answers:
            if isinstance(answer, BaseException):
                failure = failure or answer
                continue
            offsets, error = answer
            found.update(offsets)
            failure = failure or error
        for tp in found:
            left.pop(tp, None)
        if failure is not None:
            raise failure
        return found

    return await cluster.retrying(ask, timeout_ms)


def by_leader(
    cluster: ClusterConnections, wanted: Mapping[TopicPartition, int]
) -> dict[int, dict[TopicPartition, int]]:
    """What to ask of which node. Raises a retriable error where a partition has no leader."""
    nodes: dict[int, dict[TopicPartition, int]] = {}
    for tp, timestamp in wanted.items():
        leader = cluster.metadata.leader(tp.topic, tp.partition)
        if leader < 0:
            info = cluster.metadata.topics.get(tp.topic)
            missing = info is not None and tp.partition not in info.partitions
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing else ErrorCode.LEADER_NOT_AVAILABLE
            raise BrokerError(code, str(tp))
        nodes.setdefault(leader, {})[tp] = timestamp
    return nodes


async def ask_leader(
    cluster: ClusterConnections, node_id: int, wanted: Mapping[TopicPartition, int], isolation_level: int
) -> tuple[Found, ClientError | None]:
    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[
                ListOffsetsPartition(partition_index=p, timestamp=wanted[TopicPartition(topic, p)]) for p in partitions
            ],
        )
        for topic, partitions in by_topic(wanted).items()
    ]
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=topics, timeout_ms=int(cluster.request_timeout_ms)
    )
    answer = await cluster.call(node_id, request, ListOffsetsResponse)
    found: Found = {}
    error: ClientError | None = None
    for topic in answer.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                error = BrokerError(p.error_code, str(tp))
            else:
                found[tp] = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch)
    return found, error


async def fetch_committed(
    cluster: ClusterConnections,
    group: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What a group has committed, for these partitions or for all (None); those without are left out."""
    topics = None
    if partitions is not None:
        topics = [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in by_topic(partitions).items()]
    request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=True)

    async def ask() -> dict[TopicPartition, OffsetAndMetadata]:
        answer = await cluster.call_coordinator(group, request, OffsetFetchResponse)
        check_group(cluster, group, answer.error_code)
        found = {}
        for topic in answer.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                check_group(cluster, group, p.error_code, str(tp))
                if p.committed_offset >= 0:
                    found[tp] = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
        return found

    return await cluster.retrying(ask, timeout_ms)


async def commit(
    cluster: ClusterConnections,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    timeout_ms: float | None = None,
) -> None:
    """Commits for a group: as its member, or, with no generation, for a group that has none. Raises `BrokerError`."""
    topics = [
        OffsetCommitRequestTopic(name=topic, partitions=[commit_partition(topic, p, offsets) for p in partitions])
        for topic, partitions in by_topic(offsets).items()
    ]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member_id, group_instance_id=instance_id,
        topics=topics,
    )  # fmt: skip

    async def ask() -> None:
        answer = await cluster.call_coordinator(group, request, OffsetCommitResponse)
        for topic in answer.topics:
            for p in topic.partitions:
                check_group(cluster, group, p.error_code, f"group {group!r}, {topic.name}-{p.partition_index}")

    if topics:
        await cluster.retrying(ask, timeout_ms)


def commit_partition(
    topic: str, partition: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> OffsetCommitRequestPartition:
    offset = offsets[TopicPartition(topic, partition)]
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


def check_group(cluster: ClusterConnections, group: str, code: int, about: str = "") -> None:
    """As `check`, for an answer of a coordinator: one that is no longer it is looked up again."""
    if code in MOVED:
        cluster.forget_coordinator(group)
    check(code, about or f"group {group!r}")
