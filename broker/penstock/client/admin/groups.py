"""The half of the admin client that concerns groups and what they committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from penstock.client import group_protocol
from penstock.client.admin.configs import ConfigAdminClient
from penstock.client.admin.types import GroupDescription, GroupListing, GroupMember
from penstock.client.cluster import COORDINATOR
from penstock.client.errors import BrokerError, ClientError, check
from penstock.client.group_protocol import by_topic
from penstock.client.many import all_or_raise, ask_each, of_nodes
from penstock.client.offsets import MOVED, check_group, commit, fetch_committed
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

ASKED_TOGETHER, FETCHED_TOGETHER = 200, 100
"""Groups of one request: that describes or deletes them, and that tells what they have committed."""
MANY_GROUPS, MANY_GROUPS_BY_NAME = 8, 9
"""The versions of OffsetFetch that take many groups, and name topics by their names."""


class GroupAdminClient(ConfigAdminClient):
    """Groups and offsets; `admin.Admin` is what applications use."""

    async def list_groups(self) -> list[GroupListing]:
        """The groups that every broker coordinates, by name."""
        return sorted(await self._of_each_broker(self._groups_of), key=lambda g: g.group_id)

    async def _groups_of(self, node_id: int) -> list[GroupListing]:
        answer = await self._cluster.call(node_id, list_groups.ListGroupsRequest(), list_groups.ListGroupsResponse)
        check(answer.error_code, f"groups of broker {node_id}")
        return [GroupListing(g.group_id, g.protocol_type, g.group_state) for g in answer.groups]

    async def describe_group(self, group: str) -> GroupDescription:
        """A group with its members. A group that nobody knows is "Dead"."""
        return all_or_raise(await self.describe_groups([group]))[group]

    async def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription | ClientError]:
        """As `describe_group` for many groups, each with an answer of its own."""
        return await ask_each(self._cluster, groups, self._describe_groups, at_a_time=ASKED_TOGETHER)

    async def _describe_groups(self, groups: list[str]) -> dict[str, GroupDescription | ClientError]:
        async def ask(node_id: int, part: list[str]) -> dict[str, GroupDescription | ClientError]:
            request = describe_groups.DescribeGroupsRequest(groups=part)
            answer = await self._cluster.call(
                node_id, request, describe_groups.DescribeGroupsResponse, purpose=COORDINATOR
            )
            return {found.group_id: described(found) for found in answer.groups}

        return await self._ask_coordinators(groups, ask)

    async def _ask_coordinators(
        self, groups: list[str], ask: Callable[[int, list[str]], Awaitable[Mapping[str, T | ClientError]]]
    ) -> dict[str, T | ClientError]:
        """Asks each coordinator for its part; those that are no longer it are looked up again the next time."""
        answers: dict[str, T | ClientError] = {}
        nodes: dict[int, list[str]] = {}
        for group, found in (await self._cluster.coordinators(groups)).items():
            if isinstance(found, ClientError):
                answers[group] = found
            else:
                nodes.setdefault(found, []).append(group)
        answers |= await of_nodes(nodes, ask)
        for group, answer in answers.items():
            if isinstance(answer, ClientError) and (not isinstance(answer, BrokerError) or answer.code in MOVED):
                self._cluster.forget_coordinator(group)
        return answers

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Deletes groups, committed offsets included; one with members is refused (NON_EMPTY_GROUP)."""
        all_or_raise(await self.delete_groups_many(groups))

    async def delete_groups_many(self, groups: Iterable[str]) -> dict[str, ClientError | None]:
        """As `delete_groups`, with what became of each: None where it is deleted."""

        async def ask(node_id: int, part: list[str]) -> dict[str, ClientError | None]:
            request = delete_groups.DeleteGroupsRequest(groups_names=part)
            answer = await self._cluster.call(node_id, request, delete_groups.DeleteGroupsResponse, purpose=COORDINATOR)
            return {r.group_id: group_error(r.group_id, r.error_code) if r.error_code else None for r in answer.results}

        return await ask_each(
            self._cluster, groups, lambda part: self._ask_coordinators(part, ask), at_a_time=ASKED_TOGETHER
        )

    async def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, for these partitions or all."""
        return await fetch_committed(self._cluster, group, partitions)

    async def committed_many(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | ClientError]:
        """All that each of many groups has committed (KIP-709); nothing for a group that is not there."""

        async def ask(node_id: int, part: list[str]) -> dict[str, Committed | ClientError]:
            connection = await self._cluster.connection(node_id, COORDINATOR)
            if connection.version(OffsetFetchRequest, MANY_GROUPS_BY_NAME) < MANY_GROUPS:
                return await self._committed_one_by_one(part)
            request = OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in part], require_stable=True
            )
            answer = await connection.call(request, OffsetFetchResponse, newest=MANY_GROUPS_BY_NAME)
            return {found.group_id: committed_by(found) for found in answer.groups}

        return await ask_each(
            self._cluster, groups, lambda part: self._ask_coordinators(part, ask), at_a_time=FETCHED_TOGETHER
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
        """Sets a group's committed offsets. Raises `BrokerError` (UNKNOWN_MEMBER_ID) while the group has members."""
        plain = {tp: o if isinstance(o, OffsetAndMetadata) else OffsetAndMetadata(o) for tp, o in offsets.items()}
        await commit(self._cluster, group, plain)

    async def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forgets a group's committed offsets of partitions that no member of it subscribes to (KIP-496)."""
        topics = [
            offset_delete.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=p) for p in numbers],
            )
            for topic, numbers in by_topic(partitions).items()
        ]
        request = offset_delete.OffsetDeleteRequest(group_id=group, topics=topics)

        async def ask() -> None:
            answer = await self._cluster.call_coordinator(group, request, offset_delete.OffsetDeleteResponse)
            check_group(self._cluster, group, answer.error_code)
            for topic in answer.topics:
                for p in topic.partitions:
                    check_group(self._cluster, group, p.error_code, f"{topic.name}-{p.partition_index}")

        if topics:
            await self._cluster.retrying(ask)


def group_error(group: str, code: int, message: str | None = None) -> BrokerError:
    return BrokerError(code, f"group {group!r}", message)


def described(found: describe_groups.DescribedGroup) -> GroupDescription | ClientError:
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return GroupDescription(found.group_id, "Dead", "", "", ())
    if found.error_code:
        return group_error(found.group_id, found.error_code, found.error_message)
    members = tuple(sorted((member(m) for m in found.members), key=lambda m: m.member_id))
    return GroupDescription(found.group_id, found.group_state, found.protocol_type, found.protocol_data, members)


def committed_by(found: OffsetFetchResponseGroup) -> Committed | ClientError:
    """What a group has committed; an error of one partition is the group's, as it may pass."""
    if found.error_code:
        return group_error(found.group_id, found.error_code)
    committed: Committed = {}
    for topic in found.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                return BrokerError(p.error_code, f"group {found.group_id!r}, {tp}")
            if p.committed_offset >= 0:
                committed[tp] = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
    return committed


def member(found: describe_groups.DescribedGroupMember) -> GroupMember:
    try:
        partitions = group_protocol.read_assignment(found.member_assignment)
    except MalformedMessage:
        partitions = []  # a group of another kind (such as Connect) has documents of its own
    return GroupMember(
        found.member_id, found.group_instance_id, found.client_id, found.client_host, tuple(sorted(partitions))
    )
