"""Which partitions there are, and where reading them begins and ends. Called by `batch` and `stream`.

The link is asked, nothing else does I/O.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from penstock.client.types import TopicPartition
from penstock_spark.link.ports import Link, TopicPartitions
from penstock_spark.model.errors import InvalidOption
from penstock_spark.model.ranges import EARLIEST, LATEST
from penstock_spark.options.source import BoundKind, OffsetBound, SelectionKind, SourceOptions, TopicSelection
from penstock_spark.source.losses import named

MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Existing:
    partitions: frozenset[TopicPartition]
    ids: Mapping[str, UUID]


def look(
    link: Link, selection: TopicSelection, known: Mapping[str, TopicPartitions] | None = None, *, sure: bool = False
) -> Existing:
    """The partitions that exist, of those that the query reads. `known`: what it has seen of them already; `sure`: as
    all brokers have it, since what one of them said looks like a loss."""
    expected = seen(selection.partitions, {}) | dict(known or {})
    told = link.topics(selection.names, expected, sure=sure)
    topics = {name: topic for name, topic in told.items() if selection.takes(name)}
    found = {TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)}
    if selection.choice is SelectionKind.ASSIGN:
        found &= selection.partitions
    ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
    return Existing(frozenset(found), {topic: ids[topic] for topic in {one.topic for one in found} if topic in ids})


def attempts(options: SourceOptions) -> Iterator[int]:
    """How often what looks like a loss is asked for, with pauses between; twice at least, since no broker is believed
    alone: from 1 on, all of them are to be asked."""
    for attempt in range(max(options.retries, 2)):
        if attempt:
            time.sleep(options.retry_interval_ms / 1000)
        yield attempt


def seen(partitions: Iterable[TopicPartition], ids: Mapping[str, UUID]) -> dict[str, TopicPartitions]:
    """The topics that have these partitions at least."""
    counts: dict[str, int] = {}
    for one in partitions:
        counts[one.topic] = max(counts.get(one.topic, 0), one.partition + 1)
    return {name: TopicPartitions(name, ids.get(name), count) for name, count in counts.items()}


def require(selection: TopicSelection, existing: Iterable[TopicPartition]) -> None:
    """What is named must be there when a query begins. A pattern may match nothing yet."""
    absent = missing(selection, existing)
    if absent:
        raise InvalidOption(f"{absent}. Create it first, or correct the name")


def missing(selection: TopicSelection, existing: Iterable[TopicPartition]) -> str:
    """What is named and not there, in words; empty where nothing is."""
    found = frozenset(existing)
    topics = {one.topic for one in found}
    absent = [repr(topic) for topic in sorted(selection.topics - topics)]
    absent += [named(one) for one in sorted(selection.partitions - found)]
    return f"option {selection.choice.value!r} names what does not exist: {_some(absent)}" if absent else ""


def resolve(
    link: Link, bound: OffsetBound, existing: Existing, options: SourceOptions, *, starting: bool
) -> dict[TopicPartition, int]:
    """An offset for each partition but those that have gone since they were looked for. Raises `InvalidOption` where
    the option's partitions are not those that exist."""
    wanted = _wanted(bound, existing, "starting" if starting else "ending")
    offsets = {one: number for one, number in wanted.items() if bound.kind is BoundKind.OFFSETS and number >= 0}
    ends: Mapping[TopicPartition, int] = {}
    if bound.kind in (BoundKind.TIME, BoundKind.TIMES) and (options.no_match_is_latest or not starting):
        # Asked before the times: of what comes between the two questions nobody knows how young it is.
        ends = link.offsets(dict.fromkeys(wanted, LATEST), options.isolation)
    found = dict(link.offsets({one: number for one, number in wanted.items() if one not in offsets}, options.isolation))
    unmatched = [one for one, offset in found.items() if offset < 0]
    if unmatched and starting and not options.no_match_is_latest:
        times = [f"{named(one)}: {wanted[one]}" for one in sorted(unmatched)]
        raise InvalidOption(
            f"no record is as young as the starting timestamp ({_some(times)}). Give an earlier one, or set "
            "'startingOffsetsByTimestampStrategy' to latest, which begins at the end there"
        )
    for one in unmatched:
        del found[one]
    return {**{one: ends[one] for one in unmatched if one in ends}, **found, **offsets}


def _wanted(bound: OffsetBound, existing: Existing, which: str) -> dict[TopicPartition, int]:
    if bound.each is None:
        return dict.fromkeys(existing.partitions, bound.everywhere)
    missing = [named(one) for one in sorted(existing.partitions - bound.each.keys())]
    unknown = [named(one) for one in sorted(bound.each.keys() - existing.partitions)]
    if missing or unknown:
        option = f"{which}Offsets" if bound.kind is BoundKind.OFFSETS else f"{which}OffsetsByTimestamp"
        parts = [f"it lacks {_some(missing)}"] if missing else []
        parts += [f"it has {_some(unknown)}, which the query does not read"] if unknown else []
        raise InvalidOption(
            f"option {option!r} must name exactly the partitions that are read: {' and '.join(parts)}. "
            f"In offsets {EARLIEST} is the earliest, {LATEST} the latest"
        )
    return dict(bound.each)


def _some(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    return ", ".join(found[:MAX_SHOWN]) + more
