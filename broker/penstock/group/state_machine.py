"""One group of the classic protocol: what may come from outside and what it does (KIP-62, 345, 394, 429, 559, 814).

Nothing here waits or reads a clock: inputs are calls with the time in milliseconds, outputs are the effects that
`take_effects` returns and `wake_ms`, when `tick` wants to be called next. `coordinator` drives it. Rebalances are
cooperative or eager as the members like: assignments are theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.config.broker import BrokerConfig
from penstock.group.calls import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest, Waiter
from penstock.group.member_list import GroupMemberState, Rejoin
from penstock.group.phases import GroupState, Phases
from penstock.wire.errors import ErrorCode

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long a newcomer may wait for its first answer: it cannot send heartbeats, as it may not know its id."""
MAX_PENDING = 10_000
"""Ids given to newcomers that have not come back with them."""
MAX_ID_PREFIX = 255
"""Characters of a client's name that go into a member id."""


class ClassicGroup(Phases):
    """A group. `new_id` makes the part of a member id that nobody can guess or repeat."""

    def __init__(self, group_id: str, config: BrokerConfig, new_id: Callable[[], str]) -> None:
        super().__init__(group_id, config)
        self._new_id = new_id
        self._left = False

    @property
    def is_blank(self) -> bool:
        """Nothing would be lost if it were forgotten: it never had a generation and expects nobody."""
        return self.state is GroupState.EMPTY and not self.pending and self.generation == 0

    def subscribed_topics(self) -> frozenset[str] | None:
        """What its members subscribe to; None where that is not known."""
        return self.roster.topics(self.protocol_type, self.protocol)

    # --- joining

    def join(self, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        """Answers now, or when the rebalance that this starts or takes part in is complete."""
        if self.state is GroupState.DEAD:
            self._refuse_join(waiter, request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not request.member_id:
            self._join_first(request, waiter, now_ms)
        elif request.member_id in self.pending and request.instance_id is None:
            self._join_second(request, waiter, now_ms)
        else:
            self._join_again(request, waiter, now_ms)

    def _join_first(self, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        known = None if request.instance_id is None else self.roster.by_instance(request.instance_id)
        if not self._compatible(request, known):
            self._refuse_join(waiter, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif known is not None:
            self._replace_static(known, request, waiter, now_ms)
        elif self._is_full(None):
            self._refuse_join(waiter, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif request.two_step and request.instance_id is None:
            self._give_id(request, waiter, now_ms)
        else:
            self._add(self._make_id(request), request, waiter, now_ms)

    def _give_id(self, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        if len(self.pending) >= min(self.config.group_max_size, MAX_PENDING):
            self._refuse_join(waiter, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
            return
        member_id = self._make_id(request)
        self.pending[member_id] = now_ms + request.session_timeout_ms
        self._wake_by(self.pending[member_id])
        self._answer(waiter, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _join_second(self, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        if not self._compatible(request, None):
            self._refuse_join(waiter, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return
        del self.pending[request.member_id]
        if self._is_full(None):
            self._refuse_join(waiter, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._advance_join(now_ms)
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
            self._drop(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._refuse_join(waiter, request, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self._advance_join(now_ms)
        elif self._changes_nothing(member, request):
            member.alive(now_ms)
            self._wake_by(member.deadline_ms)
            self._answer(waiter, self._joined(member, with_members=member.member_id == self.roster.leader))
        else:
            self._end_waits(member, ErrorCode.REBALANCE_IN_PROGRESS)
            self._update(member, request)
            self.roster.await_join(member, waiter)
            self._rebalance(now_ms)

    def _update(self, member: GroupMemberState, request: JoinRequest) -> None:
        self.roster.update(member, request)
        if len(self.roster) == 1:
            self.protocol_type = request.protocol_type

    def _changes_nothing(self, member: GroupMemberState, request: JoinRequest) -> bool:
        """Whether a join says what is known, as when the answer to the last one was lost."""
        if self.state is GroupState.PREPARING_REBALANCE or member.join_waiter is not None:
            return False
        if self.state is GroupState.STABLE and member.member_id == self.roster.leader:
            return False  # it saw what only a new assignment can take in, such as new partitions
        return list(member.protocols.items()) == list(request.protocols.items())

    def _add(self, member_id: str, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        if not self.roster:
            self.protocol_type = request.protocol_type
        member = GroupMemberState(member_id, request, knows_id=bool(request.member_id))
        member.is_new = True
        member.deadline_ms = now_ms + NEW_MEMBER_TIMEOUT_MS
        self._wake_by(member.deadline_ms)
        self.roster.add(member)
        self.roster.await_join(member, waiter)
        self._newcomer = True
        self._rebalance(now_ms)

    def _replace_static(self, member: GroupMemberState, request: JoinRequest, waiter: Waiter, now_ms: float) -> None:
        """A static member has restarted: the old one is fenced, and where nothing else changed nobody else notices."""
        old_leader, old_id, old_topics = self.roster.leader, member.member_id, self.subscribed_topics()
        self._end_waits(member, ErrorCode.FENCED_INSTANCE_ID)
        self._update(member, request)
        self.roster.rename(member, self._make_id(request))
        if old_id in self._unsynced:
            del self._unsynced[old_id]
            self._unsynced[member.member_id] = None
        member.alive(now_ms)
        self._wake_by(member.deadline_ms)
        self.roster.await_join(member, waiter)
        same_protocol = self.roster.vote() == self.protocol
        if self.state is GroupState.STABLE and same_protocol and self.subscribed_topics() == old_topics:
            member.rejoin = Rejoin(self._persist(), old_leader, request.can_skip_assignment)
        else:
            self._rebalance(now_ms)

    # --- assignments, heartbeats, commits

    def sync(self, request: SyncRequest, waiter: Waiter, now_ms: float) -> None:
        """Answers with the assignment: now, or when the leader has sent it and it is durable."""
        member, error = self._check_member(request.member_id, request.instance_id, request.generation)
        if member is not None and self.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        elif member is not None and not self._same_protocol(request):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if member is None or error:
            self._answer(waiter, SyncAnswer(error))
            return
        self._unsynced.pop(member.member_id, None)
        if self.state is GroupState.STABLE:
            member.alive(now_ms)
            self._answer(waiter, self._assignment(member))
            return
        self._end_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_waiter = waiter
        if member.member_id == self.roster.leader and self._assigned_sequence is None:
            for each in self.roster:
                each.assignment = request.assignments.get(each.member_id, b"")
            self._assigned_sequence = self._persist()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: float) -> ErrorCode:
        member, error = self._check_member(member_id, instance_id, generation)
        if member is None:
            return error
        member.alive(now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: float) -> ErrorCode:
        """Whether offsets may be committed: by members of this generation, or by anybody where there are no members."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        member, error = self._check_member(member_id, instance_id, generation)
        if member is None:
            return error
        member.alive(now_ms)
        # Whoever commits in this phase holds partitions of an older assignment, which may be given away already.
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING_REBALANCE else ErrorCode.NONE

    # --- leaving

    def leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """A member goes; a static one may be named by its instance alone. `settle` follows the last of a batch."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if member_id in self.pending and instance_id is None:
            del self.pending[member_id]
            return ErrorCode.NONE
        if not member_id and instance_id is not None:
            member, error = self.roster.by_instance(instance_id), ErrorCode.UNKNOWN_MEMBER_ID
        else:
            member, error = self._find(member_id, instance_id)
        if member is None:
            return error
        self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._left = True
        return ErrorCode.NONE

    def settle(self, now_ms: float) -> None:
        """Takes up that members, or newcomers, have gone."""
        left, self._left = self._left, False
        if left:
            self._rebalance(now_ms)
        else:
            self._advance_join(now_ms)

    def abandon(self, waiter: Waiter, now_ms: float) -> None:
        """Nobody waits for this answer any more: the connection is gone. The member may come back on another."""
        member = next((m for m in self.roster if waiter in (m.join_waiter, m.sync_waiter)), None)
        if member is None:
            return
        self._end_waits(member, ErrorCode.REBALANCE_IN_PROGRESS)
        if not member.knows_id and member.instance_id is None:
            self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
            self._rebalance(now_ms)
        else:
            member.is_new = False
            member.alive(now_ms)
            self._wake_by(member.deadline_ms)

    # --- time and durability

    def tick(self, now_ms: float) -> None:
        """Does what is due, and finds out when to be called again."""
        for member_id in [m for m, deadline_ms in self.pending.items() if deadline_ms <= now_ms]:
            del self.pending[member_id]
        late = {m.member_id: m for m in self.roster if m.can_expire and m.deadline_ms <= now_ms}
        if self._unsynced and self._sync_deadline_ms <= now_ms:
            late |= {m: self.roster.members[m] for m in self._unsynced}
        for member in late.values():
            self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
            self._left = True
        self.settle(now_ms)
        if self.state is GroupState.PREPARING_REBALANCE and self._join_deadline_ms <= now_ms:
            self._join_deadline_passed(now_ms)
        self._find_wake()

    def persisted(self, sequence: int, now_ms: float) -> None:
        """What the `Persist` of this number asked for is durable, and so is all before it."""
        if self.state is GroupState.COMPLETING_REBALANCE and self._assigned_sequence == sequence:
            self._become_stable(now_ms)
        for member in self.roster:
            if member.rejoin is not None and member.rejoin.sequence <= sequence:
                self._take_place(member, member.rejoin, now_ms)

    def persist_failed(self, sequence: int, now_ms: float) -> None:
        """It is not durable, or not known to be: who waits for it has to try again."""
        if self.state is GroupState.COMPLETING_REBALANCE and self._assigned_sequence == sequence:
            for member in self.roster:
                self._end_sync(member, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                member.alive(now_ms)
            self._rebalance(now_ms)
        for member in self.roster:
            if member.rejoin is not None and member.rejoin.sequence <= sequence:
                self._end_waits(member, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                member.alive(now_ms)
        self._find_wake()

    def restore(self, members: list[GroupMemberState], leader: str, now_ms: float) -> None:
        """Goes on after a restart with the last completed rebalance: each member has a whole session to be heard of.

        `generation`, `protocol_type` and `protocol` have been set.
        """
        assert not self.roster, "only a new group is restored"
        for member in members:
            member.alive(now_ms)
            self.roster.add(member)
        if members:
            self.roster.leader = leader if leader in self.roster.members else members[0].member_id
            self.state = GroupState.STABLE
            if len(members) > self.config.group_max_size:
                self._rebalance(now_ms)
        self._find_wake()

    def close(self, error: ErrorCode) -> None:
        """The group is no more, here at least: whoever waits is told."""
        for member in self.roster:
            self._end_waits(member, error)
        self.pending.clear()
        self._unsynced.clear()
        self.state = GroupState.DEAD
        self.wake_ms = None

    # --- checks

    def _find(self, member_id: str, instance_id: str | None) -> tuple[GroupMemberState | None, ErrorCode]:
        """The member, or why there is none: an instance is fenced when another member has taken its place."""
        if instance_id is None:
            return self.roster.get(member_id), ErrorCode.UNKNOWN_MEMBER_ID
        member = self.roster.by_instance(instance_id)
        if member is not None and member.member_id != member_id:
            return None, ErrorCode.FENCED_INSTANCE_ID
        return member, ErrorCode.UNKNOWN_MEMBER_ID

    def _check_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[GroupMemberState | None, ErrorCode]:
        """The member if it knows the present generation, and NONE; else None and the error."""
        if self.state is GroupState.DEAD:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        member, error = self._find(member_id, instance_id)
        if member is None:
            return None, error
        if generation != self.generation:
            return None, ErrorCode.ILLEGAL_GENERATION
        return member, ErrorCode.NONE

    def _compatible(self, request: JoinRequest, known: GroupMemberState | None) -> bool:
        """Whether the others could go on together with who asks; `known` is what it was before."""
        if not request.protocol_type or not request.protocols:
            return False
        if len(self.roster) == (known is not None):
            return True
        return request.protocol_type == self.protocol_type and self.roster.supports(request.protocols, without=known)

    def _same_protocol(self, request: SyncRequest) -> bool:
        return request.protocol_type in (None, self.protocol_type) and request.protocol in (None, self.protocol)

    def _is_full(self, member: GroupMemberState | None) -> bool:
        """Whether there is no room for `member`, or for one more.

        In a rebalance those who come first have a place, and so have absent static members; the others may go.
        """
        limit = self.config.group_max_size
        if self.state is not GroupState.PREPARING_REBALANCE:
            return member is None and len(self.roster) >= limit
        if len(self.roster) < limit or (member is not None and member.join_waiter is not None):
            return False
        return (
            sum(m.join_waiter is not None or m.instance_id is not None for m in self.roster if m is not member) >= limit
        )

    def _refuse_join(self, waiter: Waiter, request: JoinRequest, error: ErrorCode) -> None:
        # With this error a client gives its id up, so it is not told the old one again.
        member_id = "" if error is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
        self._answer(waiter, JoinAnswer(error, member_id))

    def _make_id(self, request: JoinRequest) -> str:
        name = request.client_id if request.instance_id is None else request.instance_id
        return f"{name[:MAX_ID_PREFIX]}-{self._new_id()}"
