"""The states of a classic group and the transitions between them. `state_machine` triggers the transitions.

EMPTY → PREPARING_REBALANCE (members join) → COMPLETING_REBALANCE (the leader assigns) → STABLE. Both of the last two
return to PREPARING_REBALANCE; a join phase without members ends in EMPTY.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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


NEXT_STATES: Mapping[GroupState, Collection[GroupState]] = {
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE, GroupState.STABLE, GroupState.DEAD),
    GroupState.PREPARING_REBALANCE: (GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD),
    GroupState.COMPLETING_REBALANCE: (GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD),
    GroupState.STABLE: (GroupState.PREPARING_REBALANCE, GroupState.DEAD),
    GroupState.DEAD: (),
}
"""The states that may follow each state; only a restored group goes from EMPTY to STABLE."""


class RebalancePhases:
    """The state, deadlines and transitions of a group. All times are milliseconds of the same clock. `pending` are the
    member ids that were assigned to new members, and their expiry: the join phase waits for them."""

    def __init__(self, config: BrokerConfig, member_list: MemberList, pending: dict[str, float]) -> None:
        self.config, self.member_list = config, member_list
        self._pending = pending
        self.state = GroupState.EMPTY
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

    def reply(self, waiter: Waiter, answer: JoinResult | SyncResult) -> None:
        """Answer a waiting request."""
        self._effects.append(Reply(waiter, answer))

    def persist(self) -> int:
        """Request that the group is stored. Returns the sequence number that `persisted` gets."""
        self._sequence += 1
        self._effects.append(Persist(self._sequence))
        return self._sequence

    def wake_by(self, when_ms: float) -> None:
        """Require a `tick` at this time at the latest."""
        if self.wake_ms is None or when_ms < self.wake_ms:
            self.wake_ms = when_ms

    def update_wake_time(self) -> None:
        """Set `wake_ms` to the next deadline."""
        deadlines = list(self._pending.values())
        deadlines += [m.deadline_ms for m in self.member_list if m.can_expire]
        if self.state is GroupState.PREPARING_REBALANCE:
            deadlines.append(self._join_deadline_ms)
        if self._unsynced:
            deadlines.append(self._sync_deadline_ms)
        self.wake_ms = min(deadlines, default=None)

    # --- members that wait

    def fail_sync(self, member: GroupMemberState, error: ErrorCode) -> None:
        """Fail the member's waiting sync, if any."""
        waiter, member.sync_waiter = member.sync_waiter, None
        if waiter is not None:
            self.reply(waiter, SyncResult(error))

    def fail_waiters(self, member: GroupMemberState, error: ErrorCode) -> None:
        """Fail the member's waiting join and sync, if any."""
        waiter = self.member_list.pop_join_waiter(member)
        if waiter is not None:
            self.reply(waiter, JoinResult(error, member.member_id))
        self.fail_sync(member, error)

    def drop(self, member: GroupMemberState, error: ErrorCode) -> None:
        """Fail the member's requests and remove it."""
        self.fail_waiters(member, error)
        self._unsynced.pop(member.member_id, None)
        self.member_list.remove(member)

    def join_result(self, member: GroupMemberState, with_members: bool) -> JoinResult:
        """Return the answer to the member's join in this generation."""
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

    def sync_result(self, member: GroupMemberState) -> SyncResult:
        """Return the answer to the member's sync: its assignment."""
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    # --- from state to state

    def _enter(self, state: GroupState) -> None:
        assert state in NEXT_STATES[self.state], f"a group cannot go from {self.state.value} to {state.value}"
        assert bool(self.member_list) or state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE, GroupState.DEAD), (
            f"a group without members cannot be {state.value}"
        )
        self.state = state

    def rebalance(self, now_ms: float) -> None:
        """Start a join phase after a membership change, or update the current one."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare(now_ms)
        self.advance_join(now_ms)

    def _prepare(self, now_ms: float) -> None:
        was_empty = self.state is GroupState.EMPTY
        for member in self.member_list:
            member.rejoin = None
            if member.sync_waiter is not None:
                self.fail_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                member.extend_session(now_ms)
                self.wake_by(member.deadline_ms)
        self._enter(GroupState.PREPARING_REBALANCE)
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
        self.wake_by(self._join_deadline_ms)

    def advance_join(self, now_ms: float) -> None:
        """End the join phase once all members have joined."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial_delay_left_ms is None
            and not self._pending
            and self.member_list.all_joined
        ):
            self._complete_join(now_ms)

    def check_join_deadline(self, now_ms: float) -> None:
        """Extend or end a join phase whose time is over."""
        if self.state is not GroupState.PREPARING_REBALANCE or self._join_deadline_ms > now_ms:
            return
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
            self.drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if not self.member_list:
            self._become_empty()
        elif not self.member_list.elect_waiting_leader():
            self._join_deadline_ms = now_ms + self.member_list.rebalance_timeout_ms
            self.wake_by(self._join_deadline_ms)
        else:
            self._start_generation(now_ms)

    def _become_empty(self) -> None:
        self.generation += 1
        self.protocol = None
        self._enter(GroupState.EMPTY)
        self.update_wake_time()
        self.persist()

    def _start_generation(self, now_ms: float) -> None:
        leader = self.member_list.members[self.member_list.leader]
        assert leader.join_waiter is not None, f"the leader {leader.member_id} cannot assign: it does not wait"
        self.generation += 1
        self.protocol = self.member_list.select_protocol()
        self._enter(GroupState.COMPLETING_REBALANCE)
        for member in self.member_list:
            member.assignment = b""
            if member.join_waiter is not None:
                answer = self.join_result(member, with_members=member.member_id == self.member_list.leader)
                self._unsynced[member.member_id] = None
                self._reply_join(member, answer, now_ms)
        self._sync_deadline_ms = now_ms + self.member_list.rebalance_timeout_ms
        self.wake_by(self._sync_deadline_ms)

    def _reply_join(self, member: GroupMemberState, answer: JoinResult, now_ms: float) -> None:
        waiter = self.member_list.pop_join_waiter(member)
        assert waiter is not None, f"{member.member_id} does not wait for a join"
        member.is_new, member.knows_id = False, True
        member.extend_session(now_ms)
        self.wake_by(member.deadline_ms)
        self.reply(waiter, answer)

    def _become_stable(self, now_ms: float) -> None:
        self._enter(GroupState.STABLE)
        self._assigned_sequence = None
        for member in self.member_list:
            waiter, member.sync_waiter = member.sync_waiter, None
            if waiter is not None:
                member.extend_session(now_ms)
                self.wake_by(member.deadline_ms)
                self.reply(waiter, self.sync_result(member))

    def _complete_static_rejoin(self, member: GroupMemberState, rejoin: Rejoin, now_ms: float) -> None:
        """Answer a restarted static member with its previous assignment (KIP-345).

        A leader skips the assignment (KIP-814). A client that does not support that gets another leader's id, so that
        it acts as a follower.
        """
        leads = member.member_id == self.member_list.leader
        answer = self.join_result(member, with_members=leads and rejoin.can_skip_assignment)
        if rejoin.can_skip_assignment:
            answer.skip_assignment = leads
        else:
            answer.leader = rejoin.answered_leader
        self._reply_join(member, answer, now_ms)

    # --- members of a generation

    def add_member(self, member: GroupMemberState, waiter: Waiter, now_ms: float) -> None:
        """Add a new member, whose join starts or extends a join phase."""
        self.wake_by(member.deadline_ms)
        self.member_list.add(member)
        self.member_list.await_join(member, waiter)
        self._member_added = True
        self.rebalance(now_ms)

    def rename(self, member: GroupMemberState, member_id: str) -> None:
        """Change the member id of a static member."""
        if member.member_id in self._unsynced:
            del self._unsynced[member.member_id]
            self._unsynced[member_id] = None
        self.member_list.rename(member, member_id)

    def sync(self, member: GroupMemberState, assignments: Mapping[str, bytes], waiter: Waiter, now_ms: float) -> None:
        """Answer a member's sync, at once or when the assignment is durable. The leader's first one assigns."""
        self._unsynced.pop(member.member_id, None)
        if self.state is GroupState.STABLE:
            member.extend_session(now_ms)
            self.reply(waiter, self.sync_result(member))
            return
        assert self.state is GroupState.COMPLETING_REBALANCE, f"a member syncs with a group that is {self.state.value}"
        self.fail_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_waiter = waiter
        if member.member_id == self.member_list.leader and self._assigned_sequence is None:
            for each in self.member_list:
                each.assignment = assignments.get(each.member_id, b"")
            self._assigned_sequence = self.persist()

    def unsynced(self, now_ms: float) -> list[GroupMemberState]:
        """Return the members that have not synced in time."""
        late = self._unsynced if self._sync_deadline_ms <= now_ms else ()
        return [self.member_list.members[member_id] for member_id in late]

    # --- durability, and the end

    def persisted(self, sequence: int, now_ms: float) -> None:
        """Handle the durability of the `Persist` with this sequence number and all before it."""
        assert sequence <= self._sequence, f"write {sequence} is durable, {self._sequence} were requested"
        if self.state is GroupState.COMPLETING_REBALANCE and self._assigned_sequence == sequence:
            self._become_stable(now_ms)
        for member in self.member_list:
            if member.rejoin is not None and member.rejoin.sequence <= sequence:
                self._complete_static_rejoin(member, member.rejoin, now_ms)

    def persist_failed(self, sequence: int, now_ms: float) -> None:
        """Fail the requests that wait for this `Persist`: its outcome is failure or unknown."""
        if self.state is GroupState.COMPLETING_REBALANCE and self._assigned_sequence == sequence:
            for member in self.member_list:
                self.fail_sync(member, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                member.extend_session(now_ms)
            self.rebalance(now_ms)
        for member in self.member_list:
            if member.rejoin is not None and member.rejoin.sequence <= sequence:
                self.fail_waiters(member, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                member.extend_session(now_ms)
        self.update_wake_time()

    def restore(self, members: list[GroupMemberState], leader: str, now_ms: float) -> None:
        """Restore the last completed rebalance after a restart, with a full session for each member.

        The caller has set `generation`, `protocol_type` and `protocol`.
        """
        assert not self.member_list, "only a new group is restored"
        for member in members:
            member.extend_session(now_ms)
            self.member_list.add(member)
        if members:
            assert leader in self.member_list.members, f'the leader "{leader}" is not a member'
            self.member_list.leader = leader
            self._enter(GroupState.STABLE)
            if len(members) > self.config.group_max_size:
                self.rebalance(now_ms)
        self.update_wake_time()

    def close(self, error: ErrorCode) -> None:
        """Fail all waiting requests: the group is deleted, or no longer coordinated here."""
        for member in self.member_list:
            self.fail_waiters(member, error)
        self._pending.clear()
        self._unsynced.clear()
        self._enter(GroupState.DEAD)
        self.wake_ms = None
