"""How a group of the classic protocol gets from state to state; what moves it is in `state_machine`.

EMPTY → PREPARING_REBALANCE (members join) → COMPLETING_REBALANCE (the leader assigns) → STABLE, and from each of the
last two back to PREPARING_REBALANCE; a join phase that nobody took part in ends in EMPTY.
"""

from __future__ import annotations

from enum import Enum

from penstock.config.broker import BrokerConfig
from penstock.group.calls import Answer, Effect, JoinAnswer, Persist, SyncAnswer, Waiter
from penstock.group.member_list import GroupMemberState, MemberList, Rejoin
from penstock.wire.errors import ErrorCode


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Phases:
    """The state of a group, its deadlines, and its transitions. Times are milliseconds on one clock."""

    def __init__(self, group_id: str, config: BrokerConfig) -> None:
        self.group_id = group_id
        self.config = config
        self.state = GroupState.EMPTY
        self.roster = MemberList()
        self.pending: dict[str, float] = {}
        """Ids given to newcomers, and when each is forgotten."""
        self.generation = 0
        """Grows with each completed join phase, and never names two sets of members."""
        self.protocol_type = ""
        self.protocol: str | None = None
        self.wake_ms: float | None = None
        """When `tick` is to be called; it may turn out that nothing is due yet."""
        self._effects: list[Effect] = []
        self._sequence = 0
        self._assigned_sequence: int | None = None
        """In COMPLETING_REBALANCE: the assignment is there, and is handed out once this `Persist` is done."""
        self._join_deadline_ms = 0.0
        self._gathering_ms: float | None = None
        """In PREPARING_REBALANCE of a group that was empty: how long it may go on waiting for newcomers after this."""
        self._newcomer = False
        self._unsynced: dict[str, None] = {}
        """Members that were told of this generation and have not asked for their assignment, in that order."""
        self._sync_deadline_ms = 0.0

    # --- effects

    def take_effects(self) -> list[Effect]:
        """What is to be done since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def _answer(self, waiter: Waiter, answer: JoinAnswer | SyncAnswer) -> None:
        self._effects.append(Answer(waiter, answer))

    def _persist(self) -> int:
        self._sequence += 1
        self._effects.append(Persist(self._sequence))
        return self._sequence

    def _wake_by(self, when_ms: float) -> None:
        if self.wake_ms is None or when_ms < self.wake_ms:
            self.wake_ms = when_ms

    def _find_wake(self) -> None:
        deadlines = list(self.pending.values())
        deadlines += [m.deadline_ms for m in self.roster if m.can_expire]
        if self.state is GroupState.PREPARING_REBALANCE:
            deadlines.append(self._join_deadline_ms)
        if self._unsynced:
            deadlines.append(self._sync_deadline_ms)
        self.wake_ms = min(deadlines, default=None)

    # --- members that wait

    def _end_sync(self, member: GroupMemberState, error: ErrorCode) -> None:
        waiter, member.sync_waiter = member.sync_waiter, None
        if waiter is not None:
            self._answer(waiter, SyncAnswer(error))

    def _end_waits(self, member: GroupMemberState, error: ErrorCode) -> None:
        waiter = self.roster.end_join(member)
        if waiter is not None:
            self._answer(waiter, JoinAnswer(error, member.member_id))
        self._end_sync(member, error)

    def _drop(self, member: GroupMemberState, error: ErrorCode) -> None:
        self._end_waits(member, error)
        self._unsynced.pop(member.member_id, None)
        self.roster.remove(member)

    def _joined(self, member: GroupMemberState, with_members: bool) -> JoinAnswer:
        assert self.protocol is not None, "a group that answers joins has a protocol"
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.roster.leader,
            members=self.roster.described(self.protocol) if with_members else [],
        )

    def _assignment(self, member: GroupMemberState) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    # --- from state to state

    def _rebalance(self, now_ms: float) -> None:
        """Membership has changed: a join phase begins, or the one under way takes it in."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            self._prepare(now_ms)
        self._advance_join(now_ms)

    def _prepare(self, now_ms: float) -> None:
        was_empty = self.state is GroupState.EMPTY
        for member in self.roster:
            member.rejoin = None
            if member.sync_waiter is not None:
                self._end_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                member.alive(now_ms)
                self._wake_by(member.deadline_ms)
        self.state = GroupState.PREPARING_REBALANCE
        self._assigned_sequence = None
        self._unsynced.clear()
        duration_ms = self.roster.rebalance_timeout_ms
        self._gathering_ms = None
        if was_empty and self.config.group_initial_rebalance_delay_ms > 0:
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, duration_ms)
            self._gathering_ms = duration_ms - delay_ms
            self._newcomer = False
            duration_ms = delay_ms
        self._join_deadline_ms = now_ms + duration_ms
        self._wake_by(self._join_deadline_ms)

    def _advance_join(self, now_ms: float) -> None:
        """Ends the join phase as soon as everybody is there."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._gathering_ms is None
            and not self.pending
            and self.roster.all_joined
        ):
            self._complete_join(now_ms)

    def _join_deadline_passed(self, now_ms: float) -> None:
        if self._gathering_ms and self._newcomer:
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, self._gathering_ms)
            self._gathering_ms -= delay_ms
            self._newcomer = False
            self._join_deadline_ms = now_ms + delay_ms
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: float) -> None:
        """Goes on with those who joined; static members that did not keep their place until their session ends."""
        self._gathering_ms = None
        for member in [m for m in self.roster if m.join_waiter is None and m.instance_id is None]:
            self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if not self.roster:
            self._become_empty()
        elif not self.roster.elect_waiting_leader():
            self._join_deadline_ms = now_ms + self.roster.rebalance_timeout_ms
            self._wake_by(self._join_deadline_ms)
        else:
            self._begin_generation(now_ms)

    def _become_empty(self) -> None:
        self.generation += 1
        self.protocol = None
        self.state = GroupState.EMPTY
        self._find_wake()
        self._persist()

    def _begin_generation(self, now_ms: float) -> None:
        self.generation += 1
        self.protocol = self.roster.vote()
        self.state = GroupState.COMPLETING_REBALANCE
        for member in self.roster:
            member.assignment = b""
            if member.join_waiter is not None:
                answer = self._joined(member, with_members=member.member_id == self.roster.leader)
                self._unsynced[member.member_id] = None
                self._end_join(member, answer, now_ms)
        self._sync_deadline_ms = now_ms + self.roster.rebalance_timeout_ms
        self._wake_by(self._sync_deadline_ms)

    def _end_join(self, member: GroupMemberState, answer: JoinAnswer, now_ms: float) -> None:
        waiter = self.roster.end_join(member)
        assert waiter is not None, f"{member.member_id} does not wait for a join"
        member.is_new, member.knows_id = False, True
        member.alive(now_ms)
        self._wake_by(member.deadline_ms)
        self._answer(waiter, answer)

    def _become_stable(self, now_ms: float) -> None:
        self.state = GroupState.STABLE
        self._assigned_sequence = None
        for member in self.roster:
            waiter, member.sync_waiter = member.sync_waiter, None
            if waiter is not None:
                member.alive(now_ms)
                self._wake_by(member.deadline_ms)
                self._answer(waiter, self._assignment(member))

    def _take_place(self, member: GroupMemberState, rejoin: Rejoin, now_ms: float) -> None:
        """A restarted static member goes on with its old assignment (KIP-345).

        As leader it is told to skip assigning (KIP-814); a client that does not know that is told of another leader,
        so that it takes itself for a follower.
        """
        leads = member.member_id == self.roster.leader
        answer = self._joined(member, with_members=leads and rejoin.can_skip_assignment)
        if rejoin.can_skip_assignment:
            answer.skip_assignment = leads
        else:
            answer.leader = rejoin.answered_leader
        self._end_join(member, answer, now_ms)
