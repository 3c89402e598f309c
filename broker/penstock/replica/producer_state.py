"""What a partition remembers of producers with an id, so that a retry is never written twice, and that transactions
are whole (KIP-98, KIP-890).

For each producer id the current epoch, the last five batches and the epoch of the transaction coordinator that wrote
last; `transactions` has the open and the aborted ones. The log stores snapshots of it and replays batches into it on
opening. A leader asks `check` before it appends and `check_marker` before it writes a marker; leaders and followers
tell `observe` of each batch that they have appended.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.replica.transactions import OpenTransactions
from penstock.replica.transactions import Snapshot as TransactionsSnapshot
from penstock.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader
from penstock.wire.control_batch import Marker, parse_marker
from penstock.wire.errors import ErrorCode
from penstock.wire.primitives import Buffer

REMEMBERED = 5
"""Batches a producer may have in flight and still be answered exactly (KIP-98; the clients' own bound)."""
MAX_PRODUCERS = 20_000
"""Producers that a partition remembers; past it the one silent longest is forgotten: ids are for the asking."""
SEQUENCES = 1 << 31
"""Sequence numbers wrap to 0 here."""
FORMAT = 2
"""Format 1 had no transactions; it is still read."""
NO_COORDINATOR = -1


class RecentBatches(NamedTuple):
    """A batch that was appended."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


BATCH = struct.Struct(">iiqq")
"""First sequence number, number of further records, base offset, timestamp in ms."""


class ProducerEntry:
    """One producer id, as last seen. Clients can make any number of ids: its batches are packed, 24 bytes each."""

    __slots__ = ("coordinator_epoch", "epoch", "last_timestamp_ms", "packed_batches", "seen_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = NO_COORDINATOR
        """Of the transaction coordinator whose marker came last."""
        self.packed_batches = b""
        self.last_timestamp_ms = -1
        self.seen_ms: int | None = None
        """When it last wrote, by the clock since boot; None where this process has only read of it."""

    @property
    def batches(self) -> list[RecentBatches]:
        """The last batches, oldest first."""
        found = []
        for first_sequence, more, base_offset, timestamp_ms in BATCH.iter_unpack(self.packed_batches):
            last_sequence = (first_sequence + more) % SEQUENCES
            found.append(RecentBatches(first_sequence, last_sequence, base_offset, base_offset + more, timestamp_ms))
        return found

    @property
    def last_batch(self) -> RecentBatches | None:
        return self.batches[-1] if self.packed_batches else None

    def add_batch(self, first_sequence: int, more: int, base_offset: int, timestamp_ms: int) -> None:
        """Add a batch of `more` + 1 records, in place of the oldest if there are `REMEMBERED` already."""
        packed = BATCH.pack(first_sequence, more, base_offset, timestamp_ms)
        self.packed_batches = self.packed_batches[-KEPT_BYTES:] + packed

    def next_sequence(self) -> int:
        """The sequence number after the last batch's; -1 if no batch of this epoch is known, only a marker."""
        packed = self.packed_batches
        if not packed:
            return -1
        first_sequence, more, _, _ = BATCH.unpack_from(packed, len(packed) - BATCH.size)
        return int((first_sequence + more + 1) % SEQUENCES)


KEPT_BYTES = (REMEMBERED - 1) * BATCH.size
"""What of the packed batches stays when one is added."""


class SequenceCheck(Enum):
    """What to do with a batch that a producer sent."""

    APPEND = "append"
    DUPLICATE = "duplicate"
    OLD_DUPLICATE = "old duplicate"
    OUT_OF_ORDER = "out of order"
    FENCED = "fenced"
    WRONG_STATE = "wrong transaction state"
    UNVERIFIED = "not known to belong to a transaction"


class ProducerState:
    """Implements `log.types.BatchState`."""

    __slots__ = ("__weakref__", "entries", "transactions")

    def __init__(self) -> None:
        self.entries: OrderedDict[int, ProducerEntry] = OrderedDict()
        """By producer id; who wrote last comes last."""
        self.transactions = OpenTransactions()

    def check(self, header: BatchHeader, verified: bool = False) -> tuple[SequenceCheck, RecentBatches | None]:
        """Whether a batch may be appended; for DUPLICATE also the batch that it repeats.

        A producer that is unknown may start at any sequence number, as after its batches fell to retention. A batch of
        a transaction is only taken if it came with a transactional id and the transaction is open here or its
        coordinator has said that the partition is part of it (`verified`, KIP-890): a delayed batch of a transaction
        that has ended would otherwise begin one that nobody ends.
        """
        verdict, original = self.check_sequence(header)
        if verdict is not SequenceCheck.APPEND:
            return verdict, original
        is_open = self.transactions.first_offset(header.producer_id) >= 0
        if not header.attributes & TRANSACTIONAL:
            return (SequenceCheck.WRONG_STATE if is_open else SequenceCheck.APPEND), None
        if not verified:
            return SequenceCheck.UNVERIFIED, None
        same = not is_open or self.entries[header.producer_id].epoch == header.producer_epoch
        return (SequenceCheck.APPEND if same else SequenceCheck.WRONG_STATE), None

    def check_sequence(self, header: BatchHeader) -> tuple[SequenceCheck, RecentBatches | None]:
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return SequenceCheck.APPEND, None
        if header.producer_epoch < entry.epoch:
            return SequenceCheck.FENCED, None
        if header.producer_epoch > entry.epoch:
            return (SequenceCheck.APPEND if header.base_sequence == 0 else SequenceCheck.OUT_OF_ORDER), None
        first, expected = header.base_sequence, entry.next_sequence()
        if first == (0 if expected == -1 else expected):
            return SequenceCheck.APPEND, None
        last, batches = last_sequence(header), entry.batches
        for batch in batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return SequenceCheck.DUPLICATE, batch
        if len(batches) == REMEMBERED and precedes(last, batches[0].first_sequence):
            return SequenceCheck.OLD_DUPLICATE, None
        return SequenceCheck.OUT_OF_ORDER, None

    def has_batches(self, producer_id: int) -> bool:
        """Whether the next batch of this producer has to follow one that is known here."""
        entry = self.entries.get(producer_id)
        return entry is not None and bool(entry.packed_batches)

    def needs_verification(self, producer_id: int, epoch: int) -> bool:
        """Whether the coordinator has to confirm a transactional batch of this producer: the first of its transaction,
        or one of a later epoch than the open one. An earlier epoch is fenced, whatever the coordinator knows."""
        entry = self.entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            return False
        return self.transactions.first_offset(producer_id) < 0 or self.entries[producer_id].epoch != epoch

    def check_marker(self, marker: Marker) -> ErrorCode:
        """Whether a marker may be written: not that of a coordinator which another has replaced, nor one for a
        transaction before the producer's present one."""
        entry = self.entries.get(marker.producer_id)
        if entry is None:
            return ErrorCode.NONE
        if marker.coordinator_epoch < entry.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if marker.producer_epoch < entry.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.NONE

    def by_hand(self, marker: Marker) -> Marker:
        """The marker as somebody may write it who is no coordinator: in the name of the last one that wrote here. A
        greater epoch would have the real one refused from then on."""
        entry = self.entries.get(marker.producer_id)
        known = NO_COORDINATOR if entry is None else entry.coordinator_epoch
        return marker._replace(coordinator_epoch=min(marker.coordinator_epoch, known))

    def is_marked(self, marker: Marker) -> bool:
        """Whether writing a marker would change nothing, as it, or one like it, was the last that came."""
        entry = self.entries.get(marker.producer_id)
        return (
            entry is not None
            and entry.epoch == marker.producer_epoch
            and entry.coordinator_epoch == marker.coordinator_epoch
            and self.transactions.first_offset(marker.producer_id) < 0
        )

    def observe(self, header: BatchHeader, batch: Buffer, now_ms: int | None = None) -> None:
        """Takes in a batch that was appended at `header.base_offset`, whoever wrote it; `batch` is read only where it
        is a control batch. Nothing for batches without a producer id. Raises MalformedMessage for a marker that is
        none."""
        if header.producer_id < 0:
            return
        marker = parse_marker(header, batch) if header.attributes & CONTROL else None
        self.update(header, now_ms)
        if marker is not None:
            self.entries[header.producer_id].coordinator_epoch = marker.coordinator_epoch
            self.transactions.end(header.producer_id, header.base_offset, marker.committed)

    def update(self, header: BatchHeader, now_ms: int | None = None) -> None:
        """Takes in a batch that was appended at `header.base_offset`, at `now_ms` by the clock since boot. What a
        control batch says is not seen here: that is for `observe`."""
        producer_id = header.producer_id
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            before, entry = entry, ProducerEntry(header.producer_epoch)
            self.entries[producer_id] = entry
            if before is not None:
                entry.coordinator_epoch = before.coordinator_epoch
            if len(self.entries) > MAX_PRODUCERS:
                self.evict()
        self.entries.move_to_end(producer_id)
        entry.last_timestamp_ms = max(entry.last_timestamp_ms, header.max_timestamp_ms)
        entry.seen_ms = now_ms
        if header.attributes & CONTROL:
            return
        if header.attributes & TRANSACTIONAL:
            self.transactions.begin(producer_id, header.base_offset)
        entry.add_batch(header.base_sequence, header.last_offset_delta, header.base_offset, header.max_timestamp_ms)

    def evict(self) -> None:
        """Forgets who has been silent longest and has no open transaction."""
        for _ in range(len(self.transactions.open) + 1):
            oldest = next(iter(self.entries))
            if oldest not in self.transactions.open:
                del self.entries[oldest]
                return
            self.entries.move_to_end(oldest)

    def expire(self, now_ms: int, silent_ms: int) -> int:
        """Forgets producers that wrote nothing for longer than `silent_ms`; returns how many.

        Their records' timestamps say nothing about that: who copies old data is not silent. Those that were restored
        count from the first time that this is called.
        """
        old = []
        for pid, entry in self.entries.items():
            if entry.seen_ms is None:
                entry.seen_ms = now_ms
            elif now_ms - entry.seen_ms > silent_ms and pid not in self.transactions.open:
                old.append(pid)
        for pid in old:
            del self.entries[pid]
        return len(old)

    def replay(self, header: BatchHeader) -> None:
        if header.producer_id >= 0:
            self.update(header)

    def replay_control(self, header: BatchHeader, batch: Buffer) -> None:
        self.observe(header, batch)

    def snapshot(self) -> bytes:
        rows = [(pid, e.epoch, e.last_timestamp_ms, e.batches, e.coordinator_epoch) for pid, e in self.entries.items()]
        return msgspec.msgpack.encode((FORMAT, rows, self.transactions.snapshot()))

    def forget_before(self, start_offset: int) -> None:
        self.transactions.aborted.forget_before(start_offset)

    def restore(self, snapshot: bytes | None) -> None:
        self.entries.clear()
        self.transactions.restore(None)
        if snapshot is None:
            return
        try:
            rows, transactions = decode_snapshot(snapshot)
            self.restore_entries(rows)
        except (msgspec.DecodeError, struct.error) as e:
            raise ValueError(f"not a snapshot of producers: {e}") from e
        self.transactions.restore(transactions)

    def restore_entries(self, rows: list[Row]) -> None:
        """Raises struct.error where a number is out of its range."""
        for pid, epoch, last_timestamp_ms, batches, coordinator_epoch in rows:
            entry = self.entries[pid] = ProducerEntry(epoch)
            entry.last_timestamp_ms = last_timestamp_ms
            entry.coordinator_epoch = coordinator_epoch
            for batch in batches[-REMEMBERED:]:
                more = batch.last_offset - batch.base_offset
                entry.add_batch(batch.first_sequence, more, batch.base_offset, batch.timestamp_ms)


OldRow = tuple[int, int, int, list[RecentBatches]]
Row = tuple[int, int, int, list[RecentBatches], int]


def decode_snapshot(snapshot: bytes) -> tuple[list[Row], TransactionsSnapshot | None]:
    """Raises msgspec.DecodeError, ValueError."""
    fields = msgspec.msgpack.decode(snapshot, type=list[msgspec.Raw])
    version = msgspec.msgpack.decode(fields[0], type=int) if fields else 0
    if version == 1 and len(fields) == 2:
        old = msgspec.msgpack.decode(fields[1], type=list[OldRow])
        return [(*row, NO_COORDINATOR) for row in old], None
    if version != FORMAT or len(fields) != 3:
        raise ValueError(f"a snapshot of producers in format {version}; this build reads up to {FORMAT}")
    rows = msgspec.msgpack.decode(fields[1], type=list[Row])
    return rows, msgspec.msgpack.decode(fields[2], type=TransactionsSnapshot)


def last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % SEQUENCES


def precedes(sequence: int, other: int) -> bool:
    """Whether a sequence number comes before another, on a circle."""
    return 0 < (other - sequence) % SEQUENCES < SEQUENCES // 2
