"""The assignors: pure functions from subscriptions and partitions to the partitions of each member.

`group` calls them on the event loop for small groups, and `group.modern_groups` in a thread for others.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.group.modern.assignment import Assignment

MAX_BALANCING_PASSES = 16
"""Passes over all partitions that even out members with different subscriptions."""

Partition = tuple[UUID, int]


class Subscriber(NamedTuple):
    """A member: the topics that it subscribes to, and its previous partitions, which it keeps if possible."""

    topics: frozenset[UUID]
    owned: Assignment
    instance_id: str | None = None
    rack: str | None = None


class AssignmentInput(NamedTuple):
    """The members by id, the number of partitions by topic, and the racks of each partition's replicas if known."""

    members: Mapping[str, Subscriber]
    partitions: Mapping[UUID, int]
    racks: Mapping[UUID, Sequence[frozenset[str]]] = {}

    @property
    def size(self) -> int:
        """The number of members and partitions, which the cost of an assignment grows with."""
        return len(self.members) + sum(self.partitions.values())


Assignor = Callable[[AssignmentInput], dict[str, Assignment]]
"""Returns the partitions of each member. Each partition that a member subscribes to has exactly one member."""


def assign_ranges(given: AssignmentInput) -> dict[str, Assignment]:
    """Give each subscriber of a topic a contiguous range; the same indexes of different topics go together."""
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in given.members}
    order = sorted(given.members, key=lambda member_id: range_order(member_id, given.members[member_id]))
    for topic_id, count in given.partitions.items():
        subscribers = [member_id for member_id in order if topic_id in given.members[member_id].topics]
        start = 0
        for position, member_id in enumerate(subscribers):
            quota = count // len(subscribers) + (position < count % len(subscribers))
            if quota:
                assigned[member_id][topic_id] = frozenset(range(start, start + quota))
            start += quota
    return dict(assigned)


def range_order(member_id: str, member: Subscriber) -> tuple[bool, str]:
    """Return the sort key of a member: static members first, whose order survives a restart."""
    return member.instance_id is None, member.instance_id or member_id


def assign_uniformly(given: AssignmentInput) -> dict[str, Assignment]:
    """Give all members numbers of partitions that differ by at most one, and move as few as possible.

    Members with different subscriptions get numbers as even as their subscriptions permit. Among the members that may
    have a partition, those in a rack of its replicas come first.
    """
    plan = UniformPlan(given)
    plan.keep_owned()
    plan.assign_rest()
    if not plan.is_homogeneous:
        plan.even_out()
    return plan.result()


class UniformPlan:
    """An assignment of `assign_uniformly` in progress."""

    def __init__(self, given: AssignmentInput) -> None:
        self.given = given
        self.loads = dict.fromkeys(sorted(given.members), 0)
        self.owners: dict[Partition, str] = {}
        subscriptions = {member.topics.intersection(given.partitions) for member in given.members.values()}
        self.is_homogeneous = len(subscriptions) <= 1
        self.subscribers: dict[UUID, list[str]] = {
            topic_id: [m for m in self.loads if topic_id in given.members[m].topics] for topic_id in given.partitions
        }
        total = sum(count for topic_id, count in given.partitions.items() if self.subscribers[topic_id])
        self.quota, self.extra = divmod(total, len(self.loads)) if self.loads else (0, 0)

    def keep_owned(self) -> None:
        """Leave each member what it has, up to its quota."""
        extra = self.extra
        for member_id, load in self.loads.items():
            owned = [p for p in self.owned_by(member_id) if p not in self.owners]
            if self.is_homogeneous:
                has_extra = extra > 0 and len(owned) > self.quota
                extra -= has_extra
                owned = self.select_kept(member_id, owned, self.quota + has_extra)
            self.owners.update(dict.fromkeys(owned, member_id))
            self.loads[member_id] = load + len(owned)
        self.extra = extra

    def owned_by(self, member_id: str) -> Iterable[Partition]:
        """Yield the previous partitions of a member that exist and that it subscribes to."""
        member = self.given.members[member_id]
        for topic_id, indexes in member.owned.items():
            count = self.given.partitions.get(topic_id, 0)
            if topic_id in member.topics:
                yield from ((topic_id, index) for index in sorted(indexes) if index < count)

    def select_kept(self, member_id: str, owned: list[Partition], quota: int) -> list[Partition]:
        """Return the partitions that a member keeps, those in its rack first."""
        rack = self.given.members[member_id].rack
        if len(owned) > quota and rack is not None and self.given.racks:
            owned.sort(key=lambda partition: rack not in self.racks_of(partition))
        return owned[:quota]

    def racks_of(self, partition: Partition) -> frozenset[str]:
        """Return the racks of a partition's replicas."""
        topic_id, index = partition
        racks = self.given.racks.get(topic_id, ())
        return racks[index] if index < len(racks) else frozenset()

    def assign_rest(self) -> None:
        """Give each partition without an owner to the subscriber with the fewest, in its rack if possible."""
        rest = [
            (topic_id, index)
            for topic_id, count in sorted(self.given.partitions.items(), key=lambda t: len(self.subscribers[t[0]]))
            if self.subscribers[topic_id]
            for index in range(count)
            if (topic_id, index) not in self.owners
        ]
        if self.given.racks:
            rest = self.assign_in_rack(rest)
        heaps: dict[UUID, list[tuple[int, str]]] = {}
        shared: list[tuple[int, str]] = []
        for partition in rest:
            heap = shared if self.is_homogeneous else heaps.get(partition[0], [])
            if not heap:
                heap += [(self.loads[member_id], member_id) for member_id in self.subscribers[partition[0]]]
                heapq.heapify(heap)
                heaps[partition[0]] = heap
            while heap[0][0] != self.loads[heap[0][1]]:  # changed through the heap of another topic
                heapq.heapreplace(heap, (self.loads[heap[0][1]], heap[0][1]))
            load, member_id = heap[0]
            self.give(partition, member_id)
            heapq.heapreplace(heap, (load + 1, member_id))

    def assign_in_rack(self, rest: list[Partition]) -> list[Partition]:
        """Give partitions to members in a rack of their replicas that are below the quota. Returns the others."""
        by_rack: dict[str, list[str]] = defaultdict(list)
        for member_id in self.loads:
            rack = self.given.members[member_id].rack
            if rack is not None:
                by_rack[rack].append(member_id)
        left = []
        for partition in rest:
            racks = self.racks_of(partition)
            near = [m for rack in racks for m in by_rack.get(rack, ()) if self.has_room(m, partition)]
            if near:
                self.give(partition, min(near, key=lambda member_id: (self.loads[member_id], member_id)))
            else:
                left.append(partition)
        return left

    def has_room(self, member_id: str, partition: Partition) -> bool:
        """Return whether a member subscribes to a partition's topic and is below the quota."""
        return self.loads[member_id] < self.quota and partition[0] in self.given.members[member_id].topics

    def give(self, partition: Partition, member_id: str) -> None:
        """Set the owner of a partition without one."""
        self.owners[partition] = member_id
        self.loads[member_id] += 1

    def even_out(self) -> None:
        """Move partitions to subscribers with at least two fewer, until there are none."""
        for _ in range(MAX_BALANCING_PASSES):
            is_even = True
            for partition, owner in self.owners.items():
                least = min(self.subscribers[partition[0]], key=self.loads.__getitem__)
                if self.loads[owner] > self.loads[least] + 1:
                    self.owners[partition] = least
                    self.loads[owner] -= 1
                    self.loads[least] += 1
                    is_even = False
            if is_even:
                return

    def result(self) -> dict[str, Assignment]:
        """Return the partitions of each member."""
        by_member: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in self.loads}
        for (topic_id, index), member_id in self.owners.items():
            by_member[member_id].setdefault(topic_id, set()).add(index)
        return {
            member_id: {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}
            for member_id, topics in by_member.items()
        }


CONSUMER_ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The assignors of consumer groups by their names."""
