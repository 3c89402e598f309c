"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup: the life of a group's member."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from penstock.api.producer_ids import TRANSACTIONS_REFUSED
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

GROUP_KEY, TRANSACTION_KEY = 0, 1
FIND_BATCH = 4
"""Versions from here on ask for several coordinators at a time."""
JOIN_TWO_STEP, JOIN_NULL_PROTOCOL, JOIN_SKIP_ASSIGNMENT = 4, 7, 9
LEAVE_BATCH = 3
SYNC_NAMES_PROTOCOL = 5
"""From this version on SyncGroup must name the protocol type and the protocol (KIP-559)."""

NO_TRANSACTIONS = (
    "This broker does not serve transactions yet: leave transactional.id unset; an idempotent producer "
    "(enable.idempotence) is served."
)


class GroupsApi:
    """Handlers for members of groups."""

    def __init__(
        self, coordinator: GroupCoordinator, view: ClusterView, transactions: TransactionCoordinator | None = None
    ) -> None:
        self.coordinator = coordinator
        self.transactions = transactions
        self.view = view

    def routes(self) -> list[Route]:
        return [
            Route(FindCoordinatorRequest, FindCoordinatorResponse, self.find_coordinator, 0, 6, find_failed),
            Route(JoinGroupRequest, JoinGroupResponse, self.join_group, 0, 9, join_failed),
            Route(SyncGroupRequest, SyncGroupResponse, self.sync_group, 0, 5, sync_failed),
            Route(HeartbeatRequest, HeartbeatResponse, self.heartbeat, 0, 4, heartbeat_failed),
            Route(LeaveGroupRequest, LeaveGroupResponse, self.leave_group, 0, 5, leave_failed),
        ]

    def find_coordinator(self, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
        listener = context.peer.listener
        if context.version >= FIND_BATCH:
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

    def find_one(self, key: str, key_type: int, listener: str) -> Coordinator:
        if key_type == GROUP_KEY:
            broker_id = self.coordinator.coordinator_of(key)
        elif key_type != TRANSACTION_KEY:
            return no_coordinator(key, ErrorCode.INVALID_REQUEST, f"Coordinator key type {key_type} is not known.")
        elif self.transactions is None:
            return no_coordinator(key, TRANSACTIONS_REFUSED, NO_TRANSACTIONS)
        else:
            broker_id = self.transactions.coordinator_of(key)
        broker = self.view.brokers.get(broker_id)
        if broker is None:
            return no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not there just now.")
        endpoint = broker.endpoint(listener)
        if endpoint is None:
            message = f"The coordinator, broker {broker.broker_id}, has no listener {listener}."
            return no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        return Coordinator(key=key, node_id=broker.broker_id, host=endpoint.host, port=endpoint.port)

    async def join_group(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        version = context.version
        future = self.coordinator.join(request.group_id, join_request(request, context))
        self.abandon_if_gone(request.group_id, future, context)
        answer = await future
        error = await self.coordinator.fencing.confirm(request.group_id, answer.error)
        return join_response(answer, version) if error is answer.error else join_failed(request, error)

    async def sync_group(self, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
        names_protocol = request.protocol_type is not None and request.protocol_name is not None
        if context.version >= SYNC_NAMES_PROTOCOL and not names_protocol:
            return sync_failed(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        wanted = SyncRequest(
            request.member_id,
            request.generation_id,
            request.group_instance_id,
            request.protocol_type,
            request.protocol_name,
            {a.member_id: a.assignment for a in request.assignments},
        )
        future = self.coordinator.sync(request.group_id, wanted)
        self.abandon_if_gone(request.group_id, future, context)
        answer = await future
        error = await self.coordinator.fencing.confirm(request.group_id, answer.error)
        return SyncGroupResponse(
            error_code=error,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    def abandon_if_gone(self, group_id: str, future: JoinFuture | SyncFuture, context: RequestContext) -> None:
        """Takes a wait back when its connection is lost."""
        if future.done():
            return
        if context.exchange.is_disconnected:
            self.coordinator.abandon(group_id, future)
        else:
            context.exchange.on_disconnect(partial(self.coordinator.abandon, group_id, future))

    def heartbeat(
        self, request: HeartbeatRequest, context: RequestContext
    ) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
        error = self.coordinator.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        return (
            self.end_member(request.group_id, error) if error in FATAL_ERRORS else HeartbeatResponse(error_code=error)
        )

    async def end_member(self, group_id: str, error: ErrorCode) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=await self.coordinator.fencing.confirm(group_id, error))

    def leave_group(self, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
        if context.version < LEAVE_BATCH:
            error, errors = self.coordinator.leave(request.group_id, [(request.member_id, None)])
            return LeaveGroupResponse(error_code=error or errors[0])
        leaving = [(m.member_id, m.group_instance_id) for m in request.members]
        error, errors = self.coordinator.leave(request.group_id, leaving)
        left = [left_response(m, e) for m, e in zip(request.members, errors, strict=not error)]
        return LeaveGroupResponse(error_code=error, members=left)


def join_request(request: JoinGroupRequest, context: RequestContext) -> JoinRequest:
    # Version 0 has no rebalance timeout: the session's was for both.
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
        two_step=context.version >= JOIN_TWO_STEP,
        can_skip_assignment=context.version >= JOIN_SKIP_ASSIGNMENT,
    )


def join_response(answer: JoinResult, version: int) -> JoinGroupResponse:
    protocol = "" if answer.protocol is None and version < JOIN_NULL_PROTOCOL else answer.protocol
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
    return MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)


def no_coordinator(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=message)


def find_failed(request: FindCoordinatorRequest, error: int) -> FindCoordinatorResponse:
    failed = [Coordinator(key=key, node_id=-1, port=-1, error_code=error) for key in request.coordinator_keys]
    return FindCoordinatorResponse(error_code=error, node_id=-1, port=-1, coordinators=failed)


def join_failed(request: JoinGroupRequest, error: int) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, protocol_name="", member_id=request.member_id)


def sync_failed(request: SyncGroupRequest, error: int) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error)


def heartbeat_failed(request: HeartbeatRequest, error: int) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error)


def leave_failed(request: LeaveGroupRequest, error: int) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=error)
