"""The members of one group: who they are, what they support, which of them leads. No rules of time or state.

Used by `state_machine` alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.group.calls import JoinedMember, JoinRequest, Waiter
from penstock.group.subscription import CONSUMER, subscribed_topics


class GroupMemberState:
    """One member. A waiter is there while a JoinGroup or SyncGroup of it is unanswered; times are the loop's."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "is_new",
        "join_waiter",
        "knows_id",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "rejoin",
        "session_timeout_ms",
        "sync_waiter",
    )

    def __init__(self, member_id: str, request: JoinRequest, knows_id: bool) -> None:
        self.member_id = member_id
        self.knows_id = knows_id
        """It could come back as itself after its connection was lost."""
        self.instance_id = request.instance_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.assignment = b""
        self.deadline_ms = 0.0
        """When it counts as dead, unless it is heard of before."""
        self.is_new = False
        """Its first join is not answered yet."""
        self.join_waiter: Waiter | None = None
        self.sync_waiter: Waiter | None = None
        self.rejoin: Rejoin | None = None

    def alive(self, now_ms: float) -> None:
        self.deadline_ms = now_ms + self.session_timeout_ms

    @property
    def can_expire(self) -> bool:
        """A member that waits for the group is alive, unless it may not even know its own id."""
        return self.is_new or (self.join_waiter is None and self.sync_waiter is None)


class Rejoin:
    """A restarted static member that takes its old place as soon as its new id is durable."""

    __slots__ = ("answered_leader", "can_skip_assignment", "sequence")

    def __init__(self, sequence: int, answered_leader: str, can_skip_assignment: bool) -> None:
        self.sequence = sequence
        self.answered_leader = answered_leader
        self.can_skip_assignment = can_skip_assignment


class MemberList:
    """Members by id and by instance id. The leader is a member, or empty where there is none."""

    def __init__(self) -> None:
        self.members: dict[str, GroupMemberState] = {}
        self.leader = ""
        self._by_instance: dict[str, GroupMemberState] = {}
        self._supporters: dict[str, int] = {}
        self.joined_count = 0
        """Members that wait for the answer to a join."""

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[GroupMemberState]:
        return iter(self.members.values())

    def get(self, member_id: str) -> GroupMemberState | None:
        return self.members.get(member_id)

    def by_instance(self, instance_id: str) -> GroupMemberState | None:
        return self._by_instance.get(instance_id)

    def add(self, member: GroupMemberState) -> None:
        assert member.member_id not in self.members, f"{member.member_id} is a member already"
        self.members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._by_instance, f"instance {member.instance_id} is a member already"
            self._by_instance[member.instance_id] = member
        self._count(member.protocols, 1)
        if not self.leader:
            self.leader = member.member_id

    def remove(self, member: GroupMemberState) -> None:
        assert member.join_waiter is None, f"{member.member_id} still waits for a join"
        assert member.sync_waiter is None, f"{member.member_id} still waits for its assignment"
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._count(member.protocols, -1)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), "")

    def rename(self, member: GroupMemberState, member_id: str) -> None:
        """A static member comes back under a new id and keeps everything else."""
        assert member_id not in self.members, f"{member_id} is a member already"
        del self.members[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        self.members[member_id] = member

    def update(self, member: GroupMemberState, request: JoinRequest) -> None:
        self._count(member.protocols, -1)
        member.protocols = request.protocols
        self._count(member.protocols, 1)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host

    def supports(self, protocols: dict[str, bytes], without: GroupMemberState | None) -> bool:
        """Whether all members but `without` have one of the protocols in common."""
        others = len(self.members) - (without is not None)
        own = without.protocols if without is not None else {}
        return any(self._supporters.get(name, 0) - (name in own) == others for name in protocols)

    def vote(self) -> str:
        """The protocol that all support and most prefer; among equals the leader's preference decides."""
        everybody = len(self.members)
        votes = {name: 0 for name in self.members[self.leader].protocols if self._supporters.get(name, 0) == everybody}
        assert votes, "the members have no protocol in common"
        for member in self:
            votes[next(name for name in member.protocols if name in votes)] += 1
        return max(votes, key=votes.__getitem__)

    def elect_waiting_leader(self) -> bool:
        """Makes sure that the leader waits for the join's answer; False where nobody does."""
        if self.members[self.leader].join_waiter is not None:
            return True
        waiting = next((m for m in self if m.join_waiter is not None), None)
        if waiting is not None:
            self.leader = waiting.member_id
        return waiting is not None

    @property
    def all_joined(self) -> bool:
        return self.joined_count == len(self.members)

    def await_join(self, member: GroupMemberState, waiter: Waiter) -> None:
        assert member.join_waiter is None, f"{member.member_id} waits for a join already"
        member.join_waiter = waiter
        self.joined_count += 1

    def end_join(self, member: GroupMemberState) -> Waiter | None:
        """Who waited for the member's join; nobody does from now on."""
        waiter, member.join_waiter, member.rejoin = member.join_waiter, None, None
        if waiter is not None:
            self.joined_count -= 1
        return waiter

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member needs."""
        return max((m.rebalance_timeout_ms for m in self), default=0)

    def described(self, protocol: str) -> list[JoinedMember]:
        return [JoinedMember(m.member_id, m.instance_id, m.protocols[protocol]) for m in self]

    def topics(self, protocol_type: str, protocol: str | None) -> frozenset[str] | None:
        """The topics that members subscribe to, or None where that cannot be known."""
        if protocol_type != CONSUMER or protocol is None:
            return None
        found: set[str] = set()
        for member in self:
            topics = subscribed_topics(member.protocols.get(protocol, b""))
            if topics is None:
                return None
            found |= topics
        return frozenset(found)

    def _count(self, protocols: dict[str, bytes], by: int) -> None:
        for name in protocols:
            count = self._supporters.get(name, 0) + by
            if count:
                self._supporters[name] = count
            else:
                del self._supporters[name]
