"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets: the start offsets of share-partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.api.routes import RequestContext, Route
from penstock.group import admin
from penstock.group.coordinator import GroupCoordinator
from penstock.group.modern.group import GroupType
from penstock.share.coordinator import ShareStates
from penstock.share.state import ShareState
from penstock.share.state_client import SharePartitionKey
from penstock.state.view import ClusterView, TopicView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from penstock.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from penstock.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from penstock.wire.primitives import ZERO_UUID

LatestOffsetsQuery = Callable[[Mapping[tuple[str, int], int]], Awaitable[Mapping[tuple[str, int], int]]]
"""Returns the high watermarks of (topic, partition), given an offset of each; unknown ones are left out."""
UNKNOWN = -1
"""The start offset of a share-partition without a state, and a lag that is not known."""
UNKNOWN_TOPIC = "This server does not host this topic-partition."


class GroupRefusal(NamedTuple):
    """Why the offsets of a group cannot be changed."""

    error: ErrorCode
    message: str | None = None


class ShareOffsetsApi:
    """Serves administrators of share groups."""

    def __init__(
        self, coordinator: GroupCoordinator, states: ShareStates, view: ClusterView, latest: LatestOffsetsQuery
    ) -> None:
        self.coordinator, self.states, self.view, self.latest = coordinator, states, view, latest

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(DescribeShareGroupOffsetsRequest, self.describe, describe_failed),
            Route(AlterShareGroupOffsetsRequest, self.alter, alter_failed),
            Route(DeleteShareGroupOffsetsRequest, self.delete, delete_failed),
        ]

    # --- description

    async def describe(
        self, request: DescribeShareGroupOffsetsRequest, context: RequestContext
    ) -> DescribeShareGroupOffsetsResponse:
        """Serve DescribeShareGroupOffsets 0 to 1, from version 1 with the lag."""
        groups = [self.describe_group(group) for group in request.groups]
        if context.version >= 1:
            await self.add_lags(groups)
        return DescribeShareGroupOffsetsResponse(groups=groups)

    def describe_group(
        self, requested: DescribeShareGroupOffsetsRequestGroup
    ) -> DescribeShareGroupOffsetsResponseGroup:
        """Return the start offsets of a group, in all its topics if the request names none."""
        group_id = requested.group_id
        error = self.coordinator.error(group_id)
        if error:
            return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, error_code=error)
        states = self.states.of_group(group_id)
        topics = self.topics_of(group_id, states) if requested.topics is None else requested.topics
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, topics=[self.describe_topic(group_id, topic, states) for topic in topics]
        )

    def topics_of(
        self, group_id: str, states: Iterable[SharePartitionKey]
    ) -> list[DescribeShareGroupOffsetsRequestTopic]:
        """Return the partitions with states and those of subscribed topics, by the names of their topics."""
        found: dict[str, set[int]] = {}
        for _, topic_id, index in states:
            topic = self.view.topics_by_id.get(topic_id)
            if topic is not None:
                found.setdefault(topic.name, set()).add(index)
        group = self.coordinator.find_modern(group_id)
        for name in group.subscribed_topics() if group is not None and group.group_type is GroupType.SHARE else ():
            topic = self.view.topics.get(name)
            if topic is not None:
                found.setdefault(name, set()).update(range(topic.shown_count))
        return [DescribeShareGroupOffsetsRequestTopic(name, sorted(indexes)) for name, indexes in sorted(found.items())]

    def describe_topic(
        self,
        group_id: str,
        requested: DescribeShareGroupOffsetsRequestTopic,
        states: Mapping[SharePartitionKey, ShareState],
    ) -> DescribeShareGroupOffsetsResponseTopic:
        """Return the start offsets in partitions of a topic; those without a state, or that do not exist, have none."""
        topic = self.view.topics.get(requested.topic_name)
        topic_id = ZERO_UUID if topic is None else topic.topic_id
        return DescribeShareGroupOffsetsResponseTopic(
            topic_name=requested.topic_name,
            topic_id=topic_id,
            partitions=[
                described_partition(index, states.get(SharePartitionKey(group_id, topic_id, index)))
                for index in requested.partitions
            ],
        )

    async def add_lags(self, groups: list[DescribeShareGroupOffsetsResponseGroup]) -> None:
        """Set the lags: the records from the start offset to the high watermark that are not done (KIP-1226)."""
        described = [
            ((topic.topic_name, partition.partition_index), partition)
            for group in groups
            for topic in group.topics
            for partition in topic.partitions
            if partition.start_offset != UNKNOWN and not partition.error_code
        ]
        ends = await self.latest({name: partition.start_offset for name, partition in described})
        for name, partition in described:
            done = -partition.lag
            end = ends.get(name)
            partition.lag = UNKNOWN if end is None else max(end - partition.start_offset - done, 0)

    # --- changes

    async def alter(
        self, request: AlterShareGroupOffsetsRequest, context: RequestContext
    ) -> AlterShareGroupOffsetsResponse:
        """Serve AlterShareGroupOffsets 0. A change in a known topic creates the group."""
        refusal = self.refusal(request.group_id)
        is_new = not refusal.error and not self.coordinator.exists(request.group_id)
        if is_new and any(topic.topic_name in self.view.topics for topic in request.topics):
            refusal = GroupRefusal(await self.coordinator.modern.create_empty(GroupType.SHARE, request.group_id))
        if refusal.error:
            return AlterShareGroupOffsetsResponse(error_code=refusal.error, error_message=refusal.message)
        responses = []
        for requested in request.topics:
            topic = self.view.topics.get(requested.topic_name)
            errors = await asyncio.gather(
                *(self.alter_one(request.group_id, topic, partition) for partition in requested.partitions)
            )
            responses.append(
                AlterShareGroupOffsetsResponseTopic(
                    topic_name=requested.topic_name,
                    topic_id=ZERO_UUID if topic is None else topic.topic_id,
                    partitions=[
                        altered_partition(partition.partition_index, error)
                        for partition, error in zip(requested.partitions, errors, strict=True)
                    ],
                )
            )
        return AlterShareGroupOffsetsResponse(responses=responses)

    async def alter_one(
        self, group_id: str, topic: TopicView | None, requested: AlterShareGroupOffsetsRequestPartition
    ) -> ErrorCode:
        """Set the start offset in one partition."""
        if topic is None or not 0 <= requested.partition_index < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if requested.start_offset < 0:
            return ErrorCode.INVALID_REQUEST
        key = SharePartitionKey(group_id, topic.topic_id, requested.partition_index)
        return await self.states.reset(key, requested.start_offset)

    async def delete(
        self, request: DeleteShareGroupOffsetsRequest, context: RequestContext
    ) -> DeleteShareGroupOffsetsResponse:
        """Serve DeleteShareGroupOffsets 0."""
        refusal = self.refusal(request.group_id)
        if not refusal.error and not self.coordinator.exists(request.group_id):
            refusal = GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {request.group_id} not found.")
        if refusal.error:
            return DeleteShareGroupOffsetsResponse(error_code=refusal.error, error_message=refusal.message)
        return DeleteShareGroupOffsetsResponse(
            responses=[await self.delete_topic(request.group_id, each.topic_name) for each in request.topics]
        )

    async def delete_topic(self, group_id: str, name: str) -> DeleteShareGroupOffsetsResponseTopic:
        """Delete the start offsets of a group in one topic."""
        topic = self.view.topics.get(name)
        if topic is None:
            return DeleteShareGroupOffsetsResponseTopic(
                topic_name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=UNKNOWN_TOPIC
            )
        if all(key.topic_id != topic.topic_id for key in self.states.of_group(group_id)):
            return DeleteShareGroupOffsetsResponseTopic(
                topic_name=name,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message="There is no offset information to delete.",
            )
        error = await self.states.delete(group_id, topic.topic_id)
        return DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic.topic_id, error_code=error)

    def refusal(self, group_id: str) -> GroupRefusal:
        """Return why the offsets of a group cannot be changed: it is unavailable, no share group, or has members."""
        if not group_id:
            return GroupRefusal(ErrorCode.INVALID_GROUP_ID, "The group id is empty.")
        error = self.coordinator.error(group_id)
        if error:
            return GroupRefusal(error)
        found = admin.describe_modern(self.coordinator, group_id, GroupType.SHARE)
        if found is None and self.coordinator.exists(group_id):
            return GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        if found is not None and found.group is not None and found.group.members:
            return GroupRefusal(ErrorCode.NON_EMPTY_GROUP, f"Group {group_id} is not empty; stop its members first.")
        return GroupRefusal(ErrorCode.NONE)


def completed(state: ShareState) -> int:
    """Return the number of offsets above the start offset whose delivery is complete."""
    return sum(run.last - run.first + 1 for run in state.snapshot.runs if run.state.is_final)


def described_partition(index: int, state: ShareState | None) -> DescribeShareGroupOffsetsResponsePartition:
    """Return the start offset of a share-partition; the lag is the negative number of offsets that are done."""
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=UNKNOWN if state is None else state.snapshot.start_offset,
        leader_epoch=0 if state is None else state.version.leader_epoch,
        lag=UNKNOWN if state is None else -completed(state),
    )


def altered_partition(index: int, error: int) -> AlterShareGroupOffsetsResponsePartition:
    """Return the result of a partition in AlterShareGroupOffsets."""
    message = UNKNOWN_TOPIC if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
    return AlterShareGroupOffsetsResponsePartition(partition_index=index, error_code=error, error_message=message)


def describe_failed(request: DescribeShareGroupOffsetsRequest, error: int) -> DescribeShareGroupOffsetsResponse:
    """Return the response to DescribeShareGroupOffsets with an error for each group."""
    groups = [DescribeShareGroupOffsetsResponseGroup(group_id=g.group_id, error_code=error) for g in request.groups]
    return DescribeShareGroupOffsetsResponse(groups=groups)


def alter_failed(request: AlterShareGroupOffsetsRequest, error: int) -> AlterShareGroupOffsetsResponse:
    """Return the response to AlterShareGroupOffsets with an error for the group and for each partition."""
    responses = [
        AlterShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name,
            partitions=[altered_partition(partition.partition_index, error) for partition in topic.partitions],
        )
        for topic in request.topics
    ]
    return AlterShareGroupOffsetsResponse(error_code=error, responses=responses)


def delete_failed(request: DeleteShareGroupOffsetsRequest, error: int) -> DeleteShareGroupOffsetsResponse:
    """Return the response to DeleteShareGroupOffsets with an error for the group and for each topic."""
    responses = [
        DeleteShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, error_code=error) for topic in request.topics
    ]
    return DeleteShareGroupOffsetsResponse(error_code=error, responses=responses)
