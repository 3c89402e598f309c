"""The state of one group whose broker assigns partitions (KIP-848), without I/O. Driven by `group.modern_groups`.

Inputs are method calls with the time in milliseconds. Outputs are results, `pop_changes` (what to store before a result
is sent), and `wake_ms`, the time of the next `tick`. The group epoch rises with each change of members, subscriptions
and topics; `target` is the assignment of `assignment_epoch`, and each member moves to it at its own heartbeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from penstock.config.modern_groups import ModernGroupConfig
from penstock.group.modern.assignment import NOTHING, Assignment, difference, union
from penstock.group.modern.assignors import AssignmentInput, Assignor, Subscriber
from penstock.group.modern.member import (
    STATIC_LEAVE_EPOCH,
    ClassicProtocols,
    MemberState,
    ModernMember,
    Subscription,
)
from penstock.group.modern.reconciliation import (
    PartitionOwners,
    SharedPartitions,
    forget_epochs,
    reconcile,
    record_epochs,
)
from penstock.group.modern.topics import TopicCatalog

MAX_INLINE_SIZE = 2000
"""Maximum size (see `AssignmentInput.size`) of an assignment that is computed on the event loop."""


class GroupType(StrEnum):
    """The protocol of a group, by the names that ListGroups uses."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class ModernGroupState(StrEnum):
    """The state of a group, by Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True)
class GroupChanges:
    """What changed since the last call of `pop_changes`: members by id, None for one that left; and the epoch."""

    members: dict[str, ModernMember | None]
    is_epoch_changed: bool

    def __bool__(self) -> bool:
        return bool(self.members) or self.is_epoch_changed


class ModernGroup:
    """Members, epochs and target of a group. `assignors` are by name; the first is the default."""

    def __init__(
        self,
        group_id: str,
        group_type: GroupType,
        assignors: Mapping[str, Assignor],
        topics: TopicCatalog,
        config: ModernGroupConfig,
        epoch: int = 0,
    ) -> None:
        self.group_id, self.group_type, self.assignors, self.topics = group_id, group_type, assignors, topics
        self.config = config
        self.members: dict[str, ModernMember] = {}
        self.group_epoch = self.assignment_epoch = epoch
        self.target: dict[str, Assignment] = {}
        self.owners = SharedPartitions() if group_type is GroupType.SHARE else PartitionOwners()
        self.wake_ms: float | None = None
        self.is_computing = False
        """Whether an assignment is being computed elsewhere: `install` ends it."""
        self._by_instance: dict[str, str] = {}
        self._partition_counts: dict[UUID, int] = {}
        """Subscribed topics with the partitions that the last assignment, or the last change of topics, had."""
        self._is_target_stale = False
        """Whether the target is unknown because the group was restored."""
        self._next_assignment_ms = float("-inf")
        self._changed: dict[str, ModernMember | None] = {}
        self._is_epoch_changed = False

    # --- state

    @property
    def state(self) -> ModernGroupState:
        """The group's state."""
        if not self.members:
            return ModernGroupState.EMPTY
        if self.group_type is GroupType.SHARE:
            return ModernGroupState.STABLE
        if self.needs_assignment:
            return ModernGroupState.ASSIGNING
        is_stable = all(map(self.is_settled, self.members.values()))
        return ModernGroupState.STABLE if is_stable else ModernGroupState.RECONCILING

    def is_settled(self, member: ModernMember) -> bool:
        """Return whether a member has its target."""
        return (
            member.state is MemberState.STABLE
            and member.epoch in (self.assignment_epoch, STATIC_LEAVE_EPOCH)
            and member.assigned == self.target.get(member.member_id, NOTHING)
        )

    @property
    def has_only_classic_members(self) -> bool:
        """Whether there are members, and all use the classic protocol."""
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    @property
    def needs_assignment(self) -> bool:
        """Whether the target is not that of the current epoch."""
        return self.group_epoch > self.assignment_epoch or self._is_target_stale

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer; without preferences, the default."""
        votes = Counter(m.subscription.assignor for m in self.members.values() if m.subscription.assignor)
        known = [(count, name) for name, count in votes.items() if name in self.assignors]
        return max(known)[1] if known else next(iter(self.assignors))

    def static_member(self, instance_id: str) -> ModernMember | None:
        """Return the static member with an instance id."""
        member_id = self._by_instance.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def subscribed_topics(self) -> frozenset[str]:
        """Return the names of the existing topics that members subscribe to."""
        return frozenset(name for topic_id in self._partition_counts if (name := self.topics.topic_name(topic_id)))

    def pop_changes(self) -> GroupChanges:
        """Return what has to be stored."""
        changes = GroupChanges(self._changed, self._is_epoch_changed)
        self._changed, self._is_epoch_changed = {}, False
        return changes

    def restore_changes(self, changes: GroupChanges) -> None:
        """Return changes that could not be stored; newer ones take precedence."""
        for member_id in changes.members:
            self._changed.setdefault(member_id, self.members.get(member_id))
        self._is_epoch_changed |= changes.is_epoch_changed

    @property
    def has_changes(self) -> bool:
        """Whether something has to be stored."""
        return bool(self._changed) or self._is_epoch_changed

    # --- members

    def set_classic(self, member: ModernMember, classic: ClassicProtocols) -> None:
        """Set what a member sends with a join of the classic protocol."""
        if member.classic != classic:
            member.classic = classic
            self._mark(member)

    def add_member(self, member: ModernMember) -> None:
        """Add a member, whose subscription was not set."""
        assert member.member_id not in self.members, f"{member.member_id} is a member already"
        self.members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self._by_instance, f"instance {member.instance_id} is a member already"
            self._by_instance[member.instance_id] = member.member_id
        self._mark(member)

    def replace_static(self, member_id: str, old: ModernMember) -> ModernMember:
        """Give a static member that stopped for a restart a new id. Returns it; its epoch is 0."""
        assigned = old.assigned
        self.remove_member(old, rebalances=False)
        member = ModernMember(member_id, old.instance_id, topics=old.topics, subscription=old.subscription)
        self.add_member(member)
        if old.member_id in self.target:
            self.target[member_id] = self.target.pop(old.member_id)
        member.assigned = assigned
        self.owners.add(member_id, member.assigned)
        record_epochs(member, member.assigned)
        return member

    def remove_member(self, member: ModernMember, rebalances: bool = True) -> None:
        """Remove a member, whose partitions become free. `rebalances` is False if another member replaces it."""
        self.release(member)
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._changed[member.member_id] = None
        if not rebalances:
            return
        self.target.pop(member.member_id, None)
        self.advance_epoch()
        if not self.members:
            self.assignment_epoch, self._is_target_stale = self.group_epoch, False
            self.target.clear()
            self._partition_counts = {}
            self._next_assignment_ms = float("-inf")
            self.wake_ms = None
        else:
            self._partition_counts = self._count_partitions()

    def release(self, member: ModernMember) -> None:
        """Take all partitions from a member that no longer uses any."""
        self.owners.remove(member.member_id, union(member.assigned, member.revoking))
        member.assigned = member.revoking = NOTHING
        member.assigned_epochs.clear()
        member.state, member.revocation_deadline_ms = MemberState.STABLE, None

    def subscribe(self, member: ModernMember, subscription: Subscription, is_new: bool = False) -> None:
        """Set a member's subscription, whose expression is valid."""
        topics = self.select_topics(member, subscription)
        if subscription != member.subscription:
            self._mark(member)
        is_same = topics == member.topics and subscription[2:] == member.subscription[2:]
        member.subscription, member.topics = subscription, topics
        if is_new or not is_same:
            self._partition_counts = self._count_partitions()
            self.advance_epoch()

    def select_topics(self, member: ModernMember, subscription: Subscription) -> frozenset[UUID]:
        """Return the existing topics that a subscription selects."""
        named = (self.topics.topic_id(name) for name in subscription.topic_names)
        found = frozenset(topic_id for topic_id in named if topic_id is not None)
        if not subscription.topic_pattern:
            return found
        if member.topic_filter is None:
            return found | member.topics | member.assigned.keys()
        return found | self.topics.matching(subscription.topic_pattern, member.topic_filter)

    def leave_for_restart(self, member: ModernMember, now_ms: float) -> None:
        """Keep a static member's partitions until its session ends or it comes back."""
        self.owners.remove(member.member_id, member.revoking)
        forget_epochs(member, member.revoking)
        member.revoking, member.revocation_deadline_ms, member.state = NOTHING, None, MemberState.STABLE
        member.advance_epoch(STATIC_LEAVE_EPOCH)
        self.extend_session(member, now_ms)
        self._mark(member)

    def extend_session(self, member: ModernMember, now_ms: float) -> None:
        """Restart a member's session timeout."""
        classic = member.classic
        timeout_ms = self.config.session_timeout_ms if classic is None else classic.session_timeout_ms
        member.session_deadline_ms = now_ms + timeout_ms
        self._wake_by(member.session_deadline_ms)

    # --- epochs and target

    def advance_epoch(self) -> None:
        """Require a new assignment."""
        self.group_epoch += 1
        self._is_epoch_changed = True

    def on_topics_changed(self, names: Iterable[str]) -> bool:
        """Handle new, changed and deleted topics. Returns whether the group needs a new assignment."""
        changed = frozenset(names)
        for member in self.members.values():
            if member.subscription.topic_pattern or not changed.isdisjoint(member.subscription.topic_names):
                member.topics = self.select_topics(member, member.subscription)
        counts = self._count_partitions()
        if counts == self._partition_counts:
            return False
        self._partition_counts = counts
        self.advance_epoch()
        return True

    def _count_partitions(self) -> dict[UUID, int]:
        topics = frozenset().union(*{member.topics for member in self.members.values()})
        counts = {topic_id: self.topics.partition_count(topic_id) for topic_id in topics}
        return {topic_id: count for topic_id, count in counts.items() if count}

    def assignment_input(self) -> AssignmentInput:
        """Return what the assignor needs."""
        members = {
            member_id: Subscriber(
                member.topics,
                self.target.get(member_id, member.assigned),
                member.instance_id,
                member.subscription.rack,
            )
            for member_id, member in self.members.items()
        }
        has_racks = any(member.subscription.rack is not None for member in self.members.values())
        racks = {topic_id: self.topics.racks(topic_id) for topic_id in self._partition_counts} if has_racks else {}
        return AssignmentInput(members, dict(self._partition_counts), racks)

    def start_assignment(self, now_ms: float) -> AssignmentInput | None:
        """Compute a small assignment that is due. Returns the input of a large one: call `install` with its result."""
        if not self.members or not self.needs_assignment or self.is_computing:
            return None
        if now_ms < self._next_assignment_ms and self.assignment_epoch:
            self._wake_by(self._next_assignment_ms)
            return None
        self._next_assignment_ms = now_ms + self.config.assignment_interval_ms
        given = self.assignment_input()
        if given.size > MAX_INLINE_SIZE and self.assignment_epoch:
            self.is_computing = True
            return given
        self.install(self.group_epoch, self.assignors[self.assignor](given))
        return None

    def install(self, epoch: int, target: dict[str, Assignment] | None) -> None:
        """Set the target of an epoch. None: its computation failed, and is repeated."""
        self.is_computing = False
        if target is not None and epoch >= self.assignment_epoch:
            self.target = {member_id: found for member_id, found in target.items() if member_id in self.members}
            self.assignment_epoch, self._is_target_stale = epoch, False
        if self.needs_assignment and self.members:
            self._wake_by(self._next_assignment_ms)

    def reconcile(self, member: ModernMember, owned: Assignment | None, now_ms: float) -> None:
        """Move a member as far as possible towards its target."""
        target = self.target.get(member.member_id)
        if target is None:
            if member.epoch == 0:
                member.advance_epoch(max(self.assignment_epoch, 1))
                self._mark(member)
            return
        if reconcile(member, target, self.assignment_epoch, owned, self.owners):
            self._mark(member)
        if member.state is MemberState.UNREVOKED and member.revocation_deadline_ms is None:
            member.revocation_deadline_ms = now_ms + member.rebalance_timeout_ms
            self._wake_by(member.revocation_deadline_ms)

    def is_waiting(self, member: ModernMember) -> bool:
        """Return whether a member will get partitions as soon as others have released them, or are assigned anew."""
        return self.needs_assignment or member.state is MemberState.UNRELEASED

    def must_rejoin(self, member: ModernMember) -> bool:
        """Return whether a classic member has to rejoin: to stop using partitions, or to get all that it may have."""
        target = self.target.get(member.member_id)
        if target is None:
            return False
        if member.epoch < self.assignment_epoch or member.state is MemberState.UNREVOKED:
            return True
        wanted = difference(target, member.assigned)
        return bool(difference(member.assigned, target)) or (bool(wanted) and self.owners.free(wanted) == wanted)

    def await_rejoin(self, member: ModernMember, now_ms: float) -> None:
        """Remove a classic member that does not rejoin within its rebalance timeout."""
        if member.revocation_deadline_ms is None:
            member.revocation_deadline_ms = now_ms + member.rebalance_timeout_ms
            self._wake_by(member.revocation_deadline_ms)

    # --- time

    def tick(self, now_ms: float) -> list[str]:
        """Remove members whose session or time to stop using partitions is over, and set `wake_ms`. Returns their
        ids."""
        expired = [m for m in self.members.values() if earliest_deadline(m) <= now_ms]
        for member in expired:
            self.remove_member(member)
        deadlines = list(map(earliest_deadline, self.members.values()))
        self.wake_ms = min(deadlines, default=None)
        if self.needs_assignment and self.members and not self.is_computing:
            self._wake_by(self._next_assignment_ms)
        return [member.member_id for member in expired]

    def _wake_by(self, when_ms: float) -> None:
        if self.wake_ms is None or when_ms < self.wake_ms:
            self.wake_ms = when_ms

    def mark_all(self) -> None:
        """Store all members and the epoch: the group was converted from another protocol."""
        self._changed.update(self.members)
        self._is_epoch_changed = True

    def _mark(self, member: ModernMember) -> None:
        self._changed[member.member_id] = member

    # --- restart of the coordinator

    def restore(self, members: Iterable[ModernMember], now_ms: float) -> None:
        """Add the members of records, each with a full session. The target is computed again.

        Two records have the same partition if the write with which the first member released it was lost. Then the
        other member was never notified of it, because no response leaves before earlier writes are durable.
        """
        for member in sorted(members, key=lambda m: m.epoch):
            self.members[member.member_id] = member
            if member.instance_id is not None:
                self._by_instance[member.instance_id] = member.member_id
            member.assigned = self.owners.free(member.assigned)
            self.owners.add(member.member_id, member.assigned)
            member.revoking = self.owners.free(member.revoking)
            self.owners.add(member.member_id, member.revoking)
            record_epochs(member, union(member.assigned, member.revoking))
            self.group_epoch = max(self.group_epoch, member.epoch)
            self.extend_session(member, now_ms)
            if member.revoking:
                member.state = MemberState.UNREVOKED
                member.revocation_deadline_ms = now_ms + member.rebalance_timeout_ms
                self._wake_by(member.revocation_deadline_ms)
            member.topics = self.select_topics(member, member.subscription)
        self.assignment_epoch, self._is_target_stale = self.group_epoch, bool(self.members)
        self._partition_counts = self._count_partitions()


def earliest_deadline(member: ModernMember) -> float:
    """Return when a member is removed unless it acts before."""
    revocation_ms = member.revocation_deadline_ms
    return member.session_deadline_ms if revocation_ms is None else min(member.session_deadline_ms, revocation_ms)
