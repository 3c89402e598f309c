"""Membership in a share group (KIP-932): heartbeats that join, report the subscription, and leave."""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.cluster import ClusterConnections
from penstock.client.heartbeat_membership import (
    LEAVE_EPOCH,
    NO_PARTITIONS,
    DescribedMembership,
    HeartbeatMembership,
    TopicIdPartitions,
)
from penstock.client.membership import GroupOptions
from penstock.wire.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from penstock.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from penstock.wire.schema import Payload


class ShareMembership(HeartbeatMembership):
    """The membership of a share group. Several members use a partition, so that nothing is revoked."""

    def __init__(self, cluster: ClusterConnections, options: GroupOptions, wake: Callable[[], None]) -> None:
        super().__init__(cluster, options, wake)
        self._topics: tuple[str, ...] = ()
        self._reported: tuple[str, ...] | None = None
        """The subscription that the coordinator knows; None if that is unknown."""
        self._owned = NO_PARTITIONS

    @property
    def owned(self) -> TopicIdPartitions:
        """The partitions that the consumer uses."""
        return self._owned

    def subscribe(self, topics: list[str]) -> None:
        """Report another subscription."""
        self._topics = tuple(sorted(topics))
        self._due.set()

    def use(self, owned: TopicIdPartitions) -> None:
        """Record the partitions that the consumer uses from now on."""
        self._owned = owned

    def reset(self) -> None:
        """Discard the membership: the next heartbeat joins."""
        self._owned, self._reported = NO_PARTITIONS, None
        super().reset()

    def _leave_request(self) -> tuple[Payload, type[Payload]]:
        return self._request(LEAVE_EPOCH), ShareGroupHeartbeatResponse

    async def _describe(self) -> list[DescribedMembership]:
        request = ShareGroupDescribeRequest(group_ids=[self.options.group_id])
        response = await self._call(request, ShareGroupDescribeResponse)
        for group in response.groups:
            self._check(group)
        return [DescribedMembership(group, it, it.assignment) for group in response.groups for it in group.members]

    async def _exchange(self, epoch: int) -> ShareGroupHeartbeatResponse:
        """Send one heartbeat. After a failed one the next reports everything."""
        topics, reported = self._topics, self._reported
        request = self._request(epoch)
        if reported is None:
            request.rack_id = self.options.rack_id
        if reported != topics:
            request.subscribed_topic_names = list(topics)
        self._reported = None
        response = await self._call_as_member(request, ShareGroupHeartbeatResponse)
        self._check(response)
        self._reported = topics
        return response

    def _request(self, epoch: int) -> ShareGroupHeartbeatRequest:
        return ShareGroupHeartbeatRequest(group_id=self.options.group_id, member_id=self.member_id, member_epoch=epoch)
