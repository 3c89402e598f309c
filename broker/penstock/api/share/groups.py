"""ShareGroupHeartbeat and ShareGroupDescribe: members of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Awaitable

from penstock.api.group_admin import ALL_OPERATIONS, NO_OPERATIONS
from penstock.api.modern_groups import confirmed, existing_topics, missing_text
from penstock.api.routes import RequestContext, Route
from penstock.group import admin
from penstock.group.coordinator import GroupCoordinator
from penstock.group.fencing import FATAL_ERRORS
from penstock.group.modern.assignment import Assignment
from penstock.group.modern.consumer import HeartbeatResult
from penstock.group.modern.group import GroupType
from penstock.group.modern.member import ModernMember
from penstock.group.modern.share import share_heartbeat
from penstock.group.phases import GroupState
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.share_group_describe import Assignment as DescribedAssignment
from penstock.wire.messages.share_group_describe import (
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from penstock.wire.messages.share_group_describe import TopicPartitions as DescribedPartitions
from penstock.wire.messages.share_group_heartbeat import Assignment as HeartbeatAssignment
from penstock.wire.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


class ShareGroupsApi:
    """Serves members and descriptions of share groups."""

    def __init__(self, coordinator: GroupCoordinator, view: ClusterView) -> None:
        self.coordinator, self.view = coordinator, view

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(ShareGroupHeartbeatRequest, self.heartbeat, heartbeat_failed),
            Route(ShareGroupDescribeRequest, self.describe, describe_failed),
        ]

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext
    ) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
        """Serve ShareGroupHeartbeat 1."""
        given = share_heartbeat(
            request.member_id,
            request.member_epoch,
            request.rack_id,
            request.subscribed_topic_names,
            context.client_id or "",
            f"/{context.peer.host}",
        )
        result = self.coordinator.modern.heartbeat(GroupType.SHARE, request.group_id, given)
        if isinstance(result, HeartbeatResult) and result.error not in FATAL_ERRORS:
            return heartbeat_response(result)
        return self.await_heartbeat(request.group_id, result)

    async def await_heartbeat(
        self, group_id: str, pending: HeartbeatResult | Awaitable[HeartbeatResult]
    ) -> ShareGroupHeartbeatResponse:
        """Return the response once it may leave."""
        return heartbeat_response(await confirmed(self.coordinator, group_id, pending))

    def describe(self, request: ShareGroupDescribeRequest, context: RequestContext) -> ShareGroupDescribeResponse:
        """Serve ShareGroupDescribe 1."""
        operations = ALL_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
        return ShareGroupDescribeResponse(groups=[self.describe_one(g, operations) for g in request.group_ids])

    def describe_one(self, group_id: str, operations: int) -> DescribedGroup:
        """Describe a group; the error if this broker does not coordinate it or it is no share group."""
        error = self.coordinator.error(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
        if error:
            return DescribedGroup(error_code=error, group_id=group_id)
        found = admin.describe_modern(self.coordinator, group_id, GroupType.SHARE)
        if found is None:
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=missing_text(self.coordinator, group_id, GroupType.SHARE),
                group_id=group_id,
            )
        epoch, group = found
        return DescribedGroup(
            group_id=group_id,
            group_state=GroupState.EMPTY.value if group is None else group.state.value,
            group_epoch=epoch,
            assignment_epoch=epoch if group is None else group.assignment_epoch,
            assignor_name=self.coordinator.config.group_share_assignors[0],
            members=[] if group is None else [self.describe_member(member) for member in group.members.values()],
            authorized_operations=operations,
        )

    def describe_member(self, member: ModernMember) -> Member:
        """Describe a member; topics that no longer exist are left out."""
        return Member(
            member_id=member.member_id,
            rack_id=member.subscription.rack,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.subscription.topic_names),
            assignment=self.describe_assignment(member.assigned),
        )

    def describe_assignment(self, partitions: Assignment) -> DescribedAssignment:
        """Describe partitions of existing topics."""
        return DescribedAssignment(
            topic_partitions=[
                DescribedPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=indexes)
                for topic, indexes in existing_topics(self.view, partitions)
            ]
        )


def heartbeat_response(result: HeartbeatResult) -> ShareGroupHeartbeatResponse:
    """Return the response to a heartbeat."""
    assigned = result.assigned
    return ShareGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=None if result.error else result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.interval_ms,
        assignment=None
        if assigned is None
        else HeartbeatAssignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(indexes)) for topic_id, indexes in assigned.items()
            ]
        ),
    )


def heartbeat_failed(request: ShareGroupHeartbeatRequest, error: int) -> ShareGroupHeartbeatResponse:
    """Return the response to ShareGroupHeartbeat with an error."""
    return ShareGroupHeartbeatResponse(error_code=error)


def describe_failed(request: ShareGroupDescribeRequest, error: int) -> ShareGroupDescribeResponse:
    """Return the response to ShareGroupDescribe with an error for each group."""
    return ShareGroupDescribeResponse(
        groups=[DescribedGroup(error_code=error, group_id=group_id) for group_id in request.group_ids]
    )
