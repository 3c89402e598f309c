"""The assignor of share groups: a pure function from subscriptions to partitions that members may have in common."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from penstock.group.modern.assignment import Assignment
from penstock.group.modern.assignors import AssignmentInput, Assignor, Partition, assign_uniformly


def assign_shared(given: AssignmentInput) -> dict[str, Assignment]:
    """Give each partition to a member, and each member a partition.

    With enough partitions, each has one member, and the members have even numbers (see `assign_uniformly`). The members
    that are left share the partitions with the fewest members, and keep theirs if it has no more than its part of them.
    """
    assigned = assign_uniformly(given)
    idle = [member_id for member_id in sorted(given.members) if not assigned[member_id]]
    if not idle or not any(given.partitions.values()):
        return assigned
    loads = Counter(
        (topic_id, index) for found in assigned.values() for topic_id, indexes in found.items() for index in indexes
    )
    quota = -(-len(given.members) // sum(given.partitions.values()))
    joining = []
    for member_id in idle:
        kept = kept_partition(given, member_id, loads, quota)
        if kept is None:
            joining.append(member_id)
        else:
            loads[kept] += 1
            assigned[member_id] = {kept[0]: frozenset({kept[1]})}
    return assigned | share_partitions(given, joining, loads)


def kept_partition(
    given: AssignmentInput, member_id: str, loads: Mapping[Partition, int], quota: int
) -> Partition | None:
    """Return a previous partition of a member that fewer than `quota` members have; None if there is none."""
    member = given.members[member_id]
    owned = (
        (topic_id, index)
        for topic_id, indexes in member.owned.items()
        if topic_id in member.topics
        for index in sorted(indexes)
        if index < given.partitions.get(topic_id, 0)
    )
    return next((partition for partition in owned if loads[partition] < quota), None)


def share_partitions(
    given: AssignmentInput, member_ids: list[str], loads: Mapping[Partition, int]
) -> dict[str, Assignment]:
    """Give each member the partition of its topics that has the fewest members."""
    heaps: dict[UUID, list[tuple[int, int]]] = {}
    for topic_id, count in given.partitions.items():
        heaps[topic_id] = [(loads[topic_id, index], index) for index in range(count)]
        heapq.heapify(heaps[topic_id])
    assigned: dict[str, Assignment] = {}
    for member_id in member_ids:
        topics = [topic_id for topic_id in given.members[member_id].topics if heaps.get(topic_id)]
        if topics:
            topic_id = min(topics, key=lambda each: (heaps[each][0], each))
            load, index = heaps[topic_id][0]
            heapq.heapreplace(heaps[topic_id], (load + 1, index))
            assigned[member_id] = {topic_id: frozenset({index})}
    return assigned


SHARE_ASSIGNORS: Mapping[str, Assignor] = {"simple": assign_shared}
"""The assignors of share groups by their names."""
