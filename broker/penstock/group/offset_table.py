"""Durable committed offsets in memory, by group, topic id and partition. Used by `offsets`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from penstock.state.records import OffsetRecord


class OffsetKey(NamedTuple):
    """The partition of a committed offset."""

    group_id: str
    topic_id: UUID
    partition: int


TopicOffsets = dict[int, OffsetRecord]


class OffsetTable:
    """Committed offsets, with an index of groups by topic so that a topic's deletion needs no scan."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[UUID, TopicOffsets]] = {}
        self._groups_of_topic: dict[UUID, set[str]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Return the number of offsets."""
        return self._size

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def groups(self) -> list[str]:
        """Return the ids of all groups with offsets."""
        return list(self._groups)

    def get(self, key: OffsetKey) -> OffsetRecord | None:
        """Return the offset, None if there is none."""
        topics = self._groups.get(key.group_id)
        return topics.get(key.topic_id, NOTHING).get(key.partition) if topics is not None else None

    def put(self, key: OffsetKey, record: OffsetRecord) -> None:
        """Add or replace an offset."""
        topics = self._groups.setdefault(key.group_id, {})
        partitions = topics.get(key.topic_id)
        if partitions is None:
            partitions = topics[key.topic_id] = {}
            self._groups_of_topic.setdefault(key.topic_id, set()).add(key.group_id)
        self._size += key.partition not in partitions
        partitions[key.partition] = record

    def remove(self, key: OffsetKey) -> None:
        """Remove an offset if it exists."""
        topics = self._groups.get(key.group_id, {})
        partitions = topics.get(key.topic_id, {})
        if partitions.pop(key.partition, None) is None:
            return
        self._size -= 1
        assert self._size >= 0, f"{key} was removed more often than added"
        if partitions:
            return
        del topics[key.topic_id]
        groups = self._groups_of_topic[key.topic_id]
        groups.discard(key.group_id)
        if not groups:
            del self._groups_of_topic[key.topic_id]
        if not topics:
            del self._groups[key.group_id]

    def remove_group(self, group_id: str) -> None:
        """Remove all offsets of a group."""
        for key in [key for key, _ in self.group_offsets(group_id)]:
            self.remove(key)

    def group_offsets(self, group_id: str) -> Iterator[tuple[OffsetKey, OffsetRecord]]:
        """Iterate over the offsets of a group."""
        for topic_id, partitions in self._groups.get(group_id, {}).items():
            for partition, record in partitions.items():
                yield OffsetKey(group_id, topic_id, partition), record

    def topics_of_group(self, group_id: str) -> dict[UUID, TopicOffsets]:
        """Return the offsets of a group by topic id. The caller must not modify them."""
        return self._groups.get(group_id, {})

    def topic_keys(self, topic_id: UUID) -> Iterator[OffsetKey]:
        """Iterate over the keys of all offsets of a topic."""
        for group_id in self._groups_of_topic.get(topic_id, ()):
            for partition in self._groups[group_id][topic_id]:
                yield OffsetKey(group_id, topic_id, partition)


NOTHING: TopicOffsets = {}
