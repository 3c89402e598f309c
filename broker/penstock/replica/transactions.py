"""The open and aborted transactions of one partition, and its last stable offset (KIP-98).

Part of `ProducerState`, which passes each batch in offset order: appended by a leader or follower, or replayed by
recovery. The partition's role asks for the last stable offset, and for the aborted transactions that read_committed
readers must skip.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from penstock.log.aborted_index import AbortedIndex, AbortedTransaction
from penstock.log.aborted_index import Snapshot as AbortedSnapshot

MAX_UNREPLICATED = 256
"""Maximum number of decided transactions whose markers are above the high watermark. Beyond it, neighbours are merged,
which delays readers slightly but never exposes undecided records."""

Snapshot = tuple[list[tuple[int, int]], list[tuple[int, int]], AbortedSnapshot]


class OpenTransactions:
    """The transactions of a partition. Costs nothing if there are none."""

    __slots__ = ("aborted", "open", "unreplicated")

    def __init__(self) -> None:
        self.open: OrderedDict[int, int] = OrderedDict()
        """First offset by producer id, in offset order."""
        self.unreplicated: list[tuple[int, int]] = []
        """(first offset, marker offset) of transactions whose markers may not be replicated. Both increase: a
        transaction that started later and ended earlier than another never bounds the result and is dropped."""
        self.aborted = AbortedIndex()

    def stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: all transactions below it are decided, with markers below the high
        watermark."""
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
        """Return the first offset of the producer's open transaction, -1 if none."""
        return self.open.get(producer_id, -1)

    def start_transaction(self, producer_id: int, first_offset: int) -> None:
        """Record a transactional batch. Only the first of a transaction has an effect."""
        if producer_id not in self.open:
            assert not self.open or next(reversed(self.open.values())) < first_offset, (
                "transactions start in offset order"
            )
            self.open[producer_id] = first_offset

    def end_transaction(self, producer_id: int, marker_offset: int, committed: bool) -> None:
        """Record a marker. Has no effect without an open transaction."""
        first_offset = self.open.pop(producer_id, -1)
        if first_offset < 0:
            return
        assert first_offset < marker_offset, "a marker follows its transaction's data"
        unreplicated = self.unreplicated
        while unreplicated and unreplicated[-1][0] > first_offset:
            unreplicated.pop()
        begin = unreplicated.pop()[0] if len(unreplicated) >= MAX_UNREPLICATED else first_offset
        unreplicated.append((begin, marker_offset))
        if not committed:
            self.record_aborted(producer_id, first_offset, marker_offset)

    def record_aborted(self, producer_id: int, first_offset: int, marker_offset: int) -> None:
        """Add an aborted transaction to the index."""
        stable = next(iter(self.open.values())) if self.open else marker_offset + 1
        self.aborted.add(AbortedTransaction(producer_id, first_offset, marker_offset, stable))

    def aborted_between(self, from_offset: int, to_offset: int, log_start_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of aborted transactions in a range that ends at most at the last stable
        offset. Raises CorruptLog."""
        index = self.aborted
        if not index.recent and not index.chunks:
            return []
        index.forget_before(log_start_offset)
        return index.search(from_offset, to_offset)

    def snapshot(self) -> Snapshot:
        """Return the state for a checkpoint."""
        return list(self.open.items()), list(self.unreplicated), self.aborted.snapshot()

    def restore(self, snapshot: Snapshot | None) -> None:
        """Restore a snapshot, or the empty state. Raises ValueError."""
        opened, unreplicated, aborted = snapshot if snapshot is not None else ([], [], None)
        if any(a[1] >= b[1] for a, b in pairwise(opened)):
            raise ValueError("open transactions are out of order")
        self.open = OrderedDict(opened)
        self.unreplicated = list(unreplicated)
        self.aborted.restore(aborted)
