"""Sets of partitions by topic id, and their form in the store. Used by `group`, `assignors` and `persistence`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

Assignment = Mapping[UUID, frozenset[int]]
"""Partitions by topic id; topics without partitions are left out. Never changed in place."""

NOTHING: Assignment = {}


def assignment_of(partitions: Iterable[tuple[UUID, Iterable[int]]]) -> Assignment:
    """Return an assignment of (topic id, partitions); the partitions of a topic that comes twice are united."""
    found: dict[UUID, frozenset[int]] = {}
    for topic_id, indexes in partitions:
        found[topic_id] = found.get(topic_id, frozenset()).union(indexes)
    return {topic_id: indexes for topic_id, indexes in found.items() if indexes}


def difference(one: Assignment, other: Assignment) -> Assignment:
    """Return the partitions of `one` that are not in `other`."""
    left = ((topic_id, indexes - other.get(topic_id, frozenset())) for topic_id, indexes in one.items())
    return {topic_id: indexes for topic_id, indexes in left if indexes}


def intersection(one: Assignment, other: Assignment) -> Assignment:
    """Return the partitions that are in both."""
    shared = ((topic_id, indexes & other[topic_id]) for topic_id, indexes in one.items() if topic_id in other)
    return {topic_id: indexes for topic_id, indexes in shared if indexes}


def union(one: Assignment, other: Assignment) -> Assignment:
    """Return the partitions that are in one of both."""
    return assignment_of([*one.items(), *other.items()])


def overlaps(one: Assignment, other: Assignment) -> bool:
    """Return whether a partition is in both."""
    return any(not indexes.isdisjoint(other.get(topic_id, ())) for topic_id, indexes in one.items())


def contains(whole: Assignment, part: Assignment) -> bool:
    """Return whether all partitions of `part` are in `whole`."""
    return all(indexes <= whole.get(topic_id, frozenset()) for topic_id, indexes in part.items())


def partition_count(partitions: Assignment) -> int:
    """Return the number of partitions."""
    return sum(map(len, partitions.values()))


def encode_indexes(indexes: frozenset[int]) -> str:
    """Return partition indexes as ranges such as `0-3,7`."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_indexes(text: str, limit: int) -> frozenset[int]:
    """Parse ranges of `encode_indexes`. Raises ValueError for other texts and for indexes from `limit` on."""
    found: set[int] = set()
    for run in text.split(","):
        first, dash, last = run.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < limit:
            raise ValueError(f'partitions "{run}" are not within 0 to {limit - 1}')
        found.update(range(low, high + 1))
    return frozenset(found)
