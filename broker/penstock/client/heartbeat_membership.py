"""Membership in a group whose coordinator assigns partitions in responses to heartbeats.

`consumer_membership` (KIP-848) and `share.membership` (KIP-932) implement the protocols.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID, uuid4

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError, check
from penstock.client.membership import LEAVE_TIMEOUT_MS, GroupMembership, GroupOptions
from penstock.client.offsets import COORDINATOR_MOVED
from penstock.runtime.tasks import spawn
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import Payload

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
"""Epochs of members that join and leave."""
MIN_HEARTBEAT_INTERVAL_MS = 50
"""Lower bound of the interval that a coordinator can ask for."""
REMOVED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
"""Errors after which the member abandons its partitions and joins again."""

TopicIdPartitions = Mapping[UUID, frozenset[int]]
NO_PARTITIONS: TopicIdPartitions = MappingProxyType({})


class AssignedTopic(Protocol):
    """Partitions of a topic in a response."""

    topic_id: UUID
    partitions: list[int]


class AssignedTopics(Protocol):
    """The assignment in a response."""

    @property
    def topic_partitions(self) -> Sequence[AssignedTopic]:
        """The assigned partitions by topic."""


class AssigningResponse(Protocol):
    """What the responses of the protocols have in common. Without an assignment, the previous one remains."""

    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int

    @property
    def assignment(self) -> AssignedTopics | None:
        """The assignment, if it has changed."""


class DescribedGroup(Protocol):
    """A group in a description."""

    error_code: int
    error_message: str | None
    group_epoch: int
    assignment_epoch: int


class DescribedMember(Protocol):
    """A member in a description."""

    member_id: str
    member_epoch: int


class DescribedMembership(NamedTuple):
    """A member of a described group with the partitions that the coordinator has assigned to it."""

    group: DescribedGroup
    member: DescribedMember
    target: AssignedTopics


H = TypeVar("H", bound=Payload)


class HeartbeatMembership(GroupMembership):
    """`assigned` are the partitions that the member may use by topic id, and `generation` is the member epoch."""

    def __init__(self, cluster: ClusterConnections, options: GroupOptions, wake: Callable[[], None]) -> None:
        super().__init__(cluster, options, wake)
        self.member_id = str(uuid4())
        self.assigned = NO_PARTITIONS
        self._may_be_member = False
        self._interval_ms = float(options.heartbeat_interval_ms)
        self._due = asyncio.Event()
        self._answered: asyncio.Future[None] = self._loop.create_future()

    # --- what the protocols define

    @property
    @abstractmethod
    def owned(self) -> TopicIdPartitions:
        """The partitions that the consumer uses."""

    @abstractmethod
    async def _exchange(self, epoch: int) -> AssigningResponse:
        """Send a heartbeat with what the coordinator does not know yet. Returns its response. Raises `ClientError`."""

    @abstractmethod
    def _leave_request(self) -> tuple[Payload, type[Payload]]:
        """Return the heartbeat of a member that leaves, and the class of its response."""

    @abstractmethod
    async def _describe(self) -> Sequence[DescribedMembership]:
        """Return the members of the group as the coordinator has them. Raises `ClientError`."""

    async def _call_as_member(self, request: Payload, response: type[H]) -> H:
        """Send a heartbeat, after which the coordinator may have this member. Raises `ClientError`."""
        self._may_be_member = True
        return await self._call(request, response)

    # --- state to report

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
        for group, member, target in await self._describe():
            if member.member_id == self.member_id and member.member_epoch == self.generation:
                is_current = group.group_epoch == group.assignment_epoch == member.member_epoch
                return is_current and partitions_of(target) == self.owned
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
        self._heartbeats = spawn(self._send_heartbeats(), "penstock-heartbeat")

    def reset(self) -> None:
        """Discard the membership: the next heartbeat joins."""
        self.generation = -1
        self.assigned = NO_PARTITIONS
        self._resolve_answered()

    async def close(self, *, leave: bool) -> None:
        """Stop heartbeats and, if `leave`, leave the group; a static member keeps its partitions for its restart."""
        await self._stop_heartbeats()
        if leave:
            await self.leave("the consumer is closing")

    async def leave(self, reason: str) -> None:
        """Send the epoch of a member that leaves. Never raises. The protocols have no field for a reason."""
        if not self._may_be_member:
            return
        request, response = self._leave_request()
        self.reset()
        self._may_be_member = False
        try:
            await self._call(request, response, timeout_ms=LEAVE_TIMEOUT_MS)
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
        """Send one heartbeat and apply its response. Raises `ClientError`."""
        self._due.clear()
        response = await self._exchange(max(self.generation, JOIN_EPOCH))
        self._apply(response)

    def _check(self, response: AssigningResponse | DescribedGroup) -> None:
        """Raise `BrokerError` if the response has an error."""
        check(response.error_code, f'group "{self.options.group_id}"', response.error_message)

    def _apply(self, response: AssigningResponse) -> None:
        """Apply a successful response; a rebalance follows unless the consumer uses exactly what is assigned."""
        self.member_id = response.member_id or self.member_id
        self.generation = response.member_epoch
        self._interval_ms = max(response.heartbeat_interval_ms, MIN_HEARTBEAT_INTERVAL_MS)
        if response.assignment is not None:
            self.assigned = partitions_of(response.assignment)
        self._resolve_answered()
        if self.assigned != self.owned:
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
        return error


def partitions_of(assignment: AssignedTopics) -> TopicIdPartitions:
    """Return the partitions of an assignment by topic id."""
    found: dict[UUID, frozenset[int]] = {}
    for topic in assignment.topic_partitions:
        found[topic.topic_id] = found.get(topic.topic_id, frozenset()).union(topic.partitions)
    return {topic_id: indexes for topic_id, indexes in found.items() if indexes}
