"""The state machine of one classic group (KIP-62, 345, 394, 429, 559, 814). Driven by `coordinator`.

It performs no I/O and reads no clock: inputs are method calls with the time in milliseconds; outputs are the effects
that `phases.pop_effects` returns, and `phases.wake_ms`, the time of the next `tick`. Assignments are opaque, so both
eager and cooperative rebalancing work.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.group.calls import JoinRequest, JoinResult, SyncRequest, SyncResult, Waiter
from penstock.group.member_list import GroupMemberState, MemberList, Rejoin
from penstock.group.phases import GroupState, RebalancePhases
from penstock.wire.errors import ErrorCode

NEW_MEMBER_TIMEOUT_MS = 300_000
"""Session timeout of a new member whose first join is unanswered: it may not know its id, so it cannot send
heartbeats."""
MAX_PENDING = 10_000
"""Maximum number of assigned member ids whose members have not joined yet."""
MAX_ID_PREFIX = 255
"""Maximum length of the client id in a member id."""


class ClassicGroup:
    """A group: checks the requests of its members, and passes what changes the group to its `phases`.

    `new_id` returns the unguessable, unique part of a member id.
    """

    def __init__(self, group_id: str, config: BrokerConfig, new_id: Callable[[], str]) -> None:
        self.group_id, self.config, self._new_id = group_id, config, new_id
        self.member_list = MemberList()
        self.pending: dict[str, float] = {}
        """Member ids assigned to new members that have not joined with them yet, and their expiry."""
        self.phases = RebalancePhases(config, self.member_list, self.pending)
        self._has_left = False

    @property
    def is_blank(self) -> bool:
        """Whether the group can be dropped without loss: it never had a generation and no member is joining."""
        return self.phases.state is GroupState.EMPTY and not self.pending and self.phases.generation == 0

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that members subscribe to, None if unknown."""
        return self.member_list.topics(self.phases.protocol_type, self.phases.protocol)

    # --- joining

    def join(self, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        """Handle a join. Replies at once, or when the rebalance completes."""
        if self.phases.state is GroupState.DEAD:
            self._refuse_join(waiter, request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not request.member_id:
            self._join_first(request, waiter, now_ms)
        elif request.member_id in self.pending and request.instance_id is None:
            self._join_second(request, waiter, now_ms)
        else:
            self._join_again(request, waiter, now_ms)

    def _join_first(self, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        known = None if request.instance_id is None else self.member_list.by_instance(request.instance_id)
        if not self._compatible(request, known):
            self._refuse_join(waiter, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif known is not None:
            self._replace_static(known, request, waiter, now_ms)
        elif self._is_full(None):
            self._refuse_join(waiter, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif request.two_step and request.instance_id is None:
            self._assign_member_id(request, waiter, now_ms)
        else:
            self._add(self._new_member_id(request), request, waiter, now_ms)

    def _assign_member_id(self, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        if len(self.pending) >= min(self.config.group_max_size, MAX_PENDING):
            self._refuse_join(waiter, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
            return
        member_id = self._new_member_id(request)
        self.pending[member_id] = now_ms + request.session_timeout_ms
        self.phases.wake_by(self.pending[member_id])
        self.phases.reply(waiter, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _join_second(self, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        if not self._compatible(request, None):
            self._refuse_join(waiter, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return
        del self.pending[request.member_id]
        if self._is_full(None):
            self._refuse_join(waiter, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self.phases.advance_join(now_ms)
        else:
            self._add(request.member_id, request, waiter, now_ms)

    def _join_again(self, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        member, error = self._find(request.member_id, request.instance_id)
        if member is None:
            error = error if self._compatible(request, None) else ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            self._refuse_join(waiter, request, error)
        elif not self._compatible(request, member):
            self._refuse_join(waiter, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif self._is_full(member):
            self.phases.drop(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._refuse_join(waiter, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self.phases.advance_join(now_ms)
        elif self._changes_nothing(member, request):
            member.extend_session(now_ms)
            self.phases.wake_by(member.deadline_ms)
            self.phases.reply(
                waiter, self.phases.join_result(member, with_members=member.member_id == self.member_list.leader)
            )
        else:
            self.phases.fail_waiters(member, ErrorCode.REBALANCE_IN_PROGRESS)
            self._update(member, request)
            self.member_list.await_join(member, waiter)
            self.phases.rebalance(now_ms)

    def _update(self, member: GroupMemberState, request: JoinRequest) -> None:
        self.member_list.update(member, request)
        if len(self.member_list) == 1:
            self.phases.protocol_type = request.protocol_type

    def _changes_nothing(self, member: GroupMemberState, request: JoinRequest) -> bool:
        """Return whether a join repeats what is known, for example after a lost response."""
        if self.phases.state is GroupState.PREPARING_REBALANCE or member.join_waiter is not None:
            return False
        if self.phases.state is GroupState.STABLE and member.member_id == self.member_list.leader:
            return False  # the leader rejoins to have changes, such as new partitions, assigned
        return list(member.protocols.items()) == list(request.protocols.items())

    def _add(self, member_id: str, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        if not self.member_list:
            self.phases.protocol_type = request.protocol_type
        member = GroupMemberState(member_id, request, knows_id=bool(request.member_id))
        member.is_new = True
        member.deadline_ms = now_ms + NEW_MEMBER_TIMEOUT_MS
        self.phases.add_member(member, waiter, now_ms)

    def _replace_static(self, member: GroupMemberState, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        """Replace a restarted static member and fence the old one. Rebalances only if needed."""
        old_leader, old_topics = self.member_list.leader, self.subscribed_topics()
        self.phases.fail_waiters(member, ErrorCode.FENCED_INSTANCE_ID)
        self._update(member, request)
        self.phases.rename(member, self._new_member_id(request))
        member.extend_session(now_ms)
        self.phases.wake_by(member.deadline_ms)
        self.member_list.await_join(member, waiter)
        same_protocol = self.member_list.select_protocol() == self.phases.protocol
        if self.phases.state is GroupState.STABLE and same_protocol and self.subscribed_topics() == old_topics:
            member.rejoin = Rejoin(self.phases.persist(), old_leader, request.can_skip_assignment)
        else:
            self.phases.rebalance(now_ms)

    # --- assignments, heartbeats, commits

    def sync(self, request: SyncRequest, waiter: Waiter, now_ms: float) -> None:
        """Handle a sync. Replies with the assignment at once, or when the leader's assignment is durable."""
        member, error = self._check_member(request.member_id, request.instance_id, request.generation)
        if member is not None and self.phases.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        elif member is not None and not self._matches_protocol(request):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if member is None or error:
            self.phases.reply(waiter, SyncResult(error))
        else:
            self.phases.sync(member, request.assignments, waiter, now_ms)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: float) -> ErrorCode:
        """Extend the member's session. Returns REBALANCE_IN_PROGRESS if the member must rejoin."""
        member, error = self._check_member(member_id, instance_id, generation)
        if member is None:
            return error
        member.extend_session(now_ms)
        return (
            ErrorCode.REBALANCE_IN_PROGRESS if self.phases.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE
        )

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: float) -> ErrorCode:
        """Return NONE if the member may commit. Without members, any client without a generation may."""
        if generation < 0 and self.phases.state is GroupState.EMPTY:
            return ErrorCode.NONE
        member, error = self._check_member(member_id, instance_id, generation)
        if member is None:
            return error
        member.extend_session(now_ms)
        # The member still holds an older assignment, whose partitions may be reassigned already.
        return (
            ErrorCode.REBALANCE_IN_PROGRESS if self.phases.state is GroupState.COMPLETING_REBALANCE else ErrorCode.NONE
        )

    # --- leaving

    def leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Remove a member, or drop a pending member id. Call `apply_leaves` after the last one."""
        if self.phases.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if member_id in self.pending and instance_id is None:
            del self.pending[member_id]
            return ErrorCode.NONE
        if not member_id and instance_id is not None:
            member, error = self.member_list.by_instance(instance_id), ErrorCode.UNKNOWN_MEMBER_ID
        else:
            member, error = self._find(member_id, instance_id)
        if member is None:
            return error
        self.phases.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._has_left = True
        return ErrorCode.NONE

    def apply_leaves(self, now_ms: float) -> None:
        """Start or continue a rebalance after members have left."""
        left, self._has_left = self._has_left, False
        if left:
            self.phases.rebalance(now_ms)
        else:
            self.phases.advance_join(now_ms)

    def abandon(self, waiter: Waiter, now_ms: float) -> None:
        """Handle the disconnect of a waiting client. Its member may rejoin on another connection."""
        member = next((m for m in self.member_list if waiter in (m.join_waiter, m.sync_waiter)), None)
        if member is None:
            return
        self.phases.fail_waiters(member, ErrorCode.REBALANCE_IN_PROGRESS)
        if not member.knows_id and member.instance_id is None:
            self.phases.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
            self.phases.rebalance(now_ms)
        else:
            member.is_new = False
            member.extend_session(now_ms)
            self.phases.wake_by(member.deadline_ms)

    # --- time and durability

    def tick(self, now_ms: float) -> None:
        """Handle expired deadlines, and set `wake_ms`."""
        for member_id in [m for m, deadline_ms in self.pending.items() if deadline_ms <= now_ms]:
            del self.pending[member_id]
        expired = {m.member_id: m for m in self.member_list if m.can_expire and m.deadline_ms <= now_ms}
        expired |= {m.member_id: m for m in self.phases.unsynced(now_ms)}
        for member in expired.values():
            self.phases.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
            self._has_left = True
        self.apply_leaves(now_ms)
        self.phases.check_join_deadline(now_ms)
        self.phases.update_wake_time()

    # --- checks

    def _find(self, member_id: str, instance_id: str | None) -> tuple[GroupMemberState | None, ErrorCode]:
        """Return the member, or None and the error. An instance id is fenced if another member uses it."""
        if instance_id is None:
            return self.member_list.get(member_id), ErrorCode.UNKNOWN_MEMBER_ID
        member = self.member_list.by_instance(instance_id)
        if member is not None and member.member_id != member_id:
            return None, ErrorCode.FENCED_INSTANCE_ID
        return member, ErrorCode.UNKNOWN_MEMBER_ID

    def _check_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[GroupMemberState | None, ErrorCode]:
        """Return the member if it belongs to the current generation, else None and the error."""
        if self.phases.state is GroupState.DEAD:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        member, error = self._find(member_id, instance_id)
        if member is None:
            return None, error
        if generation != self.phases.generation:
            return None, ErrorCode.ILLEGAL_GENERATION
        return member, ErrorCode.NONE

    def _compatible(self, request: JoinRequest, known: GroupMemberState | None) -> bool:
        """Return whether the request shares a protocol with all members except `known`, its previous state."""
        if not request.protocol_type or not request.protocols:
            return False
        if len(self.member_list) == (known is not None):
            return True
        return request.protocol_type == self.phases.protocol_type and self.member_list.supports(
            request.protocols, without=known
        )

    def _matches_protocol(self, request: SyncRequest) -> bool:
        return request.protocol_type in (None, self.phases.protocol_type) and request.protocol in (
            None,
            self.phases.protocol,
        )

    def _is_full(self, member: GroupMemberState | None) -> bool:
        """Return whether the group has no room for `member`, or for a new one if None.

        During a rebalance, members that have joined and static members count; other members may be replaced.
        """
        limit = self.config.group_max_size
        if self.phases.state is not GroupState.PREPARING_REBALANCE:
            return member is None and len(self.member_list) >= limit
        if len(self.member_list) < limit or (member is not None and member.join_waiter is not None):
            return False
        return (
            sum(m.join_waiter is not None or m.instance_id is not None for m in self.member_list if m is not member)
            >= limit
        )

    def _refuse_join(self, waiter: Waiter, request: JoinRequest, error: ErrorCode) -> None:
        # Clients discard their id on this error, so the response carries none.
        member_id = "" if error is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
        self.phases.reply(waiter, JoinResult(error, member_id))

    def _new_member_id(self, request: JoinRequest) -> str:
        name = request.client_id if request.instance_id is None else request.instance_id
        return f"{name[:MAX_ID_PREFIX]}-{self._new_id()}"
