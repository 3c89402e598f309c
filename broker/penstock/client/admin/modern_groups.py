"""Admin calls about groups whose broker assigns partitions: consumer groups (KIP-848) and share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from penstock.client.admin.groups import GroupAdminClient, group_error
from penstock.client.admin.types import GroupDescription, GroupMember, ShareOffset
from penstock.client.errors import BrokerError, UnsupportedByBroker
from penstock.client.group_protocol import by_topic
from penstock.client.offsets import check_group
from penstock.client.types import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import alter_share_group_offsets as alter
from penstock.wire.messages import consumer_group_describe as consumer
from penstock.wire.messages import describe_share_group_offsets as offsets
from penstock.wire.messages import share_group_describe as share

SHARE = "share"
"""The protocol type of share groups."""


class ModernGroupAdminClient(GroupAdminClient):
    """Calls about consumer groups and share groups; applications use `admin.Admin`."""

    async def describe_modern_group(self, group: str) -> GroupDescription | None:
        """Return a share group or a consumer group with its members, None if there is none of this name."""
        found = await self._find(lambda: self._describe_share_group(group))
        return found or await self._find(lambda: self._describe_consumer_group(group))

    async def _find(self, describe: Callable[[], Awaitable[GroupDescription]]) -> GroupDescription | None:
        """Return a description; None if the group is of another type or the broker does not know the type."""
        try:
            return await self._cluster.retrying(describe)
        except UnsupportedByBroker:
            return None
        except BrokerError as e:
            if e.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return None

    async def _describe_share_group(self, group: str) -> GroupDescription:
        request = share.ShareGroupDescribeRequest(group_ids=[group])
        response = await self._cluster.call_coordinator(group, request, share.ShareGroupDescribeResponse)
        (found,) = response.groups
        check_group(self._cluster, group, found.error_code)
        members = (
            GroupMember(m.member_id, None, m.client_id, m.client_host, partitions_of(m.assignment))
            for m in found.members
        )
        return GroupDescription(group, found.group_state, SHARE, found.assignor_name, sorted_members(members))

    async def _describe_consumer_group(self, group: str) -> GroupDescription:
        request = consumer.ConsumerGroupDescribeRequest(group_ids=[group])
        response = await self._cluster.call_coordinator(group, request, consumer.ConsumerGroupDescribeResponse)
        (found,) = response.groups
        check_group(self._cluster, group, found.error_code)
        members = (
            GroupMember(m.member_id, m.instance_id, m.client_id, m.client_host, partitions_of(m.assignment))
            for m in found.members
        )
        return GroupDescription(group, found.group_state, "consumer", found.assignor_name, sorted_members(members))

    async def share_offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        """Return the start offsets of a share group in all partitions that it has read from."""
        request = offsets.DescribeShareGroupOffsetsRequest([offsets.DescribeShareGroupOffsetsRequestGroup(group, None)])

        async def describe() -> dict[TopicPartition, ShareOffset]:
            response = await self._cluster.call_coordinator(group, request, offsets.DescribeShareGroupOffsetsResponse)
            (found,) = response.groups
            check_group(self._cluster, group, found.error_code)
            return {
                TopicPartition(topic.topic_name, p.partition_index): ShareOffset(
                    p.start_offset, p.lag if p.lag >= 0 else None
                )
                for topic in found.topics
                for p in topic.partitions
                if not p.error_code and p.start_offset >= 0
            }

        return await self._cluster.retrying(describe)

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


def partitions_of(assignment: share.Assignment | consumer.Assignment) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment in a description."""
    topics = assignment.topic_partitions
    return tuple(sorted(TopicPartition(topic.topic_name, number) for topic in topics for number in topic.partitions))


def sorted_members(members: Iterable[GroupMember]) -> tuple[GroupMember, ...]:
    """Return members in the order of their ids."""
    return tuple(sorted(members, key=lambda member: member.member_id))
