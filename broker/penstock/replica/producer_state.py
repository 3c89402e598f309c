"""What a partition remembers of idempotent producers, so that a retry is never written twice (KIP-98).

For each producer id the current epoch and the last five batches. The log stores snapshots of it and replays batches
into it on opening. Called by `Partition` for each batch that has a producer id.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.wire.batch import BatchHeader

REMEMBERED = 5
"""Batches a producer may have in flight and still be answered exactly (KIP-98; the clients' own bound)."""
MAX_PRODUCERS = 20_000
"""Producers that a partition remembers; past it the one silent longest is forgotten: ids are for the asking."""
SEQUENCES = 1 << 31
"""Sequence numbers wrap to 0 here."""
FORMAT = 1


class Remembered(NamedTuple):
    """A batch that was appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerEntry:
    """One producer id, as last seen."""

    __slots__ = ("batches", "epoch", "last_timestamp_ms", "seen_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[Remembered] = deque(maxlen=REMEMBERED)
        self.last_timestamp_ms = -1
        self.seen_ms: int | None = None
        """When it last wrote, by the clock since boot; None where this process has only read of it."""


class Verdict(Enum):
    """What to do with a batch that a producer sent."""

    APPEND = "append"
    DUPLICATE = "duplicate"
    OLD_DUPLICATE = "old duplicate"
    OUT_OF_ORDER = "out of order"
    FENCED = "fenced"


class ProducerState:
    """Implements `log.types.BatchState`."""

    def __init__(self) -> None:
        self.entries: OrderedDict[int, ProducerEntry] = OrderedDict()
        """By producer id; who wrote last comes last."""

    def check(self, header: BatchHeader) -> tuple[Verdict, Remembered | None]:
        """Whether a batch may be appended; for DUPLICATE also the batch that it repeats.

        A producer that is unknown may start at any sequence number, as after its batches fell to retention.
        """
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return Verdict.APPEND, None
        if header.producer_epoch < entry.epoch:
            return Verdict.FENCED, None
        if header.producer_epoch > entry.epoch:
            return (Verdict.APPEND if header.base_sequence == 0 else Verdict.OUT_OF_ORDER), None
        if not entry.batches:
            return Verdict.APPEND, None
        first, last = header.base_sequence, last_sequence(header)
        newest = entry.batches[-1]
        if first == (newest.last_sequence + 1) % SEQUENCES:
            return Verdict.APPEND, None
        for batch in entry.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return Verdict.DUPLICATE, batch
        if len(entry.batches) == REMEMBERED and precedes(last, entry.batches[0].first_sequence):
            return Verdict.OLD_DUPLICATE, None
        return Verdict.OUT_OF_ORDER, None

    def update(self, header: BatchHeader, now_ms: int | None = None) -> None:
        """Takes in a batch that was appended at `header.base_offset`, at `now_ms` by the clock since boot."""
        entry = self.entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self.entries[header.producer_id] = ProducerEntry(header.producer_epoch)
            if len(self.entries) > MAX_PRODUCERS:
                self.entries.popitem(last=False)
        self.entries.move_to_end(header.producer_id)
        entry.last_timestamp_ms = max(entry.last_timestamp_ms, header.max_timestamp_ms)
        entry.seen_ms = now_ms
        if header.is_control:
            return
        sequences = header.base_sequence, last_sequence(header)
        entry.batches.append(Remembered(*sequences, header.base_offset, header.last_offset, header.max_timestamp_ms))

    def expire(self, now_ms: int, silent_ms: int) -> int:
        """Forgets producers that wrote nothing for longer than `silent_ms`; returns how many.

        Their records' timestamps say nothing about that: who copies old data is not silent. Those that were restored
        count from the first time that this is called.
        """
        old = []
        for pid, entry in self.entries.items():
            if entry.seen_ms is None:
                entry.seen_ms = now_ms
            elif now_ms - entry.seen_ms > silent_ms:
                old.append(pid)
        for pid in old:
            del self.entries[pid]
        return len(old)

    def replay(self, header: BatchHeader) -> None:
        if header.producer_id >= 0:
            self.update(header)

    def snapshot(self) -> bytes:
        rows = [(pid, e.epoch, e.last_timestamp_ms, list(e.batches)) for pid, e in self.entries.items()]
        return msgspec.msgpack.encode((FORMAT, rows))

    def restore(self, snapshot: bytes | None) -> None:
        self.entries.clear()
        if snapshot is None:
            return
        try:
            version, rows = msgspec.msgpack.decode(snapshot, type=tuple[int, list[Row]])
        except msgspec.DecodeError as e:
            raise ValueError(f"not a snapshot of producers: {e}") from e
        if version != FORMAT:
            raise ValueError(f"a snapshot of producers in format {version}; this build reads {FORMAT}")
        for pid, epoch, last_timestamp_ms, batches in rows:
            entry = self.entries[pid] = ProducerEntry(epoch)
            entry.last_timestamp_ms = last_timestamp_ms
            entry.batches.extend(batches)


Row = tuple[int, int, int, list[Remembered]]


def last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % SEQUENCES


def precedes(sequence: int, other: int) -> bool:
    """Whether a sequence number comes before another, on a circle."""
    return 0 < (other - sequence) % SEQUENCES < SEQUENCES // 2
