"""Admin calls about groups whose broker assigns partitions: consumer groups (KIP-848) and share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from penstock.client.admin.groups import DEAD, MAX_DESCRIBED_GROUPS, GroupAdminClient, group_error, unknown_group
from penstock.client.admin.types import CONSUMER, SHARE, GroupDescription, GroupMember, ShareOffset
from penstock.client.cluster import COORDINATOR
from penstock.client.errors import ClientError, UnsupportedByBroker
from penstock.client.group_protocol import by_topic
from penstock.client.many import all_or_raise, request_each
from penstock.client.offsets import check_group
from penstock.client.types import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_share_group_offsets as alter
from penstock.wire.messages import consumer_group_describe as consumer
from penstock.wire.messages import describe_share_group_offsets as offsets
from penstock.wire.messages import share_group_describe as share

Descriptions = dict[str, GroupDescription | ClientError]
ShareOffsets = dict[TopicPartition, ShareOffset]


class ModernGroupAdminClient(GroupAdminClient):
    """Calls about consumer groups and share groups; applications use `admin.Admin`."""

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group of any type with its members; an unknown group has the state "Dead"."""
        return all_or_raise(await self.describe_groups([group]))[group]

    async def describe_groups(self, groups: Iterable[str]) -> Descriptions:
        """Describe many groups of any type; returns a result for each."""
        found = await self._describe_each(groups, self._describe_classic)
        for describe in (self._describe_consumer_groups, self._describe_share_groups):
            unknown = [group for group, each in found.items() if isinstance(each, GroupDescription) and is_dead(each)]
            if unknown:
                found |= await self._describe_each(unknown, describe)
        return found

    async def _describe_each(
        self, groups: Iterable[str], describe: Callable[[list[str]], Awaitable[Descriptions]]
    ) -> Descriptions:
        """Describe groups of one type; those of a type that a broker does not know have the state "Dead"."""
        found = await request_each(self._cluster, groups, describe, chunk_size=MAX_DESCRIBED_GROUPS)
        return {
            group: unknown_group(group) if isinstance(each, UnsupportedByBroker) else each
            for group, each in found.items()
        }

    async def _describe_consumer_groups(self, groups: list[str]) -> Descriptions:
        async def request_chunk(node_id: int, chunk: list[str]) -> Descriptions:
            request = consumer.ConsumerGroupDescribeRequest(group_ids=chunk)
            response = await self._cluster.call(
                node_id, request, consumer.ConsumerGroupDescribeResponse, purpose=COORDINATOR
            )
            return {found.group_id: consumer_group_description(found) for found in response.groups}

        return await self._request_coordinators(groups, request_chunk)

    async def _describe_share_groups(self, groups: list[str]) -> Descriptions:
        async def request_chunk(node_id: int, chunk: list[str]) -> Descriptions:
            request = share.ShareGroupDescribeRequest(group_ids=chunk)
            response = await self._cluster.call(node_id, request, share.ShareGroupDescribeResponse, purpose=COORDINATOR)
            return {found.group_id: share_group_description(found) for found in response.groups}

        return await self._request_coordinators(groups, request_chunk)

    async def share_offsets(self, group: str) -> ShareOffsets:
        """Return the start offsets of a share group in all partitions that it has read from."""
        return all_or_raise(await self.share_offsets_many([group]))[group]

    async def share_offsets_many(self, groups: Iterable[str]) -> dict[str, ShareOffsets | ClientError]:
        """Return the start offsets of many share groups; returns a result for each."""

        async def request_chunk(node_id: int, chunk: list[str]) -> dict[str, ShareOffsets | ClientError]:
            request = offsets.DescribeShareGroupOffsetsRequest(
                [offsets.DescribeShareGroupOffsetsRequestGroup(group, None) for group in chunk]
            )
            response = await self._cluster.call(
                node_id, request, offsets.DescribeShareGroupOffsetsResponse, purpose=COORDINATOR
            )
            return {found.group_id: share_offsets_from(found) for found in response.groups}

        return await request_each(
            self._cluster,
            groups,
            lambda chunk: self._request_coordinators(chunk, request_chunk),
            chunk_size=MAX_DESCRIBED_GROUPS,
        )

    async def alter_share_offsets(self, group: str, starts: Mapping[TopicPartition, int]) -> None:
        """Set the start offsets of a share group. Raises `BrokerError` (NON_EMPTY_GROUP) if the group has members."""
        topics = [
            alter.AlterShareGroupOffsetsRequestTopic(
                topic,
                [
                    alter.AlterShareGroupOffsetsRequestPartition(number, starts[TopicPartition(topic, number)])
                    for number in numbers
                ],
            )
            for topic, numbers in by_topic(starts).items()
        ]
        request = alter.AlterShareGroupOffsetsRequest(group, topics)

        async def change() -> None:
            response = await self._cluster.call_coordinator(group, request, alter.AlterShareGroupOffsetsResponse)
            if response.error_code:
                raise group_error(group, response.error_code, response.error_message)
            for topic in response.responses:
                for p in topic.partitions:
                    check_group(self._cluster, group, p.error_code, f"{topic.topic_name}-{p.partition_index}")

        await self._cluster.retrying(change)


def is_dead(group: GroupDescription) -> bool:
    """Return whether a group does not exist, or is of another type than the one that was asked for."""
    return group.state == DEAD


def consumer_group_description(found: consumer.DescribedGroup) -> GroupDescription | ClientError:
    """Return a consumer group from a response."""
    members = (
        GroupMember(m.member_id, m.instance_id, m.client_id, m.client_host, partitions_of(m.assignment))
        for m in found.members
    )
    return described(found, CONSUMER, members)


def share_group_description(found: share.DescribedGroup) -> GroupDescription | ClientError:
    """Return a share group from a response."""
    members = (
        GroupMember(m.member_id, None, m.client_id, m.client_host, partitions_of(m.assignment)) for m in found.members
    )
    return described(found, SHARE, members)


def described(
    found: consumer.DescribedGroup | share.DescribedGroup, group_type: str, members: Iterable[GroupMember]
) -> GroupDescription | ClientError:
    """Return the description of a group with these members."""
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return unknown_group(found.group_id)
    if found.error_code:
        return group_error(found.group_id, found.error_code, found.error_message)
    listed = tuple(sorted(members, key=lambda member: member.member_id))
    return GroupDescription(found.group_id, found.group_state, group_type, found.assignor_name, listed, group_type)


def share_offsets_from(found: offsets.DescribeShareGroupOffsetsResponseGroup) -> ShareOffsets | ClientError:
    """Return the start offsets of a share group from a response."""
    if found.error_code:
        return group_error(found.group_id, found.error_code, found.error_message)
    return {
        TopicPartition(topic.topic_name, p.partition_index): ShareOffset(p.start_offset, p.lag if p.lag >= 0 else None)
        for topic in found.topics
        for p in topic.partitions
        if not p.error_code and p.start_offset >= 0
    }


def partitions_of(assignment: share.Assignment | consumer.Assignment) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment in a description."""
    topics = assignment.topic_partitions
    return tuple(sorted(TopicPartition(topic.topic_name, number) for topic in topics for number in topic.partitions))
