"""Offset ranges of partitions, and fetched records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EARLIEST, LATEST = -2, -1
"""Special offsets, as in the options of Spark's Kafka connector: log start and log end."""


class OffsetRange(NamedTuple):
    """The records of a partition from offset `start` to `end`, exclusive."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} {self.start}..{self.end}"


@dataclass(frozen=True, slots=True)
class Fetched:
    """The response to a fetch of one partition.

    `records` are batches as stored in the log. The first may start before the requested offset, the last may be
    incomplete. `aborted` has (producer id, first offset) of each aborted transaction in them, ordered by first offset;
    empty for uncommitted reads.
    """

    records: memoryview
    aborted: Sequence[tuple[int, int]]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
