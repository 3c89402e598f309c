"""Finds the existing partitions and resolves starting and ending offsets. Called by `batch` and `stream`.

All I/O goes through the link.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from penstock.client import TopicPartition, TopicPartitions
from penstock_spark.link.ports import BrokerLink
from penstock_spark.model.errors import InvalidOption
from penstock_spark.model.ranges import EARLIEST, LATEST
from penstock_spark.options.source import BoundKind, OffsetBound, SelectionKind, SourceOptions, TopicSelection
from penstock_spark.source.losses import named

MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class ExistingPartitions:
    """Existing partitions, and topic ids by name."""

    partitions: frozenset[TopicPartition]
    ids: Mapping[str, UUID]


def find_partitions(
    link: BrokerLink,
    selection: TopicSelection,
    known: Mapping[str, TopicPartitions] | None = None,
    *,
    confirmed: bool = False,
) -> ExistingPartitions:
    """Return the existing partitions that the query selects.

    `known` are the topics as seen earlier. `confirmed` asks all brokers, because an earlier response indicated a loss.
    """
    expected = known_topics(selection.partitions, {}) | dict(known or {})
    described = link.topics(selection.names, expected, confirmed=confirmed)
    topics = {name: topic for name, topic in described.items() if selection.selects(name)}
    found = {TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)}
    if selection.choice is SelectionKind.ASSIGN:
        found &= selection.partitions
    ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
    return ExistingPartitions(
        frozenset(found), {topic: ids[topic] for topic in {one.topic for one in found} if topic in ids}
    )


def attempts(options: SourceOptions) -> Iterator[int]:
    """Yield attempt numbers for checks of apparent losses, with pauses; at least two, because one broker's response is
    not enough: from attempt 1 on, all brokers are asked."""
    for attempt in range(max(options.retries, 2)):
        if attempt:
            time.sleep(options.retry_interval_ms / 1000)
        yield attempt


def known_topics(partitions: Iterable[TopicPartition], ids: Mapping[str, UUID]) -> dict[str, TopicPartitions]:
    """Return topics that have at least these partitions."""
    counts: dict[str, int] = {}
    for one in partitions:
        counts[one.topic] = max(counts.get(one.topic, 0), one.partition + 1)
    return {name: TopicPartitions(name, ids.get(name), count) for name, count in counts.items()}


def require(selection: TopicSelection, existing: Iterable[TopicPartition]) -> None:
    """Raise `InvalidOption` if named topics or partitions do not exist at the start. A pattern may match nothing."""
    absent = missing(selection, existing)
    if absent:
        raise InvalidOption(f"{absent}; create it first, or correct the name")


def missing(selection: TopicSelection, existing: Iterable[TopicPartition]) -> str:
    """Return a message about named topics or partitions that do not exist; empty if all do."""
    found = frozenset(existing)
    topics = {one.topic for one in found}
    absent = [f'"{topic}"' for topic in sorted(selection.topics - topics)]
    absent += [named(one) for one in sorted(selection.partitions - found)]
    return f'option "{selection.choice.value}" names what does not exist: {_some(absent)}' if absent else ""


def resolve(
    link: BrokerLink, bound: OffsetBound, existing: ExistingPartitions, options: SourceOptions, *, starting: bool
) -> dict[TopicPartition, int]:
    """Return an offset for each partition; ones that were deleted meanwhile are left out.

    Raises `InvalidOption` if the option's partitions differ from the existing ones.
    """
    targets = _targets(bound, existing, "starting" if starting else "ending")
    offsets = {one: number for one, number in targets.items() if bound.kind is BoundKind.OFFSETS and number >= 0}
    ends: Mapping[TopicPartition, int] = {}
    if bound.kind in (BoundKind.TIME, BoundKind.TIMES) and (options.no_match_is_latest or not starting):
        # Queried before the times: the timestamps of records that arrive in between are unknown.
        ends = link.offsets(dict.fromkeys(targets, LATEST), options.isolation)
    found = dict(
        link.offsets({one: number for one, number in targets.items() if one not in offsets}, options.isolation)
    )
    unmatched = [one for one, offset in found.items() if offset < 0]
    if unmatched and starting and not options.no_match_is_latest:
        times = [f"{named(one)}: {targets[one]}" for one in sorted(unmatched)]
        raise InvalidOption(
            f"no record is as new as the starting timestamp ({_some(times)}); use an earlier one, or set "
            '"startingOffsetsByTimestampStrategy" to "latest" to start at the end'
        )
    for one in unmatched:
        del found[one]
    return {**{one: ends[one] for one in unmatched if one in ends}, **found, **offsets}


def _targets(bound: OffsetBound, existing: ExistingPartitions, which: str) -> dict[TopicPartition, int]:
    if bound.each is None:
        return dict.fromkeys(existing.partitions, bound.everywhere)
    missing = [named(one) for one in sorted(existing.partitions - bound.each.keys())]
    unknown = [named(one) for one in sorted(bound.each.keys() - existing.partitions)]
    if missing or unknown:
        option = f"{which}Offsets" if bound.kind is BoundKind.OFFSETS else f"{which}OffsetsByTimestamp"
        parts = [f"it lacks {_some(missing)}"] if missing else []
        parts += [f"it has {_some(unknown)}, which the query does not read"] if unknown else []
        raise InvalidOption(
            f'option "{option}" must name exactly the partitions that are read: {" and ".join(parts)}; as offsets, '
            f"{EARLIEST} is the earliest and {LATEST} the latest"
        )
    return dict(bound.each)


def _some(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    return ", ".join(found[:MAX_SHOWN]) + more
