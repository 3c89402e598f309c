"""The transactions of one partition: which are open, which were aborted, and up to where everything is decided.

Part of `ProducerState`, which tells it of each batch in offset order: appended by a leader, taken over by a follower,
replayed by recovery. A role of the partition asks it for the last stable offset, and for the aborted transactions that
a read_committed reader is to leave out (KIP-98).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from penstock.log.aborted_index import AbortedIndex, AbortedTransaction
from penstock.log.aborted_index import Snapshot as AbortedSnapshot

MAX_UNREPLICATED = 256
"""Decided transactions told apart until their markers are below the high watermark; past it neighbours are taken
together, which holds readers back a little longer and never shows them too much."""

Snapshot = tuple[list[tuple[int, int]], list[tuple[int, int]], AbortedSnapshot]


class OpenTransactions:
    """Nothing of it costs anything for a partition without transactions."""

    __slots__ = ("aborted", "open", "unreplicated")

    def __init__(self) -> None:
        self.open: OrderedDict[int, int] = OrderedDict()
        """By producer id, the first offset; in order of these."""
        self.unreplicated: list[tuple[int, int]] = []
        """(first offset, marker's offset) of transactions that are decided here and maybe nowhere else yet. Both rise:
        one that began later and ended sooner than another never decides anything, and is left out."""
        self.aborted = AbortedIndex()

    def stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: below it every transaction is decided, and its marker below the high watermark."""
        unreplicated = self.unreplicated
        if not unreplicated and not self.open:
            return high_watermark
        while unreplicated and unreplicated[0][1] < high_watermark:
            unreplicated.pop(0)
        stable = high_watermark
        if self.open:
            stable = min(stable, next(iter(self.open.values())))
        if unreplicated:
            stable = min(stable, unreplicated[0][0])
        return stable

    def first_offset(self, producer_id: int) -> int:
        """Where the producer's open transaction began; -1 where it has none."""
        return self.open.get(producer_id, -1)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Takes in the first batch of a transaction; nothing for the ones after it."""
        if producer_id not in self.open:
            assert not self.open or next(reversed(self.open.values())) < first_offset, "transactions begin in order"
            self.open[producer_id] = first_offset

    def end(self, producer_id: int, marker_offset: int, committed: bool) -> None:
        """Takes in a marker; one for a producer without an open transaction changes nothing."""
        first_offset = self.open.pop(producer_id, -1)
        if first_offset < 0:
            return
        assert first_offset < marker_offset, "a marker comes behind its transaction's data"
        unreplicated = self.unreplicated
        while unreplicated and unreplicated[-1][0] > first_offset:
            unreplicated.pop()
        begin = unreplicated.pop()[0] if len(unreplicated) >= MAX_UNREPLICATED else first_offset
        unreplicated.append((begin, marker_offset))
        if not committed:
            self.note_aborted(producer_id, first_offset, marker_offset)

    def note_aborted(self, producer_id: int, first_offset: int, marker_offset: int) -> None:
        stable = next(iter(self.open.values())) if self.open else marker_offset + 1
        self.aborted.add(AbortedTransaction(producer_id, first_offset, marker_offset, stable))

    def aborted_between(self, from_offset: int, to_offset: int, log_start_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions with data from one offset up to before another, which is
        at most the last stable one. Raises CorruptLog."""
        index = self.aborted
        if not index.recent and not index.chunks:
            return []
        index.forget_before(log_start_offset)
        return index.search(from_offset, to_offset)

    def snapshot(self) -> Snapshot:
        return list(self.open.items()), list(self.unreplicated), self.aborted.snapshot()

    def restore(self, snapshot: Snapshot | None) -> None:
        """Starts from a snapshot, or from nothing. Raises ValueError."""
        opened, unreplicated, aborted = snapshot if snapshot is not None else ([], [], None)
        if any(a[1] >= b[1] for a, b in pairwise(opened)):
            raise ValueError("open transactions are out of order")
        self.open = OrderedDict(opened)
        self.unreplicated = list(unreplicated)
        self.aborted.restore(aborted)
