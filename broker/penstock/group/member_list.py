"""The members of one group: their ids, protocols and leader. Used by `state_machine`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.group.calls import JoinedMember, JoinRequest, Waiter
from penstock.group.subscription import CONSUMER, subscribed_topics


class GroupMemberState:
    """A member. A waiter is set while its JoinGroup or SyncGroup is unanswered. Times are the event loop's."""

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
        """Whether the member could rejoin with its id after its connection was lost."""
        self.instance_id = request.instance_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.assignment = b""
        self.deadline_ms = 0.0
        """The end of its session."""
        self.is_new = False
        """Whether its first join is unanswered."""
        self.join_waiter: Waiter | None = None
        self.sync_waiter: Waiter | None = None
        self.rejoin: Rejoin | None = None

    def extend_session(self, now_ms: float) -> None:
        """Restart the session timeout."""
        self.deadline_ms = now_ms + self.session_timeout_ms

    @property
    def can_expire(self) -> bool:
        """Whether the session timeout applies. It does not to a member that waits for a response, unless that member
        may not know its id yet."""
        return self.is_new or (self.join_waiter is None and self.sync_waiter is None)


class Rejoin:
    """A restarted static member that replaces its previous instance once its new id is durable."""

    __slots__ = ("answered_leader", "can_skip_assignment", "sequence")

    def __init__(self, sequence: int, answered_leader: str, can_skip_assignment: bool) -> None:
        self.sequence = sequence
        self.answered_leader = answered_leader
        self.can_skip_assignment = can_skip_assignment


class MemberList:
    """Members by member id and by instance id. `leader` is a member's id, empty if there are no members."""

    def __init__(self) -> None:
        self.members: dict[str, GroupMemberState] = {}
        self.leader = ""
        self._by_instance: dict[str, GroupMemberState] = {}
        self._supporters: dict[str, int] = {}
        self.joined_count = 0
        """Number of members with an unanswered join."""

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[GroupMemberState]:
        return iter(self.members.values())

    def get(self, member_id: str) -> GroupMemberState | None:
        """Return the member, None if unknown."""
        return self.members.get(member_id)

    def by_instance(self, instance_id: str) -> GroupMemberState | None:
        """Return the static member, None if unknown."""
        return self._by_instance.get(instance_id)

    def add(self, member: GroupMemberState) -> None:
        """Add a member; the first becomes the leader."""
        assert member.member_id not in self.members, f"{member.member_id} is a member already"
        self.members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._by_instance, f"instance {member.instance_id} is a member already"
            self._by_instance[member.instance_id] = member
        self._count(member.protocols, 1)
        if not self.leader:
            self.leader = member.member_id

    def remove(self, member: GroupMemberState) -> None:
        """Remove a member without waiters. If it was the leader, the oldest member becomes the leader."""
        assert member.join_waiter is None, f"{member.member_id} still waits for a join"
        assert member.sync_waiter is None, f"{member.member_id} still waits for its assignment"
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._count(member.protocols, -1)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), "")

    def rename(self, member: GroupMemberState, member_id: str) -> None:
        """Change the member id of a static member."""
        assert member_id not in self.members, f"{member_id} is a member already"
        del self.members[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        self.members[member_id] = member

    def update(self, member: GroupMemberState, request: JoinRequest) -> None:
        """Replace what a member sends with each join: protocols, timeouts, client."""
        self._count(member.protocols, -1)
        member.protocols = request.protocols
        self._count(member.protocols, 1)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host

    def supports(self, protocols: dict[str, bytes], without: GroupMemberState | None) -> bool:
        """Return whether all members except `without` support one of the protocols."""
        others = len(self.members) - (without is not None)
        own = without.protocols if without is not None else {}
        return any(self._supporters.get(name, 0) - (name in own) == others for name in protocols)

    def select_protocol(self) -> str:
        """Return the commonly supported protocol that most members prefer. The leader's preference breaks ties."""
        member_count = len(self.members)
        votes = {
            name: 0 for name in self.members[self.leader].protocols if self._supporters.get(name, 0) == member_count
        }
        assert votes, "the members have no protocol in common"
        for member in self:
            votes[next(name for name in member.protocols if name in votes)] += 1
        return max(votes, key=votes.__getitem__)

    def elect_waiting_leader(self) -> bool:
        """Ensure that the leader has an unanswered join. Returns False if no member has one."""
        if self.members[self.leader].join_waiter is not None:
            return True
        waiting = next((m for m in self if m.join_waiter is not None), None)
        if waiting is not None:
            self.leader = waiting.member_id
        return waiting is not None

    @property
    def all_joined(self) -> bool:
        """Whether all members have an unanswered join."""
        return self.joined_count == len(self.members)

    def await_join(self, member: GroupMemberState, waiter: Waiter) -> None:
        """Set the waiter of the member's join."""
        assert member.join_waiter is None, f"{member.member_id} waits for a join already"
        member.join_waiter = waiter
        self.joined_count += 1

    def pop_join_waiter(self, member: GroupMemberState) -> Waiter | None:
        """Remove and return the waiter of the member's join."""
        waiter, member.join_waiter, member.rejoin = member.join_waiter, None, None
        if waiter is not None:
            self.joined_count -= 1
        return waiter

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((m.rebalance_timeout_ms for m in self), default=0)

    def describe_members(self, protocol: str) -> list[JoinedMember]:
        """Return all members with their metadata for `protocol`."""
        return [JoinedMember(m.member_id, m.instance_id, m.protocols[protocol]) for m in self]

    def topics(self, protocol_type: str, protocol: str | None) -> frozenset[str] | None:
        """Return the topics that members subscribe to, None if unknown."""
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
