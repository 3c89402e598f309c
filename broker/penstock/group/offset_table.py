"""Committed offsets in memory: what is durable, by group, topic id and partition. Used by `offsets` alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from penstock.state.records import OffsetRecord


class OffsetKey(NamedTuple):
    """Whose offset of which partition."""

    group_id: str
    topic_id: UUID
    partition: int


TopicOffsets = dict[int, OffsetRecord]


class OffsetTable:
    """Also knows which groups have offsets of a topic, so that a topic's end costs no search."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[UUID, TopicOffsets]] = {}
        self._groups_of_topic: dict[UUID, set[str]] = {}
        self._size = 0

    def __len__(self) -> int:
        """How many offsets there are."""
        return self._size

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def groups(self) -> list[str]:
        return list(self._groups)

    def get(self, key: OffsetKey) -> OffsetRecord | None:
        topics = self._groups.get(key.group_id)
        return topics.get(key.topic_id, NOTHING).get(key.partition) if topics is not None else None

    def put(self, key: OffsetKey, record: OffsetRecord) -> None:
        topics = self._groups.setdefault(key.group_id, {})
        partitions = topics.get(key.topic_id)
        if partitions is None:
            partitions = topics[key.topic_id] = {}
            self._groups_of_topic.setdefault(key.topic_id, set()).add(key.group_id)
        self._size += key.partition not in partitions
        partitions[key.partition] = record

    def remove(self, key: OffsetKey) -> None:
        """Forgets an offset; one that is not there is no error."""
        topics = self._groups.get(key.group_id, {})
        partitions = topics.get(key.topic_id, {})
        if partitions.pop(key.partition, None) is None:
            return
        self._size -= 1
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
        """Forgets all offsets of a group."""
        for key in [key for key, _ in self.of_group(group_id)]:
            self.remove(key)

    def of_group(self, group_id: str) -> Iterator[tuple[OffsetKey, OffsetRecord]]:
        for topic_id, partitions in self._groups.get(group_id, {}).items():
            for partition, record in partitions.items():
                yield OffsetKey(group_id, topic_id, partition), record

    def topics_of_group(self, group_id: str) -> dict[UUID, TopicOffsets]:
        """Not to be changed."""
        return self._groups.get(group_id, {})

    def of_topic(self, topic_id: UUID) -> Iterator[OffsetKey]:
        for group_id in self._groups_of_topic.get(topic_id, ()):
            for partition in self._groups[group_id][topic_id]:
                yield OffsetKey(group_id, topic_id, partition)


NOTHING: TopicOffsets = {}
