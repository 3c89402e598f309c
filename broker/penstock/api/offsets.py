"""OffsetCommit and OffsetFetch: committed offsets of groups."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from uuid import UUID

from penstock.api.routes import RequestContext, Route
from penstock.group.coordinator import GroupCoordinator
from penstock.group.modern.consumer import fetch_error
from penstock.group.offset_table import OffsetKey
from penstock.group.offsets import OffsetCommit
from penstock.state.records import OffsetRecord
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

TOPIC_ID_VERSION = 10
"""The version of both APIs from which topics are named by id."""
NOT_FOUND_VERSION = 9
"""The first OffsetCommit version whose clients know GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-848)."""
BATCHED_FETCH_VERSION = 8
NO_OFFSET = -1

KnownPartition = tuple[UUID, OffsetCommitRequestPartition, OffsetCommitResponsePartition]
"""A topic id, a partition of the commit and its result."""


class OffsetsApi:
    """Serves committed offsets."""

    def __init__(self, coordinator: GroupCoordinator, view: ClusterView) -> None:
        self.coordinator = coordinator
        self.view = view

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(OffsetCommitRequest, self.offset_commit, commit_failed),
            Route(OffsetFetchRequest, self.offset_fetch, fetch_failed),
        ]

    # -- commit

    async def offset_commit(self, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
        """Serve OffsetCommit 2 to 10."""
        by_id = context.version >= TOPIC_ID_VERSION
        topics = []
        known: list[KnownPartition] = []
        for requested in request.topics:
            topic = self.view.topics_by_id.get(requested.topic_id) if by_id else self.view.topics.get(requested.name)
            partitions = []
            for p in requested.partitions:
                answer = OffsetCommitResponsePartition(partition_index=p.partition_index)
                partitions.append(answer)
                if topic is None:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif not 0 <= p.partition_index < len(topic.partitions):
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    known.append((topic.topic_id, p, answer))
            topics.append(
                OffsetCommitResponseTopic(name=requested.name, topic_id=requested.topic_id, partitions=partitions)
            )
        if known:
            await self.commit_known(request, context.version, known)
        return OffsetCommitResponse(topics=topics)

    async def commit_known(self, request: OffsetCommitRequest, version: int, known: list[KnownPartition]) -> None:
        """Commit the offsets of existing partitions and write errors into their results.

        Partitions that do not exist keep their own error whatever the group's state, as in Kafka.
        """
        error = self.group_error(request, version, known)
        if error:
            error = await self.coordinator.fencing.confirm(request.group_id, error)
            for _, _, answer in known:
                answer.error_code = error
            return
        commits: list[OffsetCommit] = []
        answers: list[OffsetCommitResponsePartition] = []
        for topic_id, requested, answer in known:
            answer.error_code = self.commit_error(requested)
            if not answer.error_code:
                answers.append(answer)
                commits.append(offset_commit_entry(topic_id, requested))
        retention_ms = request.retention_time_ms if request.retention_time_ms >= 0 else None
        failed = await self.coordinator.commit(request.group_id, commits, retention_ms)
        if failed:
            error = self.coordinator.commit_failure(request.group_id)
            for index in failed:
                answers[index].error_code = error

    def group_error(self, request: OffsetCommitRequest, version: int, known: list[KnownPartition]) -> ErrorCode:
        """Return the error if the group rejects the commit, or NONE."""
        generation = request.generation_id_or_member_epoch
        partitions = ((topic_id, p.partition_index) for topic_id, p, _ in known)  # only consumer groups look at them
        error = self.coordinator.check_commit(
            request.group_id, request.member_id, request.group_instance_id, generation, partitions
        )
        if error is ErrorCode.STALE_MEMBER_EPOCH and version < NOT_FOUND_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        is_missing = error is ErrorCode.ILLEGAL_GENERATION and not self.coordinator.exists(request.group_id)
        return ErrorCode.GROUP_ID_NOT_FOUND if is_missing and version >= NOT_FOUND_VERSION else error

    def commit_error(self, requested: OffsetCommitRequestPartition) -> ErrorCode:
        """Return the error for too much metadata, or NONE.

        Kafka checks no offset either: kafkajs commits -2 and -1, its names of the earliest and the latest offset.
        """
        metadata = requested.committed_metadata
        if metadata and len(metadata.encode()) > self.coordinator.config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    # -- fetch

    def offset_fetch(
        self, request: OffsetFetchRequest, context: RequestContext
    ) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
        """Serve OffsetFetch 1 to 10.

        With `require_stable`, a partition with a pending transactional offset gets an error; without, it gets the last
        committed one (KIP-447).
        """
        group_ids = (
            [g.group_id for g in request.groups] if context.version >= BATCHED_FETCH_VERSION else [request.group_id]
        )
        members = [self.member_error(group) for group in request.groups]
        if all(map(self.coordinator.reads.may_read, group_ids)):
            errors = {group_id: self.coordinator.error(group_id) for group_id in group_ids}
            return self.fetch(request, context.version, errors, members)
        return self.prepare_and_fetch(request, context.version, group_ids, members)

    async def prepare_and_fetch(
        self, request: OffsetFetchRequest, version: int, group_ids: list[str], members: Sequence[ErrorCode | None]
    ) -> OffsetFetchResponse:
        """Load the offsets of the groups, then fetch."""
        return self.fetch(request, version, await self.coordinator.reads.prepare(group_ids), members)

    def fetch(
        self,
        request: OffsetFetchRequest,
        version: int,
        errors: dict[str, ErrorCode],
        members: Sequence[ErrorCode | None],
    ) -> OffsetFetchResponse:
        """Return the offsets in memory, for groups without an error. `members` are the results of `member_error` when
        the request arrived: a member may leave while it waits for its offsets."""
        stable = request.require_stable
        if version >= BATCHED_FETCH_VERSION:
            by_id = version >= TOPIC_ID_VERSION
            groups = []
            for group, member in zip(request.groups, members, strict=True):
                member_error = self.member_error(group) if member is None else member
                error = errors[group.group_id] or member_error or ErrorCode.NONE
                groups.append(self.fetch_group(group, by_id, stable, error))
            return OffsetFetchResponse(groups=groups)
        if errors[request.group_id]:
            return fetch_failed(request, errors[request.group_id])
        named: list[OffsetFetchRequestTopics] | None = None
        if request.topics is not None:
            named = [
                OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in request.topics
            ]
        topics = self.fetch_topics(request.group_id, named, by_id=False, stable=stable)
        return OffsetFetchResponse(topics=[legacy_topic(topic) for topic in topics])

    def fetch_group(
        self, requested: OffsetFetchRequestGroup, by_id: bool, stable: bool, error: ErrorCode
    ) -> OffsetFetchResponseGroup:
        """Return a group's offsets, or its error."""
        if error:
            return OffsetFetchResponseGroup(group_id=requested.group_id, error_code=error)
        return OffsetFetchResponseGroup(
            group_id=requested.group_id, topics=self.fetch_topics(requested.group_id, requested.topics, by_id, stable)
        )

    def member_error(self, requested: OffsetFetchRequestGroup) -> ErrorCode | None:
        """Return the error for a member of a consumer group with another epoch, or NONE; None while this broker does
        not know the members."""
        if self.coordinator.error(requested.group_id):
            return None
        group = self.coordinator.find_modern(requested.group_id)
        if group is None or (requested.member_epoch < 0 and not requested.member_id):
            return ErrorCode.NONE
        return fetch_error(group, requested.member_id or "", requested.member_epoch)

    def fetch_topics(
        self, group_id: str, requested: list[OffsetFetchRequestTopics] | None, by_id: bool, stable: bool
    ) -> list[OffsetFetchResponseTopics]:
        """Return a group's offsets for the requested topics; all if `requested` is None."""
        if requested is None:
            return self.fetch_all(group_id, stable)
        topics = []
        for each in requested:
            topic = self.view.topics_by_id.get(each.topic_id) if by_id else self.view.topics.get(each.name)
            if topic is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.NONE
                partitions = [fetched_partition(index, None, error) for index in each.partition_indexes]
            else:
                partitions = self.fetch_partitions(group_id, topic.topic_id, each.partition_indexes, stable)
            topics.append(OffsetFetchResponseTopics(name=each.name, topic_id=each.topic_id, partitions=partitions))
        return topics

    def fetch_partitions(
        self, group_id: str, topic_id: UUID, indexes: Iterable[int], stable: bool
    ) -> list[OffsetFetchResponsePartitions]:
        """Return a group's offsets for partitions of a topic."""
        table = self.coordinator.offsets.table
        unsettled = self.coordinator.offsets.pending.pending(group_id) if stable else ()
        found = []
        for index in indexes:
            key = OffsetKey(group_id, topic_id, index)
            if key in unsettled:
                found.append(fetched_partition(index, None, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                found.append(fetched_partition(index, table.get(key)))
        return found

    def fetch_all(self, group_id: str, stable: bool) -> list[OffsetFetchResponseTopics]:
        """Return all offsets of a group for topics that exist."""
        topics = []
        for topic_id, partitions in self.coordinator.offsets.table.topics_of_group(group_id).items():
            topic = self.view.topics_by_id.get(topic_id)
            if topic is not None:
                found = self.fetch_partitions(group_id, topic_id, sorted(partitions), stable)
                topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic_id, partitions=found))
        return topics


def offset_commit_entry(topic_id: UUID, requested: OffsetCommitRequestPartition) -> OffsetCommit:
    """Return the coordinator's form of a committed partition."""
    return OffsetCommit(
        topic_id,
        requested.partition_index,
        requested.committed_offset,
        requested.committed_leader_epoch,
        requested.committed_metadata or "",
    )


def fetched_partition(
    index: int, record: OffsetRecord | None, error: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
    """Return the result for a partition; no record means no committed offset."""
    if record is None:
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=error
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=record.offset,
        committed_leader_epoch=record.leader_epoch,
        metadata=record.metadata,
        error_code=error,
    )


def legacy_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    """Return a topic in the form of versions before 8."""
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponsePartition(
                partition_index=p.partition_index,
                committed_offset=p.committed_offset,
                committed_leader_epoch=p.committed_leader_epoch,
                metadata=p.metadata,
                error_code=p.error_code,
            )
            for p in topic.partitions
        ],
    )


def commit_failed(request: OffsetCommitRequest, error: int) -> OffsetCommitResponse:
    """Return the response to OffsetCommit with an error for each partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=t.name,
                topic_id=t.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=error)
                    for p in t.partitions
                ],
            )
            for t in request.topics
        ]
    )


def fetch_failed(request: OffsetFetchRequest, error: int) -> OffsetFetchResponse:
    """Return the response to OffsetFetch with an error at every level: group, response and partition."""
    groups = [OffsetFetchResponseGroup(group_id=g.group_id, error_code=error) for g in request.groups]
    topics = [
        OffsetFetchResponseTopic(
            name=t.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=error
                )
                for index in t.partition_indexes
            ],
        )
        for t in request.topics or ()
    ]
    return OffsetFetchResponse(error_code=error, groups=groups, topics=topics)
