"""Moves one member towards its target: it stops using partitions before others get them (KIP-848). Used by `group`."""

from __future__ import annotations

from uuid import UUID

from penstock.group.modern.assignment import NOTHING, Assignment, difference, intersection, overlaps, union
from penstock.group.modern.member import MemberState, ModernMember


class PartitionOwners:
    """The member that may use each partition, because it is assigned to it or not known to be revoked."""

    def __init__(self) -> None:
        self._owners: dict[UUID, dict[int, str]] = {}

    def add(self, member_id: str, partitions: Assignment) -> None:
        """Record that a member may use partitions that no other member may use."""
        for topic_id, indexes in partitions.items():
            owners = self._owners.setdefault(topic_id, {})
            for index in indexes:
                owner = owners.setdefault(index, member_id)
                assert owner == member_id, f"{topic_id}-{index} of {member_id} belongs to {owner}"

    def remove(self, member_id: str, partitions: Assignment) -> None:
        """Record that a member no longer uses partitions."""
        for topic_id, indexes in partitions.items():
            owners = self._owners[topic_id]
            for index in indexes:
                owner = owners.pop(index)
                assert owner == member_id, f"{member_id} releases {topic_id}-{index} of {owner}"
            if not owners:
                del self._owners[topic_id]

    def free(self, partitions: Assignment) -> Assignment:
        """Return those of the partitions that no member may use."""
        found = {
            topic_id: frozenset(index for index in indexes if index not in self._owners.get(topic_id, NO_OWNERS))
            for topic_id, indexes in partitions.items()
        }
        return {topic_id: indexes for topic_id, indexes in found.items() if indexes}


NO_OWNERS: dict[int, str] = {}


class SharedPartitions(PartitionOwners):
    """The partitions of a share group, which several members may use at the same time."""

    def add(self, member_id: str, partitions: Assignment) -> None:
        """Do nothing: a partition has no owner."""

    def remove(self, member_id: str, partitions: Assignment) -> None:
        """Do nothing: a partition has no owner."""

    def free(self, partitions: Assignment) -> Assignment:
        """Return all of the partitions."""
        return partitions


def reconcile(
    member: ModernMember, target: Assignment, epoch: int, owned: Assignment | None, owners: PartitionOwners
) -> bool:
    """Move a member as far as possible towards its target of `epoch`. Returns whether it changed.

    `owned` are the partitions that the member uses, None if its heartbeat did not say so.
    """
    before = member.epoch, member.state, member.assigned, member.revoking
    if member.state is MemberState.UNREVOKED:
        if owned is None or overlaps(owned, member.revoking):
            return False
        owners.remove(member.member_id, member.revoking)
        forget_epochs(member, member.revoking)
        member.revoking, member.revocation_deadline_ms, member.state = NOTHING, None, MemberState.STABLE
    elif member.state is MemberState.STABLE and member.epoch == epoch and member.assigned == target:
        return False
    kept, revoked = intersection(member.assigned, target), difference(member.assigned, target)
    if revoked and (owned is None or overlaps(owned, revoked)):
        member.assigned, member.revoking, member.state = kept, revoked, MemberState.UNREVOKED
    else:
        owners.remove(member.member_id, revoked)
        forget_epochs(member, revoked)
        wanted = difference(target, kept)
        added = owners.free(wanted)
        owners.add(member.member_id, added)
        member.assigned = union(kept, added) if added else kept
        member.state = MemberState.STABLE if added == wanted else MemberState.UNRELEASED
        member.advance_epoch(epoch)
        record_epochs(member, added)
    return before != (member.epoch, member.state, member.assigned, member.revoking)


def record_epochs(member: ModernMember, added: Assignment) -> None:
    """Record the member's epoch as the one at which partitions were assigned to it."""
    for topic_id, indexes in added.items():
        member.assigned_epochs.setdefault(topic_id, {}).update(dict.fromkeys(indexes, member.epoch))


def forget_epochs(member: ModernMember, revoked: Assignment) -> None:
    """Drop the epochs of partitions that a member no longer uses."""
    for topic_id, indexes in revoked.items():
        epochs = member.assigned_epochs[topic_id]
        for index in indexes:
            del epochs[index]
        if not epochs:
            del member.assigned_epochs[topic_id]
