"""Decides when a topic with fewer partitions moves on, without I/O: when its surplus partitions are hidden, and when
nothing is left of the change. `driver` applies the decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.state.view import SealView, TopicView

CommittedOffsets = Mapping[str, Mapping[int, int]]
"""The committed offsets of the topic by group and partition; only groups that have some."""


class WaitingGroup(NamedTuple):
    """A group that has not read a sealed partition to its seal; `committed` is -1 if it has no offset there."""

    group_id: str
    partition: int
    committed: int


def is_finished(topic: TopicView) -> bool:
    """Return whether no partition is surplus or sealed, so that the record of the change can go."""
    shrink = topic.shrink
    return (
        shrink is not None
        and shrink.remaining >= len(topic.partitions)
        and all(seal.offset < 0 for seal in topic.seals.values())
    )


def is_draining(topic: TopicView) -> bool:
    """Return whether clients still see all surplus partitions, and each of them is sealed."""
    shrink = topic.shrink
    return (
        shrink is not None
        and shrink.remaining < topic.shown_count
        and all(
            (seal := topic.seals.get(index)) is not None and seal.offset >= 0
            for index in range(shrink.remaining, len(topic.partitions))
        )
    )


def may_hide(topic: TopicView, committed: CommittedOffsets) -> bool:
    """Return whether the surplus partitions of a draining topic can be hidden.

    A partition is read if every group with offsets of the topic has committed what is below its seal. Without any
    group the records stay visible until retention has deleted them, because consumers may read without committing.
    """
    if not is_draining(topic):
        return False
    if not committed:
        return not any(seal.has_records for _, seal in draining_seals(topic))
    return next(waiting_groups(topic, committed), None) is None


def waiting_groups(topic: TopicView, committed: CommittedOffsets) -> Iterator[WaitingGroup]:
    """Yield the groups that have not read the surplus partitions to their seals."""
    for index, seal in draining_seals(topic):
        if not seal.has_records:
            continue
        for group_id, offsets in committed.items():
            offset = offsets.get(index, -1)
            if offset < seal.drained_offset:
                yield WaitingGroup(group_id, index, offset)


def draining_seals(topic: TopicView) -> Iterator[tuple[int, SealView]]:
    """Yield the sealed partitions that clients still see."""
    if topic.shrink is not None:
        for index in range(topic.shrink.remaining, topic.shown_count):
            if index in topic.seals:
                yield index, topic.seals[index]
