"""Records that a client wrote again under a new producer epoch, so that brokers cannot detect the duplicate.

librdkafka 2.16 does this in rare cases. A request to a frozen leader times out while another broker leads already. The
new leader's thread may find nothing in flight before the old leader's thread has returned the request's records to the
queue, so it sends later records first. The broker rejects them because of the gap; librdkafka then renumbers all
unacknowledged records, including those already written.
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
    """Producer id, epoch and sequence of a batch at `base_offset`."""

    base_offset: int
    producer_id: int
    producer_epoch: int


def numberings(directory: Path) -> list[Numbering]:
    """Return the numbering of each batch of a partition's log."""
    return [Numbering(base, *PRODUCER.unpack_from(data, PRODUCER_AT)) for base, _, data in batches(directory)]


def renumbered(content: Content, found: list[Numbering]) -> set[int]:
    """Return the offsets of records that the same producer wrote before in an earlier epoch; none without a log."""
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
    """Return the history without these offsets."""
    contents = []
    for content in history.contents:
        left_out = set(again.get(content.partition, ()))
        contents.append(replace(content, records=[r for r in content.records if r[0] not in left_out]))
    return replace(history, contents=contents)
