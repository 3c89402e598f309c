"""Membership in a group whose coordinator assigns: heartbeats that join, report and leave (KIP-848).

`consumer_rebalancing` joins, and moves the consumer to `assigned`; this keeps the member alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.client.cluster import COORDINATOR, ClusterConnections
from penstock.client.errors import BrokerError, ClientError, GroupFenced, UnsupportedByBroker
from penstock.client.heartbeat_membership import (
    LEAVE_EPOCH,
    NO_PARTITIONS,
    DescribedMembership,
    HeartbeatMembership,
    TopicIdPartitions,
)
from penstock.client.membership import GroupOptions
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.wire.schema import Payload

STATIC_LEAVE_EPOCH = -2
"""Epoch of a static member that stops for a restart."""
PATTERN_VERSION = 1
"""The version of ConsumerGroupHeartbeat from which the coordinator matches expressions."""


class ReportedMembership(NamedTuple):
    """What a heartbeat reports, and later ones leave out until it changes."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    owned: TopicIdPartitions = NO_PARTITIONS


class ConsumerMembership(HeartbeatMembership):
    """The membership of the consumer protocol."""

    def __init__(self, cluster: ClusterConnections, options: GroupOptions, wake: Callable[[], None]) -> None:
        super().__init__(cluster, options, wake)
        self._current = ReportedMembership()
        self._reported: ReportedMembership | None = None
        """What the coordinator knows; None if that is unknown, so that the next heartbeat reports everything."""
        self._is_acknowledged = True
        """Whether the coordinator knows that the last assignment was applied."""

    @property
    def owned(self) -> TopicIdPartitions:
        """The partitions that the consumer uses."""
        return self._current.owned

    def subscribe(self, topics: list[str], pattern: str | None) -> None:
        """Report another subscription; the pattern is an RE2 expression for whole names."""
        self._current = self._current._replace(topics=tuple(sorted(topics)), pattern=pattern or "")
        self._due.set()

    def acknowledge(self, owned: TopicIdPartitions) -> None:
        """Report the partitions that the consumer uses, after it has stopped using others."""
        self._current = self._current._replace(owned=owned)
        self._is_acknowledged = False
        self._due.set()

    def reset(self) -> None:
        """Discard the membership: the next heartbeat joins."""
        self._current = self._current._replace(owned=NO_PARTITIONS)
        self._reported, self._is_acknowledged = None, True
        super().reset()

    def _leave_request(self) -> tuple[Payload, type[Payload]]:
        """Return the heartbeat of a member that leaves. A static member keeps its partitions for its restart."""
        is_static = self.options.instance_id is not None
        return self._request(STATIC_LEAVE_EPOCH if is_static else LEAVE_EPOCH), ConsumerGroupHeartbeatResponse

    async def _describe(self) -> list[DescribedMembership]:
        request = ConsumerGroupDescribeRequest(group_ids=[self.options.group_id])
        response = await self._call(request, ConsumerGroupDescribeResponse)
        for group in response.groups:
            self._check(group)
        return [
            DescribedMembership(group, it, it.target_assignment) for group in response.groups for it in group.members
        ]

    async def _exchange(self, epoch: int) -> ConsumerGroupHeartbeatResponse:
        """Send one heartbeat. After a failed one the next reports everything."""
        current, reported, is_acknowledged = self._current, self._reported, self._is_acknowledged
        request = self._request(epoch)
        if reported is None:
            await self._check_pattern_support(current.pattern)
            request.rack_id, request.server_assignor = self.options.rack_id, self.options.remote_assignor
            request.rebalance_timeout_ms = self.options.max_poll_interval_ms
        if reported is None or reported.topics != current.topics:
            request.subscribed_topic_names = list(current.topics)
        if reported is None or reported.pattern != current.pattern:
            request.subscribed_topic_regex = current.pattern
        if reported is None or not is_acknowledged:
            request.topic_partitions = [
                TopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
                for topic_id, indexes in current.owned.items()
            ]
        self._reported, self._is_acknowledged = None, True
        response = await self._call_as_member(request, ConsumerGroupHeartbeatResponse)
        self._check(response)
        self._reported = current
        return response

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self.options.group_id,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.options.instance_id,
        )

    async def _check_pattern_support(self, pattern: str) -> None:
        """Raise `UnsupportedByBroker` if the coordinator would ignore the pattern."""
        if not pattern:
            return
        node_id = await self.cluster.coordinator(self.options.group_id)
        connection = await self.cluster.connection(node_id, COORDINATOR)
        if connection.version(ConsumerGroupHeartbeatRequest) < PATTERN_VERSION:
            raise UnsupportedByBroker(
                f"{connection.address} matches no patterns of consumer groups; subscribe to topics"
            )

    def _fatal_error(self, error: ClientError) -> ClientError:
        """Return the error for the user."""
        if isinstance(error, BrokerError) and error.code == ErrorCode.FENCED_INSTANCE_ID:
            return self._fenced()
        if isinstance(error, BrokerError) and error.code == ErrorCode.UNRELEASED_INSTANCE_ID:
            return GroupFenced(
                f'"{self.options.instance_id}" is in use by another member of group "{self.options.group_id}"; use a'
                " unique group_instance_id for each consumer, or wait for the end of that member's session"
            )
        return error
