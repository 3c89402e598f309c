"""Admin calls about groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from penstock.client import group_protocol
from penstock.client.admin.configs import ConfigAdminClient
from penstock.client.admin.types import GroupDescription, GroupListing, GroupMember
from penstock.client.cluster import COORDINATOR
from penstock.client.errors import BrokerError, ClientError, check
from penstock.client.group_protocol import by_topic
from penstock.client.many import all_or_raise, request_by_node, request_each
from penstock.client.offsets import COORDINATOR_MOVED, check_group, commit_offsets, fetch_committed
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import delete_groups, describe_groups, list_groups, offset_delete
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from penstock.wire.schema import MalformedMessage

T = TypeVar("T")
Committed = dict[TopicPartition, OffsetAndMetadata]

DEAD = "Dead"
"""The state of a group that does not exist."""
MAX_DESCRIBED_GROUPS, MAX_FETCHED_GROUPS = 200, 100
"""Groups per describe or delete request, and per offset fetch request."""
BATCHED_VERSION, MAX_NAMED_VERSION = 8, 9
"""First version of OffsetFetch with many groups, and last version with topic names."""


class GroupAdminClient(ConfigAdminClient):
    """Group and offset calls; applications use `admin.Admin`."""

    async def list_groups(self) -> list[GroupListing]:
        """Return the groups of all coordinators, sorted by name."""
        return sorted(await self._of_each_broker(self._groups_of), key=lambda g: g.group_id)

    async def _groups_of(self, node_id: int) -> list[GroupListing]:
        response = await self._cluster.call(node_id, list_groups.ListGroupsRequest(), list_groups.ListGroupsResponse)
        check(response.error_code, f"groups of broker {node_id}")
        return [GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups]

    async def _describe_classic(self, groups: list[str]) -> dict[str, GroupDescription | ClientError]:
        """Describe groups of the classic protocol; others have the state "Dead"."""

        async def request_chunk(node_id: int, chunk: list[str]) -> dict[str, GroupDescription | ClientError]:
            request = describe_groups.DescribeGroupsRequest(groups=chunk)
            response = await self._cluster.call(
                node_id, request, describe_groups.DescribeGroupsResponse, purpose=COORDINATOR
            )
            return {found.group_id: group_description(found) for found in response.groups}

        return await self._request_coordinators(groups, request_chunk)

    async def _request_coordinators(
        self, groups: list[str], request_chunk: Callable[[int, list[str]], Awaitable[Mapping[str, T | ClientError]]]
    ) -> dict[str, T | ClientError]:
        """Send requests to each coordinator; forget those that have moved."""
        results: dict[str, T | ClientError] = {}
        nodes: dict[int, list[str]] = {}
        for group, found in (await self._cluster.coordinators(groups)).items():
            if isinstance(found, ClientError):
                results[group] = found
            else:
                nodes.setdefault(found, []).append(group)
        results |= await request_by_node(nodes, request_chunk)
        for group, response in results.items():
            if isinstance(response, ClientError) and (
                not isinstance(response, BrokerError) or response.code in COORDINATOR_MOVED
            ):
                self._cluster.forget_coordinator(group)
        return results

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups with their committed offsets. Groups with members are refused (NON_EMPTY_GROUP)."""
        all_or_raise(await self.delete_groups_many(groups))

    async def delete_groups_many(self, groups: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete many groups; returns an error for each, or None."""

        async def request_chunk(node_id: int, chunk: list[str]) -> dict[str, ClientError | None]:
            request = delete_groups.DeleteGroupsRequest(groups_names=chunk)
            response = await self._cluster.call(
                node_id, request, delete_groups.DeleteGroupsResponse, purpose=COORDINATOR
            )
            return {
                r.group_id: group_error(r.group_id, r.error_code) if r.error_code else None for r in response.results
            }

        return await request_each(
            self._cluster,
            groups,
            lambda chunk: self._request_coordinators(chunk, request_chunk),
            chunk_size=MAX_DESCRIBED_GROUPS,
        )

    async def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets, for these partitions or all."""
        return await fetch_committed(self._cluster, group, partitions)

    async def committed_many(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | ClientError]:
        """Return all committed offsets of many groups (KIP-709); empty for unknown groups."""

        async def request_chunk(node_id: int, chunk: list[str]) -> dict[str, Committed | ClientError]:
            connection = await self._cluster.connection(node_id, COORDINATOR)
            if connection.version(OffsetFetchRequest, MAX_NAMED_VERSION) < BATCHED_VERSION:
                return await self._committed_one_by_one(chunk)
            request = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in chunk], require_stable=True
            )
            response = await connection.call(request, OffsetFetchResponse, newest=MAX_NAMED_VERSION)
            return {found.group_id: parse_committed(found) for found in response.groups}

        return await request_each(
            self._cluster,
            groups,
            lambda chunk: self._request_coordinators(chunk, request_chunk),
            chunk_size=MAX_FETCHED_GROUPS,
        )

    async def _committed_one_by_one(self, groups: list[str]) -> dict[str, Committed | ClientError]:
        found: dict[str, Committed | ClientError] = {}
        for group in groups:
            try:
                found[group] = await fetch_committed(self._cluster, group, None)
            except ClientError as e:
                found[group] = e
        return found

    async def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Set a group's committed offsets. Raises `BrokerError` (UNKNOWN_MEMBER_ID) if the group has members."""
        plain = {tp: o if isinstance(o, OffsetAndMetadata) else OffsetAndMetadata(o) for tp, o in offsets.items()}
        await commit_offsets(self._cluster, group, plain)

    async def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets of partitions that no member subscribes to (KIP-496)."""
        topics = [
            offset_delete.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=p) for p in numbers],
            )
            for topic, numbers in by_topic(partitions).items()
        ]
        request = offset_delete.OffsetDeleteRequest(group_id=group, topics=topics)

        async def request_chunk() -> None:
            response = await self._cluster.call_coordinator(group, request, offset_delete.OffsetDeleteResponse)
            check_group(self._cluster, group, response.error_code)
            for topic in response.topics:
                for p in topic.partitions:
                    check_group(self._cluster, group, p.error_code, f"{topic.name}-{p.partition_index}")

        if topics:
            await self._cluster.retrying(request_chunk)


def group_error(group: str, code: int, message: str | None = None) -> BrokerError:
    """Return the exception for an error code."""
    return BrokerError(code, f'group "{group}"', message)


def unknown_group(group: str) -> GroupDescription:
    """Return the description of a group that does not exist."""
    return GroupDescription(group, DEAD, "", "", ())


def group_description(found: describe_groups.DescribedGroup) -> GroupDescription | ClientError:
    """Return a group from a response."""
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return unknown_group(found.group_id)
    if found.error_code:
        return group_error(found.group_id, found.error_code, found.error_message)
    members = tuple(sorted((group_member(m) for m in found.members), key=lambda m: m.member_id))
    return GroupDescription(found.group_id, found.group_state, found.protocol_type, found.protocol_data, members)


def parse_committed(found: OffsetFetchResponseGroup) -> Committed | ClientError:
    """Return a group's committed offsets from a response. An error of one partition fails the group, as it is
    retriable.
    """
    if found.error_code:
        return group_error(found.group_id, found.error_code)
    committed: Committed = {}
    for topic in found.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                return BrokerError(p.error_code, f'group "{found.group_id}", {tp}')
            if p.committed_offset >= 0:
                committed[tp] = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
    return committed


def group_member(found: describe_groups.DescribedGroupMember) -> GroupMember:
    """Return a member from a response."""
    try:
        partitions = group_protocol.read_assignment(found.member_assignment)
    except MalformedMessage:
        partitions = []  # groups of other protocol types, such as Connect, use another format
    return GroupMember(
        found.member_id, found.group_instance_id, found.client_id, found.client_host, tuple(sorted(partitions))
    )
