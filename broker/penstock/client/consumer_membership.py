"""Membership in a group whose coordinator assigns: heartbeats that join, report and leave (KIP-848).

`consumer_rebalancing` joins, and moves the consumer to `assigned`; this keeps the member alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID, uuid4

from penstock.client.cluster import COORDINATOR, ClusterConnections
from penstock.client.errors import BrokerError, ClientError, GroupFenced, UnsupportedByBroker, check
from penstock.client.membership import LEAVE_TIMEOUT_MS, GroupMembership, GroupOptions
from penstock.client.offsets import COORDINATOR_MOVED
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
"""Epochs of members that join, leave, and stop for a restart."""
PATTERN_VERSION = 1
"""The version of ConsumerGroupHeartbeat from which the coordinator matches expressions."""
MIN_HEARTBEAT_INTERVAL_MS = 50
"""Lower bound of the interval that a coordinator can ask for."""
REMOVED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
"""Errors after which the member abandons its partitions and joins again."""

TopicIdPartitions = Mapping[UUID, frozenset[int]]


NO_PARTITIONS: TopicIdPartitions = MappingProxyType({})


class ReportedMembership(NamedTuple):
    """What a heartbeat reports, and later ones leave out until it changes."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    owned: TopicIdPartitions = NO_PARTITIONS


class ConsumerMembership(GroupMembership):
    """The membership of the consumer protocol. `assigned` are the partitions that the member may use by topic id, and
    `generation` is the member epoch.
    """

    def __init__(self, cluster: ClusterConnections, options: GroupOptions, wake: Callable[[], None]) -> None:
        super().__init__(cluster, options, wake)
        self.member_id = str(uuid4())
        self.assigned = NO_PARTITIONS
        self._current = ReportedMembership()
        self._reported: ReportedMembership | None = None
        """What the coordinator knows; None if that is unknown, so that the next heartbeat reports everything."""
        self._is_acknowledged = True
        """Whether the coordinator knows that the last assignment was applied."""
        self._may_be_member = False
        self._interval_ms = float(options.heartbeat_interval_ms)
        self._due = asyncio.Event()
        self._answered: asyncio.Future[None] = self._loop.create_future()

    # --- state to report

    def subscribe(self, topics: list[str], pattern: str | None) -> None:
        """Report another subscription; the pattern is an RE2 expression for whole names."""
        self._current = self._current._replace(topics=tuple(sorted(topics)), pattern=pattern or "")
        self._due.set()

    def acknowledge(self, owned: TopicIdPartitions) -> None:
        """Report the partitions that the consumer uses, after it has stopped using others."""
        self._current = self._current._replace(owned=owned)
        self._is_acknowledged = False
        self._due.set()

    def request_heartbeat(self) -> None:
        """Send a heartbeat now."""
        self._due.set()

    async def has_new_generation(self, generation: int) -> bool:
        """Return whether the member has another epoch, after the next response of the coordinator if necessary.

        The coordinator may have advanced the epoch in a response that is still under way.
        """
        if self.generation == generation:
            self.request_heartbeat()
            await asyncio.wait({self._answered}, timeout=self.cluster.request_timeout_ms / 1000)
        return self.joined and self.generation != generation

    async def has_final_assignment(self) -> bool:
        """Return whether the coordinator has no other assignment for this member than the one in use.

        A member that joins a group may get its partitions with later heartbeats, once they are assigned or others have
        released them.
        """
        request = ConsumerGroupDescribeRequest(group_ids=[self.options.group_id])
        response = await self._call(request, ConsumerGroupDescribeResponse)
        for group in response.groups:
            check(group.error_code, f'group "{group.group_id}"', group.error_message)
            for member in group.members:
                if member.member_id == self.member_id and member.member_epoch == self.generation:
                    is_current = group.group_epoch == group.assignment_epoch == member.member_epoch
                    return is_current and partitions_of(member.target_assignment) == self._current.owned
        return False

    # --- join and leave

    async def join(self) -> None:
        """Join as a member without partitions. Retries retriable errors. Raises `GroupFenced`, or `BrokerError` for a
        fatal error.
        """
        await self._stop_heartbeats()
        self.reset()
        attempt = 0
        while not self.joined:
            try:
                await self._send_heartbeat()
            except ClientError as e:
                code = e.code if isinstance(e, BrokerError) else None
                if code not in REMOVED and not e.retriable:
                    raise self._fatal_error(e) from None
                self._handle_moved(code)
                await asyncio.sleep(self.cluster.backoff.delay_s(attempt))
                attempt += 1
        self._heartbeats = self._loop.create_task(self._send_heartbeats(), name="penstock-heartbeat")

    def reset(self) -> None:
        """Discard the membership: the next heartbeat joins."""
        self.generation = -1
        self.assigned = NO_PARTITIONS
        self._current = self._current._replace(owned=NO_PARTITIONS)
        self._reported, self._is_acknowledged = None, True
        self._resolve_answered()

    async def close(self, *, leave: bool) -> None:
        """Stop heartbeats and, if `leave`, leave the group; a static member keeps its partitions for its restart."""
        await self._stop_heartbeats()
        if leave:
            await self.leave("the consumer is closing")

    async def leave(self, reason: str) -> None:
        """Send the epoch of a member that leaves. Never raises. The protocol has no field for a reason."""
        if not self._may_be_member:
            return
        is_static = self.options.instance_id is not None
        request = self._request(STATIC_LEAVE_EPOCH if is_static else LEAVE_EPOCH)
        self.reset()
        self._may_be_member = False
        try:
            await self._call(request, ConsumerGroupHeartbeatResponse, timeout_ms=LEAVE_TIMEOUT_MS)
        except ClientError:
            return  # the session will time out

    # --- heartbeats

    async def _send_heartbeats(self) -> None:
        """Send heartbeats until the member has left, was removed, or cannot go on."""
        attempt = 0
        while True:
            await self._wait_until_due(attempt)
            if await self.leave_if_idle():
                return
            try:
                await self._send_heartbeat()
                attempt = 0
            except ClientError as e:
                attempt += 1
                if not self._handle_failure(e):
                    return

    async def _wait_until_due(self, attempt: int) -> None:
        """Wait for the interval, for something to report, or for the end of `max_poll_interval_ms`; after a failed
        attempt for a backoff.
        """
        if attempt:
            await asyncio.sleep(self.cluster.backoff.delay_s(attempt - 1))
            return
        left_ms = self._interval_ms
        if not self.polling:
            left_ms = min(left_ms, max(self.options.max_poll_interval_ms - self.idle_ms, 0) + 1)
        try:
            async with asyncio.timeout(left_ms / 1000):
                await self._due.wait()
        except TimeoutError:
            return

    async def _send_heartbeat(self) -> None:
        """Send one heartbeat and apply its response. Raises `ClientError`; then the next one reports everything."""
        self._due.clear()
        current, reported, is_acknowledged = self._current, self._reported, self._is_acknowledged
        request = self._request(max(self.generation, JOIN_EPOCH))
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
        self._reported, self._is_acknowledged, self._may_be_member = None, True, True
        response = await self._call(request, ConsumerGroupHeartbeatResponse)
        check(response.error_code, f'group "{self.options.group_id}"', response.error_message)
        self._reported = current
        self._apply(response)

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

    def _apply(self, response: ConsumerGroupHeartbeatResponse) -> None:
        """Apply a successful response; a rebalance follows unless the consumer uses exactly what is assigned."""
        self.member_id = response.member_id or self.member_id
        self.generation = response.member_epoch
        self._interval_ms = max(response.heartbeat_interval_ms, MIN_HEARTBEAT_INTERVAL_MS)
        if response.assignment is not None:
            found: dict[UUID, frozenset[int]] = {}
            for topic in response.assignment.topic_partitions:
                found[topic.topic_id] = found.get(topic.topic_id, frozenset()).union(topic.partitions)
            self.assigned = {topic_id: indexes for topic_id, indexes in found.items() if indexes}
        self._resolve_answered()
        if self.assigned != self._current.owned:
            self.request_rejoin()

    def _resolve_answered(self) -> None:
        """Resume those who wait for a response."""
        self._answered.set_result(None)
        self._answered = self._loop.create_future()

    def _handle_failure(self, error: ClientError) -> bool:
        """Handle a failed heartbeat. Returns False if heartbeats must stop."""
        code = error.code if isinstance(error, BrokerError) else None
        self._handle_moved(code)
        if code not in REMOVED and error.retriable:
            return True
        if code not in REMOVED:
            self.fatal = self._fatal_error(error)
        self.reset()
        self._may_be_member = False
        self.lost = True
        self.request_rejoin()
        return False

    def _handle_moved(self, code: ErrorCode | None) -> None:
        """Look up the coordinator again if a response says that it has moved."""
        if code in COORDINATOR_MOVED:
            self.cluster.forget_coordinator(self.options.group_id)

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


def partitions_of(assignment: Assignment) -> TopicIdPartitions:
    """Return the partitions of a described assignment."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in assignment.topic_partitions if topic.partitions}
