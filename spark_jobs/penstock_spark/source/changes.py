"""What became of the partitions since a query stood at `start`: a function without I/O. Called by `stream`."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.types import TopicPartition
from penstock_spark.progress.offsets import StreamOffset
from penstock_spark.source import losses


@dataclass(frozen=True, slots=True)
class TopologyChanges:
    begins: dict[TopicPartition, int]
    """Where the partitions that the query knows go on."""
    new: frozenset[TopicPartition]
    """To be read from their earliest record on."""
    losses: list[str]


def made_anew(start: StreamOffset, now: StreamOffset) -> dict[str, str]:
    """By topic what is lost, where its id is another one."""
    return {
        topic: losses.made_anew(topic, was, now.ids[topic])
        for topic, was in sorted(start.ids.items())
        if now.ids.get(topic, was) != was
    }


def compare(start: StreamOffset, now: StreamOffset) -> TopologyChanges:
    """`now` holds the ends of all partitions that exist."""
    anew = made_anew(start, now)
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
