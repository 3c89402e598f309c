"""The states of a classic group and the transitions between them. `state_machine` triggers the transitions.

EMPTY → PREPARING_REBALANCE (members join) → COMPLETING_REBALANCE (the leader assigns) → STABLE. Both of the last two
return to PREPARING_REBALANCE; a join phase without members ends in EMPTY.
"""

from __future__ import annotations

from enum import Enum

from penstock.config.broker import BrokerConfig
from penstock.group.calls import Effect, JoinResult, Persist, Reply, SyncResult, Waiter
from penstock.group.member_list import GroupMemberState, MemberList, Rejoin
from penstock.wire.errors import ErrorCode


class GroupState(Enum):
    """Kafka's names of the group states."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class RebalancePhases:
    """The state, deadlines and transitions of a group. All times are milliseconds of the same clock."""

    def __init__(self, group_id: str, config: BrokerConfig) -> None:
        self.group_id = group_id
        self.config = config
        self.state = GroupState.EMPTY
        self.member_list = MemberList()
        self.pending: dict[str, float] = {}
        """Member ids assigned to new members that have not joined with them yet, and their expiry."""
        self.generation = 0
        """Incremented by each completed join phase; never reused for another set of members."""
        self.protocol_type = ""
        self.protocol: str | None = None
        self.wake_ms: float | None = None
        """The time of the next `tick`, which may find nothing due."""
        self._effects: list[Effect] = []
        self._sequence = 0
        self._assigned_sequence: int | None = None
        """In COMPLETING_REBALANCE: the `Persist` that must complete before assignments are sent."""
        self._join_deadline_ms = 0.0
        self._initial_delay_left_ms: float | None = None
        """In PREPARING_REBALANCE of a group that was empty: by how much the join phase may still be extended for new
        members."""
        self._member_added = False
        self._unsynced: dict[str, None] = {}
        """Members of this generation that have not sent SyncGroup yet, in join order."""
        self._sync_deadline_ms = 0.0

    # --- effects

    def pop_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def _reply(self, waiter: Waiter, answer: JoinResult | SyncResult) -> None:
        self._effects.append(Reply(waiter, answer))

    def _persist(self) -> int:
        self._sequence += 1
        self._effects.append(Persist(self._sequence))
        return self._sequence

    def _wake_by(self, when_ms: float) -> None:
        if self.wake_ms is None or when_ms < self.wake_ms:
            self.wake_ms = when_ms

    def _update_wake_time(self) -> None:
        deadlines = list(self.pending.values())
        deadlines += [m.deadline_ms for m in self.member_list if m.can_expire]
        if self.state is GroupState.PREPARING_REBALANCE:
            deadlines.append(self._join_deadline_ms)
        if self._unsynced:
            deadlines.append(self._sync_deadline_ms)
        self.wake_ms = min(deadlines, default=None)

    # --- members that wait

    def _fail_sync(self, member: GroupMemberState, error: ErrorCode) -> None:
        waiter, member.sync_waiter = member.sync_waiter, None
        if waiter is not None:
            self._reply(waiter, SyncResult(error))

    def _fail_waiters(self, member: GroupMemberState, error: ErrorCode) -> None:
        waiter = self.member_list.pop_join_waiter(member)
        if waiter is not None:
            self._reply(waiter, JoinResult(error, member.member_id))
        self._fail_sync(member, error)

    def _drop(self, member: GroupMemberState, error: ErrorCode) -> None:
        self._fail_waiters(member, error)
        self._unsynced.pop(member.member_id, None)
        self.member_list.remove(member)

    def _join_result(self, member: GroupMemberState, with_members: bool) -> JoinResult:
        assert self.protocol is not None, "a group that answers joins has a protocol"
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.member_list.leader,
            members=self.member_list.describe_members(self.protocol) if with_members else [],
        )

    def _sync_result(self, member: GroupMemberState) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    # --- from state to state

    def _rebalance(self, now_ms: float) -> None:
        """Start a join phase after a membership change, or update the current one."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare(now_ms)
        self._advance_join(now_ms)

    def _prepare(self, now_ms: float) -> None:
        was_empty = self.state is GroupState.EMPTY
        for member in self.member_list:
            member.rejoin = None
            if member.sync_waiter is not None:
                self._fail_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                member.extend_session(now_ms)
                self._wake_by(member.deadline_ms)
        self.state = GroupState.PREPARING_REBALANCE
        self._assigned_sequence = None
        self._unsynced.clear()
        duration_ms = self.member_list.rebalance_timeout_ms
        self._initial_delay_left_ms = None
        if was_empty and self.config.group_initial_rebalance_delay_ms > 0:
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, duration_ms)
            self._initial_delay_left_ms = duration_ms - delay_ms
            self._member_added = False
            duration_ms = delay_ms
        self._join_deadline_ms = now_ms + duration_ms
        self._wake_by(self._join_deadline_ms)

    def _advance_join(self, now_ms: float) -> None:
        """End the join phase once all members have joined."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial_delay_left_ms is None
            and not self.pending
            and self.member_list.all_joined
        ):
            self._complete_join(now_ms)

    def _join_deadline_passed(self, now_ms: float) -> None:
        if self._initial_delay_left_ms and self._member_added:
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, self._initial_delay_left_ms)
            self._initial_delay_left_ms -= delay_ms
            self._member_added = False
            self._join_deadline_ms = now_ms + delay_ms
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: float) -> None:
        """Remove dynamic members that did not join; static members stay until their session expires."""
        self._initial_delay_left_ms = None
        for member in [m for m in self.member_list if m.join_waiter is None and m.instance_id is None]:
            self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if not self.member_list:
            self._become_empty()
        elif not self.member_list.elect_waiting_leader():
            self._join_deadline_ms = now_ms + self.member_list.rebalance_timeout_ms
            self._wake_by(self._join_deadline_ms)
        else:
            self._start_generation(now_ms)

    def _become_empty(self) -> None:
        self.generation += 1
        self.protocol = None
        self.state = GroupState.EMPTY
        self._update_wake_time()
        self._persist()

    def _start_generation(self, now_ms: float) -> None:
        self.generation += 1
        self.protocol = self.member_list.select_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        for member in self.member_list:
            member.assignment = b""
            if member.join_waiter is not None:
                answer = self._join_result(member, with_members=member.member_id == self.member_list.leader)
                self._unsynced[member.member_id] = None
                self._reply_join(member, answer, now_ms)
        self._sync_deadline_ms = now_ms + self.member_list.rebalance_timeout_ms
        self._wake_by(self._sync_deadline_ms)

    def _reply_join(self, member: GroupMemberState, answer: JoinResult, now_ms: float) -> None:
        waiter = self.member_list.pop_join_waiter(member)
        assert waiter is not None, f"{member.member_id} does not wait for a join"
        member.is_new, member.knows_id = False, True
        member.extend_session(now_ms)
        self._wake_by(member.deadline_ms)
        self._reply(waiter, answer)

    def _become_stable(self, now_ms: float) -> None:
        self.state = GroupState.STABLE
        self._assigned_sequence = None
        for member in self.member_list:
            waiter, member.sync_waiter = member.sync_waiter, None
            if waiter is not None:
                member.extend_session(now_ms)
                self._wake_by(member.deadline_ms)
                self._reply(waiter, self._sync_result(member))

    def _complete_static_rejoin(self, member: GroupMemberState, rejoin: Rejoin, now_ms: float) -> None:
        """Answer a restarted static member with its previous assignment (KIP-345).

        A leader skips the assignment (KIP-814). A client that does not support that gets another leader's id, so that
        it acts as a follower.
        """
        leads = member.member_id == self.member_list.leader
        answer = self._join_result(member, with_members=leads and rejoin.can_skip_assignment)
        if rejoin.can_skip_assignment:
            answer.skip_assignment = leads
        else:
            answer.leader = rejoin.answered_leader
        self._reply_join(member, answer, now_ms)
