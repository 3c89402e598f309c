"""Compares the partitions of a query's start offset with the current ones. No I/O. Called by `stream`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client import TopicPartition
from penstock_spark.progress.offsets import StreamOffset
from penstock_spark.source import losses


@dataclass(frozen=True, slots=True)
class TopologyChanges:
    """Changes since a query's start offset."""

    begins: dict[TopicPartition, int]
    """Next offsets of the partitions that the query knows."""
    new: frozenset[TopicPartition]
    """New partitions, to be read from their earliest record."""
    losses: list[str]


def recreated_topics(start: StreamOffset, now: StreamOffset) -> dict[str, str]:
    """Return a loss message for each topic whose id has changed."""
    return {
        topic: losses.recreated_topic(topic, was, now.ids[topic])
        for topic, was in sorted(start.ids.items())
        if now.ids.get(topic, was) != was
    }


def compare(start: StreamOffset, now: StreamOffset) -> TopologyChanges:
    """Return the changes from `start` to `now`, which has the ends of all existing partitions."""
    anew = recreated_topics(start, now)
    begins: dict[TopicPartition, int] = {}
    found = list(anew.values())
    for one, offset in sorted(start.offsets.items()):
        if one.topic in anew:
            continue
        end = now.offsets.get(one)
        if end is None:
            found.append(losses.deleted_partition(one, offset))
            continue
        if end < offset:
            found.append((losses.begins_beyond_end if start.initial else losses.cut_off)(one, offset, end))
        begins[one] = min(offset, end)
    return TopologyChanges(begins, frozenset(now.offsets.keys() - begins.keys()), found)
