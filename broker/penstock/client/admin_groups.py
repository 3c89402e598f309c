"""The half of the admin client that concerns groups and what they committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from penstock.client import group_protocol
from penstock.client.admin_types import GroupDescription, GroupListing, GroupMember, PartitionLag
from penstock.client.cluster import Cluster
from penstock.client.errors import BrokerError, check
from penstock.client.group_protocol import by_topic
from penstock.client.offsets import EARLIEST, LATEST, check_group, commit, fetch_committed, list_offsets
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import delete_groups, describe_groups, list_groups, offset_delete
from penstock.wire.schema import MalformedMessage


class GroupAdmin:
    """Groups and offsets; `admin.Admin` is what applications use."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_groups(self) -> list[GroupListing]:
        """The groups that every broker coordinates, by name."""
        await self._cluster.refresh()
        answers = await asyncio.gather(*(self._groups_of(node) for node in self._cluster.metadata.brokers))
        return sorted((found for answer in answers for found in answer), key=lambda g: g.group_id)

    async def _groups_of(self, node_id: int) -> list[GroupListing]:
        async def ask() -> list[GroupListing]:
            answer = await self._cluster.call(node_id, list_groups.ListGroupsRequest(), list_groups.ListGroupsResponse)
            check(answer.error_code, f"groups of broker {node_id}")
            return [GroupListing(g.group_id, g.protocol_type, g.group_state) for g in answer.groups]

        return await self._cluster.retrying(ask)

    async def describe_group(self, group: str) -> GroupDescription:
        """A group with its members. A group that nobody knows is "Dead"."""

        async def ask() -> GroupDescription:
            request = describe_groups.DescribeGroupsRequest(groups=[group])
            answer = await self._cluster.call_coordinator(group, request, describe_groups.DescribeGroupsResponse)
            found = answer.groups[0]
            if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                return GroupDescription(group, "Dead", "", "", ())
            check_group(self._cluster, group, found.error_code)
            members = tuple(sorted((member(m) for m in found.members), key=lambda m: m.member_id))
            return GroupDescription(group, found.group_state, found.protocol_type, found.protocol_data, members)

        return await self._cluster.retrying(ask)

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Deletes groups, committed offsets included; one with members is refused (NON_EMPTY_GROUP)."""
        failure: BrokerError | None = None
        for group in groups:
            try:
                await self._cluster.retrying(lambda group=group: self._delete_group(group))  # type: ignore[misc]
            except BrokerError as e:
                failure = failure or e
        if failure is not None:
            raise failure

    async def _delete_group(self, group: str) -> None:
        request = delete_groups.DeleteGroupsRequest(groups_names=[group])
        answer = await self._cluster.call_coordinator(group, request, delete_groups.DeleteGroupsResponse)
        for result in answer.results:
            check_group(self._cluster, group, result.error_code)

    async def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, for these partitions or all."""
        return await fetch_committed(self._cluster, group, partitions)

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

    async def group_lag(self, group: str, topics: Iterable[str] = ()) -> dict[TopicPartition, PartitionLag]:
        """How far a group is behind, in what it committed and in all partitions of `topics`.

        Partitions of topics that are gone are left out.
        """
        committed = await fetch_committed(self._cluster, group, None)
        known = (await self._cluster.all_metadata()).topics
        wanted = {tp for tp in committed if tp.topic in known and tp.partition in known[tp.topic].partitions}
        wanted |= {TopicPartition(t, p) for t in topics if t in known for p in known[t].partitions}
        starts = await list_offsets(self._cluster, dict.fromkeys(wanted, EARLIEST))
        ends = await list_offsets(self._cluster, dict.fromkeys(wanted, LATEST))
        return {tp: PartitionLag(committed.get(tp), starts[tp].offset, ends[tp].offset) for tp in sorted(wanted)}


def member(found: describe_groups.DescribedGroupMember) -> GroupMember:
    try:
        partitions = group_protocol.read_assignment(found.member_assignment)
    except MalformedMessage:
        partitions = []  # a group of another kind (such as Connect) has documents of its own
    return GroupMember(
        found.member_id, found.group_instance_id, found.client_id, found.client_host, tuple(sorted(partitions))
    )
