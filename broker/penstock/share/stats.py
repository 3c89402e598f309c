"""Counters of the share-partitions that this broker leads, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.share.acknowledgement import AckBatch, AckType
from penstock.share.acquisition import AcquiredRange

MAX_FILTERING_GROUPS = 1_000
"""Groups whose filtered records are counted; the one that filtered first is dropped for another."""


class ShareStats:
    """Numbers of records since the start: acquired ones, acknowledged ones by type, dead letters written and dropped,
    and by group those that its filter left out."""

    __slots__ = ("acknowledged", "acquired", "dead_letters", "dropped_letters", "filtered")

    def __init__(self) -> None:
        self.acquired = self.dead_letters = self.dropped_letters = 0
        self.acknowledged: Counter[AckType] = Counter(dict.fromkeys(AckType, 0))
        self.filtered: dict[str, int] = {}

    def count_acquired(self, ranges: Sequence[AcquiredRange]) -> None:
        """Count the records of an acquisition."""
        self.acquired += sum(last - first + 1 for first, last, _ in ranges)

    def count_filtered(self, group_id: str, count: int) -> None:
        """Count offsets whose records do not pass the filter of a group."""
        if count:
            self.filtered[group_id] = self.filtered.get(group_id, 0) + count
            if len(self.filtered) > MAX_FILTERING_GROUPS:
                del self.filtered[next(iter(self.filtered))]

    def count_acknowledged(self, batches: Sequence[AckBatch]) -> None:
        """Count the records of acknowledgements that took effect."""
        for first, last, types, *_ in batches:
            if len(types) == 1:
                self.acknowledged[AckType(types[0])] += last - first + 1
            else:
                self.acknowledged.update(map(AckType, types))
