"""Records that a client wrote once more under a new producer epoch, which no broker can know again.

librdkafka 2.16 does so, rarely: when a request to a leader that hangs times out while another leads already, the new
leader's thread may find nothing in flight before the old one's thread has put the request's records back, and sends
later ones first. These are refused for the gap; it then renumbers all that is not acknowledged, what is written too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from penstock_simulation.history import Content, History, Partition

from penstock_chaos.replicas import batches

PRODUCER = Struct(">qh")
PRODUCER_AT = 43


class Numbering(NamedTuple):
    """Who numbered the records of a batch, from `base_offset` on."""

    base_offset: int
    producer_id: int
    producer_epoch: int


def numberings(directory: Path) -> list[Numbering]:
    """Of each batch of a partition's log."""
    return [Numbering(base, *PRODUCER.unpack_from(data, PRODUCER_AT)) for base, _, data in batches(directory)]


def renumbered(content: Content, found: list[Numbering]) -> set[int]:
    """Offsets of records that are there before, by the same producer in an earlier epoch of its own; none where nothing
    is known of the log."""
    again: set[int] = set()
    if not found:
        return again
    first: dict[bytes, int] = {}
    bases = [each.base_offset for each in found]
    for offset, value in content.records:
        before = found[bisect_right(bases, first.setdefault(value, offset)) - 1]
        now = found[bisect_right(bases, offset) - 1]
        if before.producer_id == now.producer_id >= 0 and before.producer_epoch < now.producer_epoch:
            again.add(offset)
    return again


def without(history: History, again: Mapping[Partition, Iterable[int]]) -> History:
    """A history whose partitions do not hold these offsets."""
    contents = []
    for content in history.contents:
        left_out = set(again.get(content.partition, ()))
        contents.append(replace(content, records=[r for r in content.records if r[0] not in left_out]))
    return replace(history, contents=contents)
