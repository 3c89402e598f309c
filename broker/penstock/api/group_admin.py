"""DescribeGroups, ListGroups, DeleteGroups and OffsetDelete: group administration."""

from __future__ import annotations

import asyncio

from penstock.api.routes import RequestContext, Route
from penstock.group import admin
from penstock.group.coordinator import GroupCoordinator
from penstock.group.phases import GroupState
from penstock.state.view import ClusterView
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

NOT_FOUND_VERSION = 6
"""The DescribeGroups version from which a missing group is an error; before, it is described as dead."""
READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 6, 8, 10, 11
ALL_OPERATIONS = sum(1 << operation for operation in (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS))
"""Bit field of operations on a group (KIP-430): all that exist. Authorization removes those that are denied."""
NO_OPERATIONS = -(1 << 31)
MAX_CONCURRENT_DELETIONS = 64
"""Groups of a request that are deleted concurrently, which share the store's transactions."""


class GroupAdminApi:
    """Serves group administration."""

    def __init__(self, coordinator: GroupCoordinator, view: ClusterView) -> None:
        self.coordinator = coordinator
        self.view = view

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(DescribeGroupsRequest, self.describe_groups, describe_failed),
            Route(ListGroupsRequest, self.list_groups, list_failed),
            Route(DeleteGroupsRequest, self.delete_groups, delete_failed),
            Route(OffsetDeleteRequest, self.offset_delete, offset_delete_failed),
        ]

    def describe_groups(self, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
        """Serve DescribeGroups 0 to 6."""
        operations = ALL_OPERATIONS if request.include_authorized_operations else NO_OPERATIONS
        groups = [self.describe_one(group_id, context.version, operations) for group_id in request.groups]
        return DescribeGroupsResponse(groups=groups)

    def describe_one(self, group_id: str, version: int, operations: int) -> DescribedGroup:
        """Describe a group; the error if this broker does not coordinate it."""
        unavailable = self.coordinator.error(group_id)
        if unavailable:
            return DescribedGroup(error_code=unavailable, group_id=group_id)
        found = admin.describe(self.coordinator, group_id)
        if found is None:
            missing = version >= NOT_FOUND_VERSION
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND if missing else ErrorCode.NONE,
                error_message=f'group "{group_id}" does not exist' if missing else None,
                group_id=group_id,
                group_state=GroupState.DEAD.value,
                authorized_operations=NO_OPERATIONS if missing else operations,
            )
        return DescribedGroup(
            group_id=group_id,
            group_state=found.state.value,
            protocol_type=found.protocol_type,
            protocol_data=found.protocol,
            members=[
                DescribedGroupMember(
                    member_id=m.member_id,
                    group_instance_id=m.instance_id,
                    client_id=m.client_id,
                    client_host=m.client_host,
                    member_metadata=m.metadata,
                    member_assignment=m.assignment,
                )
                for m in found.members
            ],
            authorized_operations=operations,
        )

    def list_groups(self, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
        """Serve ListGroups 0 to 5: the groups that this broker coordinates."""
        if self.coordinator.unavailable:
            return ListGroupsResponse(error_code=self.coordinator.unavailable)
        found = admin.list_groups(self.coordinator, request.states_filter, request.types_filter)
        return ListGroupsResponse(
            groups=[
                ListedGroup(
                    group_id=each.group_id,
                    protocol_type=each.protocol_type,
                    group_state=each.state,
                    group_type=each.group_type.value,
                )
                for each in found
            ]
        )

    async def delete_groups(self, request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
        """Serve DeleteGroups 0 to 2."""
        group_ids = list(dict.fromkeys(request.groups_names))
        results = []
        for start in range(0, len(group_ids), MAX_CONCURRENT_DELETIONS):
            slice_ids = group_ids[start : start + MAX_CONCURRENT_DELETIONS]
            errors = await asyncio.gather(*map(self.coordinator.delete, slice_ids))
            results += [DeletableGroupResult(group_id=g, error_code=e) for g, e in zip(slice_ids, errors, strict=True)]
        return DeleteGroupsResponse(results=results)

    async def offset_delete(self, request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
        """Serve OffsetDelete 0."""
        named = [(self.view.topics.get(t.name), p.partition_index) for t in request.topics for p in t.partitions]
        error, errors = await admin.delete_offsets(self.coordinator, request.group_id, named)
        if error:
            return OffsetDeleteResponse(error_code=error)
        remaining_errors = iter(errors)
        topics = [
            OffsetDeleteResponseTopic(
                name=t.name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=p.partition_index, error_code=next(remaining_errors))
                    for p in t.partitions
                ],
            )
            for t in request.topics
        ]
        return OffsetDeleteResponse(topics=topics)


def describe_failed(request: DescribeGroupsRequest, error: int) -> DescribeGroupsResponse:
    """Return the response to DescribeGroups with an error for each group."""
    return DescribeGroupsResponse(groups=[DescribedGroup(error_code=error, group_id=g) for g in request.groups])


def list_failed(request: ListGroupsRequest, error: int) -> ListGroupsResponse:
    """Return the response to ListGroups with an error."""
    return ListGroupsResponse(error_code=error)


def delete_failed(request: DeleteGroupsRequest, error: int) -> DeleteGroupsResponse:
    """Return the response to DeleteGroups with an error for each group."""
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=error) for group_id in request.groups_names]
    )


def offset_delete_failed(request: OffsetDeleteRequest, error: int) -> OffsetDeleteResponse:
    """Return the response to OffsetDelete with an error for the group and for each partition."""
    topics = [
        OffsetDeleteResponseTopic(
            name=t.name,
            partitions=[
                OffsetDeleteResponsePartition(partition_index=p.partition_index, error_code=error) for p in t.partitions
            ],
        )
        for t in request.topics
    ]
    return OffsetDeleteResponse(error_code=error, topics=topics)
