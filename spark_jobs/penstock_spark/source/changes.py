"""Compares the partitions of a query's start offset with the current ones. No I/O. Called by `stream`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

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


def missing_partitions(start: StreamOffset, now: StreamOffset) -> list[TopicPartition]:
    """Return the partitions of topics with an unchanged id that exist no longer."""
    return [
        one
        for one in sorted(start.offsets.keys() - now.offsets.keys())
        if (id_ := now.ids.get(one.topic)) is not None and start.ids.get(one.topic, id_) == id_
    ]


def with_hidden(start: StreamOffset, now: StreamOffset, hidden: Mapping[TopicPartition, int]) -> StreamOffset:
    """Return `now` with the hidden partitions that were read completely. Their offsets stay as in `start`, so that the
    query continues there if the topic gets its partitions back.

    `hidden` has the offset of a consumer that has read all records of a partition.
    """
    kept = {
        one: start.offsets[one]
        for one in missing_partitions(start, now)
        if one in hidden and start.offsets[one] >= hidden[one]
    }
    return replace(now, offsets={**now.offsets, **kept})


def compare(
    start: StreamOffset, now: StreamOffset, hidden: Mapping[TopicPartition, int] = MappingProxyType({})
) -> TopologyChanges:
    """Return the changes from `start` to `now`, which has the ends of all existing partitions. `hidden` is that of
    `with_hidden`, for messages."""
    anew = recreated_topics(start, now)
    begins: dict[TopicPartition, int] = {}
    found = list(anew.values())
    for one, offset in sorted(start.offsets.items()):
        if one.topic in anew:
            continue
        end = now.offsets.get(one)
        if end is None:
            drained = hidden.get(one)
            found.append(
                losses.deleted_partition(one, offset)
                if drained is None
                else losses.hidden_partition(one, offset, drained)
            )
            continue
        if end < offset:
            found.append((losses.begins_beyond_end if start.initial else losses.cut_off)(one, offset, end))
        begins[one] = min(offset, end)
    return TopologyChanges(begins, frozenset(now.offsets.keys() - begins.keys()), found)
