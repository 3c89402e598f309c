"""The values in the store of topics whose number of partitions was reduced. Written by `shrink` and `control`."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import msgspec

from penstock.state.records import MAX_PARTITIONS, Count, Int32, Int64, StoredRecord

MAX_GAPS = 100
"""Maximum number of hidden ranges of a partition: how often it was sealed and opened again."""
PartitionCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Gaps = Annotated[list[tuple[Offset, Offset]], msgspec.Meta(max_length=MAX_GAPS)]
OpenOrOffset = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]


class ShrinkRecord(StoredRecord, frozen=True, kw_only=True):
    """A topic's partitions from `remaining` on are to be sealed; clients see those below `shown`."""

    remaining: PartitionCount
    shown: PartitionCount
    changed_ms: Int64 = 0

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        return f"shown {self.shown} is less than remaining {self.remaining}" if self.shown < self.remaining else None


class SealRecord(StoredRecord, frozen=True, kw_only=True):
    """The seal of a partition: records from `offset` on are relayed to partition `target`. -1 if it is not sealed.

    A group that has committed `drained_offset` has read all records below the seal. `has_records` is False once
    there are none. `gaps` are (first, end) of the relayed ranges before the partition was opened again.
    """

    offset: OpenOrOffset = -1
    target: Int32 = -1
    drained_offset: OpenOrOffset = -1
    has_records: bool = True
    gaps: Gaps = msgspec.field(default_factory=list)

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        bounds = [bound for gap in self.gaps for bound in gap]
        if any(a >= b for a, b in pairwise(bounds)):
            return f"gaps {self.gaps} are empty or out of order"
        if self.offset < 0:
            return None
        if self.target < 0:
            return f"offset is {self.offset} without a target"
        if bounds and bounds[-1] > self.offset:
            return f"gaps {self.gaps} are past the seal {self.offset}"
        return None


class RelayRecord(StoredRecord, frozen=True, kw_only=True):
    """The progress of a relay: the records of the partition from `seal` to `position` are in `target`.

    The next batch has the producer id, epoch and sequence.
    """

    seal: Offset
    target: Count
    position: Offset
    producer_id: Offset
    producer_epoch: Annotated[int, msgspec.Meta(ge=0, le=(1 << 15) - 1)] = 0
    sequence: Count = 0

    def contradiction(self) -> str | None:
        """Return what makes the fields inconsistent with each other; None if they are consistent."""
        return f"position {self.position} is below the seal {self.seal}" if self.position < self.seal else None
