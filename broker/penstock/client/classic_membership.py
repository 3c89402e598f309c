"""Membership in a group whose leader assigns: join, sync, heartbeats, leave (classic protocol; KIP-62, 345, 394, 429).

`classic_rebalancing` decides when to join; this keeps the member alive and signals when a rejoin is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from penstock.client import group_protocol
from penstock.client.assignors import AssignorMember
from penstock.client.cluster import COORDINATOR, ClusterConnections
from penstock.client.errors import BrokerError, ClientError, error_code
from penstock.client.membership import LEAVE_TIMEOUT_MS, GroupMembership, GroupOptions, MembershipLost
from penstock.client.offsets import COORDINATOR_MOVED
from penstock.client.types import TopicPartition
from penstock.runtime.tasks import spawn
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from penstock.wire.schema import MalformedMessage

JOIN = "join"
"""Purpose of a separate connection: JoinGroup is answered only when all members have joined."""
JOIN_MARGIN_MS = 5_000
REBALANCING_STATES = frozenset({"PreparingRebalance", "CompletingRebalance"})


class ClassicMembership(GroupMembership):
    """The membership of the classic protocol. The leader assigns partitions to all members."""

    def __init__(self, cluster: ClusterConnections, options: GroupOptions, wake: Callable[[], None]) -> None:
        super().__init__(cluster, options, wake)
        self.is_leader = False
        self._topics: list[str] = []
        self._assigned_counts: dict[str, int] = {}
        self._all_topics: frozenset[str] = frozenset()

    def metadata_changed(self) -> None:
        """As leader, rebalance if subscribed topics gained or lost partitions."""
        if self.is_leader and self.joined and self._partition_counts() != self._assigned_counts:
            self.request_rejoin()

    def _partition_counts(self) -> dict[str, int]:
        counts = {topic: self.cluster.metadata.partition_count(topic) for topic in self._all_topics}
        return {topic: count for topic, count in counts.items() if count}

    async def join(self, topics: Iterable[str], owned: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Join or rejoin, and return the assignment. Retries retriable errors.

        Raises `MembershipLost` if partitions are owned and the group has not waited for this member; `GroupFenced`, or
        `BrokerError` for a fatal error.
        """
        await self._stop_heartbeats()
        self._topics, owned = list(topics), list(owned)
        attempt = 0
        while True:
            self.rejoin_needed = False
            try:
                assigned = await self._join_once(self._topics, owned)
                self._heartbeats = spawn(self._send_heartbeats(), "penstock-heartbeat")
                return assigned
            except ClientError as e:
                code = e.code if isinstance(e, BrokerError) else None
                if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                    self.reset(keep_id=code == ErrorCode.ILLEGAL_GENERATION)
                    if owned:
                        raise MembershipLost from None
                elif code in COORDINATOR_MOVED:
                    self.cluster.forget_coordinator(self.options.group_id)
                elif code == ErrorCode.FENCED_INSTANCE_ID:
                    raise self._fenced() from None
                elif code not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED) and not e.retriable:
                    raise
                if code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED):
                    continue
                await asyncio.sleep(self.cluster.backoff.delay_s(attempt))
                attempt += 1

    async def _join_once(self, topics: list[str], owned: list[TopicPartition]) -> list[TopicPartition]:
        options = self.options
        subscription = group_protocol.write_subscription(topics, owned, self.generation)
        request = JoinGroupRequest(
            group_id=options.group_id,
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=options.instance_id,
            protocol_type=group_protocol.PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=a.name, metadata=subscription) for a in options.assignors],
        )
        response = await self._call(request, JoinGroupResponse, JOIN, options.max_poll_interval_ms + JOIN_MARGIN_MS)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        self._check(response.error_code, "joining")
        self.member_id, self.generation = response.member_id, response.generation_id
        self.is_leader = response.leader == response.member_id
        assignments: list[SyncGroupRequestAssignment] = []
        if self.is_leader and not response.skip_assignment:
            members = [self._read_member(m.member_id, m.group_instance_id, m.metadata) for m in response.members]
            assignments = await self._assign(response.protocol_name or "", members)
        sync = SyncGroupRequest(
            group_id=options.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=options.instance_id,
            protocol_type=group_protocol.PROTOCOL_TYPE,
            protocol_name=response.protocol_name,
            assignments=assignments,
        )
        sync_response = await self._call(sync, SyncGroupResponse, JOIN, options.session_timeout_ms + JOIN_MARGIN_MS)
        self._check(sync_response.error_code, "syncing")
        try:
            return group_protocol.read_assignment(sync_response.assignment)
        except MalformedMessage as e:
            raise ClientError(f'cannot decode the assignment of group "{options.group_id}": {e}') from None

    def _read_member(self, member_id: str, instance_id: str | None, metadata: bytes) -> AssignorMember:
        try:
            return group_protocol.read_member(member_id, instance_id, metadata)
        except MalformedMessage as e:
            raise ClientError(f'cannot decode the subscription of member "{member_id}": {e}') from None

    async def _assign(self, protocol: str, members: Sequence[AssignorMember]) -> list[SyncGroupRequestAssignment]:
        """As leader, assign partitions with the assignor that the coordinator selected."""
        assignor = next((a for a in self.options.assignors if a.name == protocol), None)
        if assignor is None:
            raise ClientError(
                f'group "{self.options.group_id}" selected assignor "{protocol}", which this member did not offer'
            )
        self._all_topics = frozenset(topic for member in members for topic in member.topics)
        if any(not self.cluster.metadata.partition_count(topic) for topic in self._all_topics):
            self.cluster.follow(self._all_topics)
            await self.cluster.refresh()
        self.cluster.follow(self._all_topics)
        self._assigned_counts = self._partition_counts()
        shares = assignor.assign(group_protocol.subscribed_partitions(members, self._assigned_counts), members)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=group_protocol.write_assignment(share))
            for member, share in shares.items()
        ]

    async def _send_heartbeats(self) -> None:
        """Send heartbeats until a rejoin is needed, the member was removed, or `max_poll_interval_ms` has passed."""
        interval_s = self.options.heartbeat_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            if await self.leave_if_idle():
                return
            request = HeartbeatRequest(
                group_id=self.options.group_id, generation_id=self.generation, member_id=self.member_id,
                group_instance_id=self.options.instance_id,
            )  # fmt: skip
            try:
                response = await self._call(request, HeartbeatResponse, COORDINATOR, self.options.session_timeout_ms)
            except ClientError:
                continue
            if not self._handle_heartbeat(error_code(response.error_code)):
                return

    def _handle_heartbeat(self, code: ErrorCode) -> bool:
        """Handle a heartbeat response. Returns False if heartbeats must stop."""
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin()
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.reset(keep_id=code == ErrorCode.ILLEGAL_GENERATION)
            self.lost = True
            self.request_rejoin()
            return False
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self.fatal, self.lost = self._fenced(), True
            self.reset()
            self._wake()
            return False
        elif code in COORDINATOR_MOVED:
            self.cluster.forget_coordinator(self.options.group_id)
        return True

    def reset(self, keep_id: bool = False) -> None:
        """Discard the membership; `keep_id` keeps the member id for a rejoin."""
        self.generation = -1
        self.is_leader = False
        if not keep_id:
            self.member_id = ""

    async def close(self, *, leave: bool) -> None:
        """Stop heartbeats and, if `leave` and the member is not static, leave the group."""
        await self._stop_heartbeats()
        if leave and self.options.instance_id is None:
            await self.leave("the consumer is closing")

    async def has_new_generation(self, generation: int) -> bool:
        """Return False: a member of an older generation has lost its partitions."""
        return False

    async def has_final_assignment(self) -> bool:
        """Return whether the group is stable and each partition that this member subscribes to is assigned.

        A partition that a cooperative member has revoked is assigned in the next generation (KIP-429). False until the
        metadata of the topics has arrived: a member that does not assign joins without it.
        """
        metadata = self.cluster.metadata
        if any(topic not in metadata.topics and topic not in metadata.errors for topic in self._topics):
            return False
        response = await self._call(DescribeGroupsRequest(groups=[self.options.group_id]), DescribeGroupsResponse)
        group = response.groups[0]
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return self.joined  # members of the consumer protocol have upgraded the group
        self._check(group.error_code, "describing")
        if group.group_state in REBALANCING_STATES or not self.joined:
            return False
        counts = {topic: metadata.partition_count(topic) for topic in self._topics}
        try:
            assigned = {tp for m in group.members for tp in group_protocol.read_assignment(m.member_assignment)}
        except MalformedMessage:
            return True  # members of another kind: nothing is known of their partitions
        return all(TopicPartition(topic, index) in assigned for topic in counts for index in range(counts[topic]))

    async def leave(self, reason: str) -> None:
        """Send LeaveGroup, so that the group need not wait for the session timeout. Never raises."""
        if not self.member_id:
            return
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.options.instance_id, reason=reason)
        request = LeaveGroupRequest(group_id=self.options.group_id, member_id=self.member_id, members=[identity])
        self.reset()
        try:
            await self._call(request, LeaveGroupResponse, COORDINATOR, LEAVE_TIMEOUT_MS)
        except ClientError:
            return  # the session will time out

    def _check(self, code: int, action: str) -> None:
        if code:
            raise BrokerError(code, f'{action} group "{self.options.group_id}"')
