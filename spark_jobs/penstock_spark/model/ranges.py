"""Stretches of partitions, and what was fetched of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST, LATEST = -2, -1
"""In place of an offset, as in the options of Spark's own Kafka connector: where a partition begins, where it ends."""


class OffsetRange(NamedTuple):
    """The records of a partition from offset `start` up to, and without, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} {self.start}..{self.end}"


@dataclass(frozen=True, slots=True)
class Fetched:
    """One answer to a fetch of one partition.

    `records` are whole batches as they stand in the log, the first of which may begin before the offset that was asked
    for, the last may be cut short; `aborted` has (producer id, first offset) of each aborted transaction that touches
    them, in the order of first offsets, and is empty where uncommitted data are read.
    """

    records: memoryview
    aborted: Sequence[tuple[int, int]]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
