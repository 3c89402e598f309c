"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer group protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from uuid import UUID

from penstock.api.exchange import PeerInfo
from penstock.api.group_admin import ALL_OPERATIONS, NO_OPERATIONS
from penstock.api.modern_groups import confirmed, existing_topics, missing_text
from penstock.api.routes import RequestContext, Route
from penstock.group import admin
from penstock.group.coordinator import GroupCoordinator
from penstock.group.fencing import FATAL_ERRORS
from penstock.group.modern.assignment import NOTHING, Assignment, assignment_of
from penstock.group.modern.consumer import HeartbeatResult, MemberHeartbeat
from penstock.group.modern.group import GroupType, ModernGroup
from penstock.group.modern.member import JOIN_EPOCH, ModernMember
from penstock.group.modern.topics import TopicFilter
from penstock.group.phases import GroupState
from penstock.security.authorizer import Authorizer
from penstock.security.principal import Principal
from penstock.state.view import ClusterView
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.consumer_group_describe import Assignment as DescribedAssignment
from penstock.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)
from penstock.wire.messages.consumer_group_describe import TopicPartitions as DescribedPartitions
from penstock.wire.messages.consumer_group_heartbeat import (
    Assignment as HeartbeatAssignment,
)
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

CLIENT_MEMBER_ID_VERSION = 1
"""The version from which members make their own ids (KIP-1082)."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""The types of members in descriptions, by their protocols."""


@dataclass(frozen=True, slots=True)
class DescribableTopics:
    """The topics that a client may describe, as a filter for expressions: equal clients have equal filters."""

    authorizer: Authorizer
    principal: Principal
    host: str

    def __call__(self, name: str) -> bool:
        """Return whether the client may describe a topic."""
        return self.authorizer.is_allowed(self.principal, self.host, AclOperation.DESCRIBE, ResourceType.TOPIC, name)


def every_topic(name: str) -> bool:
    """Return True: a broker without authorization hides no topic."""
    return True


class ConsumerGroupsApi:
    """Serves members and descriptions of consumer groups."""

    def __init__(self, coordinator: GroupCoordinator, view: ClusterView, authorizer: Authorizer) -> None:
        self.coordinator, self.view, self.authorizer = coordinator, view, authorizer

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(ConsumerGroupHeartbeatRequest, self.heartbeat, heartbeat_failed),
            Route(ConsumerGroupDescribeRequest, self.describe, describe_failed),
        ]

    # --- members

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
        """Serve ConsumerGroupHeartbeat 0 to 1."""
        result = self.coordinator.modern.heartbeat(
            GroupType.CONSUMER, request.group_id, self.heartbeat_of(request, context)
        )
        if isinstance(result, HeartbeatResult) and result.error not in FATAL_ERRORS:
            return heartbeat_response(result)
        return self.await_heartbeat(request.group_id, result)

    async def await_heartbeat(
        self, group_id: str, pending: HeartbeatResult | Awaitable[HeartbeatResult]
    ) -> ConsumerGroupHeartbeatResponse:
        """Return the response once it may leave."""
        return heartbeat_response(await confirmed(self.coordinator, group_id, pending))

    def heartbeat_of(self, request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> MemberHeartbeat:
        """Return the coordinator's form of a heartbeat."""
        member_id, owned = request.member_id, request.topic_partitions
        if not member_id and context.version < CLIENT_MEMBER_ID_VERSION and request.member_epoch == JOIN_EPOCH:
            member_id = self.coordinator.new_member_id()
        return MemberHeartbeat(
            member_id,
            request.member_epoch,
            request.instance_id,
            request.rack_id,
            request.rebalance_timeout_ms,
            None if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names),
            request.subscribed_topic_regex,
            request.server_assignor,
            None if owned is None else assignment_of((t.topic_id, t.partitions) for t in owned),
            context.client_id or "",
            f"/{context.peer.host}",
            self.topic_filter(context.peer),
        )

    def topic_filter(self, peer: PeerInfo) -> TopicFilter:
        """Return the filter for expressions of a client."""
        if not self.authorizer.is_enabled:
            return every_topic
        return DescribableTopics(self.authorizer, peer.principal, peer.host)

    # --- descriptions

    def describe(self, request: ConsumerGroupDescribeRequest, context: RequestContext) -> ConsumerGroupDescribeResponse:
        """Serve ConsumerGroupDescribe 0 to 1."""
        operations = ALL_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
        return ConsumerGroupDescribeResponse(groups=[self.describe_one(g, operations) for g in request.group_ids])

    def describe_one(self, group_id: str, operations: int) -> DescribedGroup:
        """Describe a group; the error if this broker does not coordinate it or it is none of the protocol."""
        error = self.coordinator.error(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
        if error:
            return DescribedGroup(error_code=error, group_id=group_id)
        found = admin.describe_modern(self.coordinator, group_id, GroupType.CONSUMER)
        if found is None:
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=missing_text(self.coordinator, group_id, GroupType.CONSUMER),
                group_id=group_id,
            )
        epoch, group = found
        if group is None:
            return DescribedGroup(
                group_id=group_id,
                group_state=GroupState.EMPTY.value,
                group_epoch=epoch,
                assignment_epoch=epoch,
                assignor_name=self.coordinator.config.group_consumer_assignors[0],
                authorized_operations=operations,
            )
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.assignor,
            members=[self.describe_member(group, member) for member in group.members.values()],
            authorized_operations=operations,
        )

    def describe_member(self, group: ModernGroup, member: ModernMember) -> Member:
        """Describe a member; topics that no longer exist are left out."""
        wanted = member.subscription
        return Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=wanted.rack,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(wanted.topic_names),
            subscribed_topic_regex=wanted.topic_pattern,
            assignment=self.describe_assignment(member.assigned),
            target_assignment=self.describe_assignment(group.target.get(member.member_id, NOTHING)),
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )

    def describe_assignment(self, partitions: Assignment) -> DescribedAssignment:
        """Describe partitions of existing topics."""
        return DescribedAssignment(
            topic_partitions=[
                DescribedPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=indexes)
                for topic, indexes in existing_topics(self.view, partitions)
            ]
        )


def topic_partitions(partitions: Iterable[tuple[UUID, frozenset[int]]]) -> list[TopicPartitions]:
    """Return partitions in the form of a response."""
    return [TopicPartitions(topic_id=topic_id, partitions=sorted(indexes)) for topic_id, indexes in partitions]


def heartbeat_response(result: HeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    """Return the response to a heartbeat."""
    assigned = result.assigned
    return ConsumerGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=None if result.error else result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.interval_ms,
        assignment=None
        if assigned is None
        else HeartbeatAssignment(topic_partitions=topic_partitions(assigned.items())),
    )


def heartbeat_failed(request: ConsumerGroupHeartbeatRequest, error: int) -> ConsumerGroupHeartbeatResponse:
    """Return the response to ConsumerGroupHeartbeat with an error."""
    return ConsumerGroupHeartbeatResponse(error_code=error)


def describe_failed(request: ConsumerGroupDescribeRequest, error: int) -> ConsumerGroupDescribeResponse:
    """Return the response to ConsumerGroupDescribe with an error for each group."""
    return ConsumerGroupDescribeResponse(
        groups=[DescribedGroup(error_code=error, group_id=group_id) for group_id in request.group_ids]
    )
