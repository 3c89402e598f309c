"""The producer state of a partition: detects duplicates and keeps transactions atomic (KIP-98, KIP-890).

It holds, per producer id, the current epoch, the last five batches and the epoch of the last transaction coordinator;
`transactions` holds the open and aborted transactions. The log stores snapshots of it, and replays batches when it is
opened. The leader calls `check` before it appends, and `check_marker` before it writes a marker; leaders and followers
call `observe` for each appended batch.
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
from penstock.wire.scheduled_batch import SCHEDULED

MAX_RECENT_BATCHES = 5
"""Number of in-flight batches per producer that are deduplicated (KIP-98; also the clients' limit)."""
MAX_PRODUCERS = 20_000
"""Maximum number of producers per partition. Beyond it the least recently active one is evicted, since clients can
request any number of ids."""
SEQUENCE_MODULUS = 1 << 31
"""Sequence numbers wrap to 0 here."""
FORMAT = 2
"""Format 1, which has no transactions, is still read."""
NO_COORDINATOR = -1


class RecentBatch(NamedTuple):
    """An appended batch."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


PACKED_BATCH = struct.Struct(">iiqq")
"""First sequence number, number of further records, base offset, timestamp in ms."""


class ProducerEntry:
    """The state of one producer id. Clients can create any number of ids, so its batches are packed, 24 bytes each."""

    __slots__ = ("coordinator_epoch", "epoch", "last_timestamp_ms", "last_write_ms", "packed_batches")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = NO_COORDINATOR
        """Epoch of the transaction coordinator that wrote the last marker."""
        self.packed_batches = b""
        self.last_timestamp_ms = -1
        self.last_write_ms: int | None = None
        """Time of its last write since boot; None if only read from the log."""

    @property
    def batches(self) -> list[RecentBatch]:
        """The last batches, oldest first."""
        found = []
        for first_sequence, more, base_offset, timestamp_ms in PACKED_BATCH.iter_unpack(self.packed_batches):
            last_sequence = (first_sequence + more) % SEQUENCE_MODULUS
            found.append(RecentBatch(first_sequence, last_sequence, base_offset, base_offset + more, timestamp_ms))
        return found

    @property
    def last_batch(self) -> RecentBatch | None:
        """The last batch, None if there is none."""
        return self.batches[-1] if self.packed_batches else None

    def add_batch(self, first_sequence: int, more: int, base_offset: int, timestamp_ms: int) -> None:
        """Add a batch of `more` + 1 records, in place of the oldest if there are `MAX_RECENT_BATCHES` already."""
        packed = PACKED_BATCH.pack(first_sequence, more, base_offset, timestamp_ms)
        self.packed_batches = self.packed_batches[-KEPT_BYTES:] + packed

    def next_sequence(self) -> int:
        """Return the next sequence number, -1 if no batch of this epoch is known."""
        packed = self.packed_batches
        if not packed:
            return -1
        first_sequence, more, _, _ = PACKED_BATCH.unpack_from(packed, len(packed) - PACKED_BATCH.size)
        return int((first_sequence + more + 1) % SEQUENCE_MODULUS)


KEPT_BYTES = (MAX_RECENT_BATCHES - 1) * PACKED_BATCH.size
"""Size of the packed batches that remain when one is added."""


class SequenceCheck(Enum):
    """The result of a batch's sequence check."""

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
        """Entries by producer id, least recently active first."""
        self.transactions = OpenTransactions()

    def check(self, header: BatchHeader, verified: bool = False) -> tuple[SequenceCheck, RecentBatch | None]:
        """Return whether a batch may be appended; for DUPLICATE, also the original batch.

        An unknown producer may start at any sequence number, because retention may have deleted its batches. A
        transactional batch requires a transactional id in the request, and either an open transaction or the
        coordinator's verification (`verified`, KIP-890): a delayed batch would otherwise start a transaction that never
        ends.
        """
        check, original = self.check_sequence(header)
        if check is not SequenceCheck.APPEND:
            return check, original
        is_open = self.transactions.first_offset(header.producer_id) >= 0
        if not header.attributes & TRANSACTIONAL:
            return (SequenceCheck.WRONG_STATE if is_open else SequenceCheck.APPEND), None
        if not verified:
            return SequenceCheck.UNVERIFIED, None
        same = not is_open or self.entries[header.producer_id].epoch == header.producer_epoch
        return (SequenceCheck.APPEND if same else SequenceCheck.WRONG_STATE), None

    def check_sequence(self, header: BatchHeader) -> tuple[SequenceCheck, RecentBatch | None]:
        """Check a batch's epoch and sequence number."""
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
        if len(batches) == MAX_RECENT_BATCHES and precedes(last, batches[0].first_sequence):
            return SequenceCheck.OLD_DUPLICATE, None
        return SequenceCheck.OUT_OF_ORDER, None

    def has_batches(self, producer_id: int) -> bool:
        """Return whether a batch of this producer is known, which the next must follow."""
        entry = self.entries.get(producer_id)
        return entry is not None and bool(entry.packed_batches)

    def needs_verification(self, producer_id: int, epoch: int) -> bool:
        """Return whether the coordinator must verify a transactional batch: the first of its transaction, or one of a
        later epoch. An earlier epoch is fenced in any case."""
        entry = self.entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            return False
        return self.transactions.first_offset(producer_id) < 0 or self.entries[producer_id].epoch != epoch

    def check_marker(self, marker: Marker) -> ErrorCode:
        """Return the error that fences a marker of a deposed coordinator or an earlier producer epoch, or NONE."""
        entry = self.entries.get(marker.producer_id)
        if entry is None:
            return ErrorCode.NONE
        if marker.coordinator_epoch < entry.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if marker.producer_epoch < entry.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.NONE

    def administrative_marker(self, marker: Marker) -> Marker:
        """Return the marker with the epoch of the last coordinator, for an administrator. A higher epoch would fence
        the real coordinator."""
        entry = self.entries.get(marker.producer_id)
        known = NO_COORDINATOR if entry is None else entry.coordinator_epoch
        return marker._replace(coordinator_epoch=min(marker.coordinator_epoch, known))

    def is_repeated_marker(self, marker: Marker) -> bool:
        """Return whether the marker repeats the last one, so that writing it has no effect."""
        entry = self.entries.get(marker.producer_id)
        return (
            entry is not None
            and entry.epoch == marker.producer_epoch
            and entry.coordinator_epoch == marker.coordinator_epoch
            and self.transactions.first_offset(marker.producer_id) < 0
        )

    def observe(self, header: BatchHeader, batch: Buffer, now_ms: int | None = None) -> None:
        """Record a batch that was appended at `header.base_offset`.

        `batch` is read only for control batches. Batches without a producer id have no effect. Raises MalformedMessage
        for an invalid marker.
        """
        if header.producer_id < 0:
            return
        marker = parse_marker(header, batch) if header.attributes & (CONTROL | SCHEDULED) == CONTROL else None
        self.update(header, now_ms)
        if marker is not None:
            self.entries[header.producer_id].coordinator_epoch = marker.coordinator_epoch
            self.transactions.end_transaction(header.producer_id, header.base_offset, marker.committed)

    def update(self, header: BatchHeader, now_ms: int | None = None) -> None:
        """Record a batch that was appended at `header.base_offset`, at `now_ms` since boot. Ignores the content of
        control batches; see `observe`."""
        producer_id = header.producer_id
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            before, entry = entry, ProducerEntry(header.producer_epoch)
            self.entries[producer_id] = entry
            if before is not None:
                entry.coordinator_epoch = before.coordinator_epoch
                # A leader, which gives a time, has checked the epoch; replayed batches come from disk or other brokers.
                assert now_ms is None or before.epoch < entry.epoch, (
                    f"producer {producer_id} went from epoch {before.epoch} back to {entry.epoch}"
                )
            if len(self.entries) > MAX_PRODUCERS:
                self.evict()
        self.entries.move_to_end(producer_id)
        entry.last_timestamp_ms = max(entry.last_timestamp_ms, header.max_timestamp_ms)
        entry.last_write_ms = now_ms
        if header.attributes & (CONTROL | SCHEDULED) == CONTROL:
            return  # a marker
        if header.attributes & TRANSACTIONAL:
            self.transactions.start_transaction(producer_id, header.base_offset)
        entry.add_batch(header.base_sequence, header.last_offset_delta, header.base_offset, header.max_timestamp_ms)

    def evict(self) -> None:
        """Remove the least recently active producer without an open transaction."""
        for _ in range(len(self.transactions.open) + 1):
            oldest = next(iter(self.entries))
            if oldest not in self.transactions.open:
                del self.entries[oldest]
                return
            self.entries.move_to_end(oldest)

    def expire(self, now_ms: int, silent_ms: int) -> int:
        """Remove producers that have not written for `silent_ms`. Returns their number.

        Record timestamps are irrelevant: they may be old. Restored producers count from the first call.
        """
        old = []
        for pid, entry in self.entries.items():
            if entry.last_write_ms is None:
                entry.last_write_ms = now_ms
            elif now_ms - entry.last_write_ms > silent_ms and pid not in self.transactions.open:
                old.append(pid)
        for pid in old:
            del self.entries[pid]
        return len(old)

    def replay(self, header: BatchHeader) -> None:
        """Record a data batch during recovery."""
        if header.producer_id >= 0:
            self.update(header)

    def replay_control(self, header: BatchHeader, batch: Buffer) -> None:
        """Record a control batch during recovery."""
        self.observe(header, batch)

    def snapshot(self) -> bytes:
        """Encode the state for a checkpoint."""
        rows = [(pid, e.epoch, e.last_timestamp_ms, e.batches, e.coordinator_epoch) for pid, e in self.entries.items()]
        return msgspec.msgpack.encode((FORMAT, rows, self.transactions.snapshot()))

    def forget_before(self, start_offset: int) -> None:
        """Drop aborted transactions below the log start."""
        self.transactions.aborted.forget_before(start_offset)

    def restore(self, snapshot: bytes | None) -> None:
        """Restore a snapshot, or the empty state. Raises ValueError."""
        self.entries.clear()
        self.transactions.restore(None)
        if snapshot is None:
            return
        try:
            rows, transactions = decode_snapshot(snapshot)
            self.restore_entries(rows)
        except (msgspec.DecodeError, struct.error) as e:
            raise ValueError(f"invalid producer snapshot: {e}") from e
        self.transactions.restore(transactions)

    def restore_entries(self, rows: list[Row]) -> None:
        """Restore producer entries. Raises struct.error if a number is out of range."""
        for pid, epoch, last_timestamp_ms, batches, coordinator_epoch in rows:
            entry = self.entries[pid] = ProducerEntry(epoch)
            entry.last_timestamp_ms = last_timestamp_ms
            entry.coordinator_epoch = coordinator_epoch
            for batch in batches[-MAX_RECENT_BATCHES:]:
                more = batch.last_offset - batch.base_offset
                entry.add_batch(batch.first_sequence, more, batch.base_offset, batch.timestamp_ms)


OldRow = tuple[int, int, int, list[RecentBatch]]
Row = tuple[int, int, int, list[RecentBatch], int]


def decode_snapshot(snapshot: bytes) -> tuple[list[Row], TransactionsSnapshot | None]:
    """Decode a snapshot. Raises msgspec.DecodeError, ValueError."""
    fields = msgspec.msgpack.decode(snapshot, type=list[msgspec.Raw])
    version = msgspec.msgpack.decode(fields[0], type=int) if fields else 0
    if version == 1 and len(fields) == 2:
        old = msgspec.msgpack.decode(fields[1], type=list[OldRow])
        return [(*row, NO_COORDINATOR) for row in old], None
    if version != FORMAT or len(fields) != 3:
        raise ValueError(f"producer snapshot has format {version}; this version reads up to {FORMAT}")
    rows = msgspec.msgpack.decode(fields[1], type=list[Row])
    return rows, msgspec.msgpack.decode(fields[2], type=TransactionsSnapshot)


def last_sequence(header: BatchHeader) -> int:
    """Return the sequence number of the batch's last record."""
    return (header.base_sequence + header.last_offset_delta) % SEQUENCE_MODULUS


def precedes(sequence: int, other: int) -> bool:
    """Return whether a sequence number comes before another, modulo `SEQUENCE_MODULUS`."""
    return 0 < (other - sequence) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2
