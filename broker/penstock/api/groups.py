"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup: group membership."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from penstock.api.routes import RequestContext, Route
from penstock.group.calls import JoinRequest, JoinResult, SyncRequest
from penstock.group.coordinator import GroupCoordinator, JoinFuture, SyncFuture
from penstock.group.fencing import FATAL_ERRORS
from penstock.state.view import ClusterView
from penstock.txn.coordinator import TransactionCoordinator
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from penstock.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
SHARE_KEY_VERSION = 6
"""The version from which a key may be a share-partition, `GROUP:TOPIC_ID:PARTITION` (KIP-932)."""
BATCHED_FIND_VERSION = 4
"""The version from which FindCoordinator names several keys."""
TWO_STEP_JOIN_VERSION, NULL_PROTOCOL_VERSION, SKIP_ASSIGNMENT_VERSION = 4, 7, 9
BATCHED_LEAVE_VERSION = 3
SYNC_PROTOCOL_VERSION = 5
"""The version from which SyncGroup must name the protocol type and the protocol (KIP-559)."""


class GroupsApi:
    """Serves group members."""

    def __init__(self, coordinator: GroupCoordinator, view: ClusterView, transactions: TransactionCoordinator) -> None:
        self.coordinator = coordinator
        self.transactions = transactions
        self.view = view

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(FindCoordinatorRequest, self.find_coordinator, find_failed),
            Route(JoinGroupRequest, self.join_group, join_failed),
            Route(SyncGroupRequest, self.sync_group, sync_failed),
            Route(HeartbeatRequest, self.heartbeat, heartbeat_failed),
            Route(LeaveGroupRequest, self.leave_group, leave_failed),
        ]

    def find_coordinator(self, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
        """Serve FindCoordinator 0 to 6."""
        listener = context.peer.listener
        if context.version >= BATCHED_FIND_VERSION:
            if request.key_type == SHARE_KEY and context.version >= SHARE_KEY_VERSION:
                found = [self.find_share(key, listener) for key in request.coordinator_keys]
            else:
                found = [self.find_one(key, request.key_type, listener) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found)
        one = self.find_one(request.key, request.key_type, listener)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def find_share(self, key: str, listener: str) -> Coordinator:
        """Return the coordinator of a share-partition's state: that of its group."""
        parts = key.rsplit(":", 2)
        if len(parts) != 3 or not all(parts) or not parts[2].isdecimal():
            return no_coordinator(key, ErrorCode.INVALID_REQUEST, "a share-partition's key is GROUP:TOPIC_ID:PARTITION")
        found = self.find_one(parts[0], GROUP_KEY, listener)
        found.key = key
        return found

    def find_one(self, key: str, key_type: int, listener: str) -> Coordinator:
        """Return the coordinator of a key at its address for `listener`, or the error."""
        if key_type == GROUP_KEY:
            broker_id = self.coordinator.coordinator_of(key)
        elif key_type != TRANSACTION_KEY:
            return no_coordinator(
                key,
                ErrorCode.INVALID_REQUEST,
                f'coordinator key type "{key_type}" is unknown; use 0 (group) or 1 (transaction)',
            )
        else:
            broker_id = self.transactions.coordinator_of(key)
        broker = self.view.brokers.get(broker_id)
        if broker is None:
            return no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not available; retry")
        endpoint = broker.endpoint(listener)
        if endpoint is None:
            message = (
                f'the coordinator, broker {broker.broker_id}, has no listener "{listener}"; add it to its listeners'
            )
            return no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        return Coordinator(key=key, node_id=broker.broker_id, host=endpoint.host, port=endpoint.port)

    async def join_group(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        """Serve JoinGroup 0 to 9; wait for the rebalance."""
        version = context.version
        future = self.coordinator.join(request.group_id, join_request(request, context))
        self.abandon_on_disconnect(request.group_id, future, context)
        answer = await future
        error = await self.coordinator.fencing.confirm(request.group_id, answer.error)
        return join_response(answer, version) if error is answer.error else join_failed(request, error)

    async def sync_group(self, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
        """Serve SyncGroup 0 to 5; wait for the leader's assignment."""
        names_protocol = request.protocol_type is not None and request.protocol_name is not None
        if context.version >= SYNC_PROTOCOL_VERSION and not names_protocol:
            return sync_failed(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        sync_request = SyncRequest(
            request.member_id,
            request.generation_id,
            request.group_instance_id,
            request.protocol_type,
            request.protocol_name,
            {a.member_id: a.assignment for a in request.assignments},
        )
        future = self.coordinator.sync(request.group_id, sync_request)
        self.abandon_on_disconnect(request.group_id, future, context)
        answer = await future
        error = await self.coordinator.fencing.confirm(request.group_id, answer.error)
        return SyncGroupResponse(
            error_code=error,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    def abandon_on_disconnect(self, group_id: str, future: JoinFuture | SyncFuture, context: RequestContext) -> None:
        """Cancel a member's wait when its connection is lost."""
        if future.done():
            return
        if context.exchange.is_disconnected:
            self.coordinator.abandon(group_id, future)
        else:
            context.exchange.on_disconnect(partial(self.coordinator.abandon, group_id, future))

    def heartbeat(
        self, request: HeartbeatRequest, context: RequestContext
    ) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
        """Serve Heartbeat 0 to 4; only a fatal error has to await its confirmation."""
        error = self.coordinator.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        return (
            self.confirm_heartbeat_error(request.group_id, error)
            if error in FATAL_ERRORS
            else HeartbeatResponse(error_code=error)
        )

    async def confirm_heartbeat_error(self, group_id: str, error: ErrorCode) -> HeartbeatResponse:
        """Return a fatal error once the store confirms this coordinator."""
        return HeartbeatResponse(error_code=await self.coordinator.fencing.confirm(group_id, error))

    def leave_group(self, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
        """Serve LeaveGroup 0 to 5."""
        if context.version < BATCHED_LEAVE_VERSION:
            error, errors = self.coordinator.leave(request.group_id, [(request.member_id, None)])
            return LeaveGroupResponse(error_code=error or errors[0])
        leaving = [(m.member_id, m.group_instance_id) for m in request.members]
        error, errors = self.coordinator.leave(request.group_id, leaving)
        left = [left_response(m, e) for m, e in zip(request.members, errors, strict=not error)]
        return LeaveGroupResponse(error_code=error, members=left)


def join_request(request: JoinGroupRequest, context: RequestContext) -> JoinRequest:
    """Return the coordinator's form of a JoinGroup request."""
    # Version 0 has no rebalance timeout: the session timeout applies to both.
    unset = request.rebalance_timeout_ms < 0
    return JoinRequest(
        request.protocol_type,
        {p.name: p.metadata for p in request.protocols},
        request.session_timeout_ms,
        request.session_timeout_ms if unset else request.rebalance_timeout_ms,
        request.member_id,
        request.group_instance_id,
        context.client_id or "",
        f"/{context.peer.host}",
        two_step=context.version >= TWO_STEP_JOIN_VERSION,
        can_skip_assignment=context.version >= SKIP_ASSIGNMENT_VERSION,
    )


def join_response(answer: JoinResult, version: int) -> JoinGroupResponse:
    """Return the JoinGroup response for an answer of the coordinator."""
    protocol = "" if answer.protocol is None and version < NULL_PROTOCOL_VERSION else answer.protocol
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata)
            for m in answer.members
        ],
    )


def left_response(member: MemberIdentity, error: ErrorCode) -> MemberResponse:
    """Return the result for a member that leaves."""
    return MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)


def no_coordinator(key: str, error: ErrorCode, message: str) -> Coordinator:
    """Return the FindCoordinator result for an error."""
    return Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=message)


def find_failed(request: FindCoordinatorRequest, error: int) -> FindCoordinatorResponse:
    """Return the response to FindCoordinator with an error for each key."""
    failed = [Coordinator(key=key, node_id=-1, port=-1, error_code=error) for key in request.coordinator_keys]
    return FindCoordinatorResponse(error_code=error, node_id=-1, port=-1, coordinators=failed)


def join_failed(request: JoinGroupRequest, error: int) -> JoinGroupResponse:
    """Return the response to JoinGroup with an error."""
    return JoinGroupResponse(error_code=error, protocol_name="", member_id=request.member_id)


def sync_failed(request: SyncGroupRequest, error: int) -> SyncGroupResponse:
    """Return the response to SyncGroup with an error."""
    return SyncGroupResponse(error_code=error)


def heartbeat_failed(request: HeartbeatRequest, error: int) -> HeartbeatResponse:
    """Return the response to Heartbeat with an error."""
    return HeartbeatResponse(error_code=error)


def leave_failed(request: LeaveGroupRequest, error: int) -> LeaveGroupResponse:
    """Return the response to LeaveGroup with an error."""
    return LeaveGroupResponse(error_code=error)
