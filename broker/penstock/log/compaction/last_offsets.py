"""The first pass of compaction: collects the last offset of each key and the outcome of transactions (KIP-58, KIP-98).

Called by `cleaner` in the worker process. Markers, which compaction keeps, decide transactions: the records of a
committed one count once its marker is read, those of an aborted one never. If a transaction's marker is not in the
input, the pass covers only offsets before that transaction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from penstock.log.compaction.job import CompactionJob, CompactionSource
from penstock.log.scan import ScannedBatch, scan_verified
from penstock.log.segment import Segment
from penstock.runtime.files import Files
from penstock.wire.batch import BatchHeader
from penstock.wire.control_batch import parse_marker
from penstock.wire.records import Record, iterate_records
from penstock.wire.schema import MalformedMessage

MAX_DECOMPRESSED_BYTES = 256 << 20
KEY_DIGEST_BYTES = 16


class AbortedSpan(NamedTuple):
    """An aborted transaction: its first offset that is still in the log, and its marker's offset."""

    first_offset: int
    marker_offset: int


class LastOffsets:
    """The state of the pass. Batches come in offset order."""

    def __init__(self, job: CompactionJob) -> None:
        self.job = job
        self.offsets: dict[bytes, int] = {}
        """Offset of the last effective record, by key digest."""
        self.covered_until = job.dirty_offset
        """Offset below which all records are processed and every transaction is decided."""
        self.producers: dict[int, int] = {}
        """Base offset of each producer's last batch."""
        self.open_transactions: dict[int, int] = {}
        """First offset of each producer's open transaction."""
        self.pending_keys: dict[int, dict[bytes, int]] = {}
        """Keys of each producer's open transaction."""
        self.aborted: dict[int, list[AbortedSpan]] = {}
        """Aborted transactions that ended after `dirty_offset`, by producer, in order."""
        self.pending_entries = 0
        """Number of entries in `pending_keys` and `aborted`."""
        self.full = False

    def add_batch(self, found: ScannedBatch) -> None:
        """Process the next batch."""
        header = found.header
        if header.producer_id >= 0:
            self.producers[header.producer_id] = header.base_offset
        if header.is_control:
            self.apply_marker(found)
        elif header.is_transactional and not self.full:
            self.open_transactions.setdefault(header.producer_id, header.base_offset)
        if self.full or header.last_offset < self.job.dirty_offset:
            return
        if not header.is_control:
            self.add_keys(found)
        self.covered_until = header.last_offset + 1
        self.full = len(self.offsets) + self.pending_entries >= self.job.max_keys

    def add_keys(self, found: ScannedBatch) -> None:
        """Record the keys of a batch, as pending if it is transactional."""
        keys = self.offsets
        if found.header.is_transactional:
            keys = self.pending_keys.setdefault(found.header.producer_id, {})
            self.pending_entries -= len(keys)
        for record in decode_records(found) or ():
            if record.key is not None:
                keys[key_digest(record.key)] = record.offset
        if keys is not self.offsets:
            self.pending_entries += len(keys)

    def apply_marker(self, found: ScannedBatch) -> None:
        """Apply a marker; no effect if its transaction has no data in the input."""
        marker = parse_marker(found.header, found.batch)
        first_offset = self.open_transactions.pop(marker.producer_id, None) if marker is not None else None
        if marker is None or first_offset is None:
            return
        keys = self.pending_keys.pop(marker.producer_id, {})
        self.pending_entries -= len(keys)
        if marker.committed:
            for key, offset in keys.items():
                if offset > self.offsets.get(key, -1):
                    self.offsets[key] = offset
        elif found.header.base_offset >= self.job.dirty_offset:
            self.aborted.setdefault(marker.producer_id, []).append(AbortedSpan(first_offset, found.header.base_offset))
            self.pending_entries += 1

    def finish(self) -> None:
        """End the pass before the first transaction that is still open."""
        undecided = min(self.open_transactions.values(), default=self.covered_until)
        self.covered_until = max(min(self.covered_until, undecided), self.job.dirty_offset)
        self.pending_keys.clear()

    def is_superseded(self, record: Record) -> bool:
        """Return whether a later record of the same key is effective."""
        return record.key is not None and self.offsets.get(key_digest(record.key), -1) > record.offset

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a data batch belongs to a transaction known to be aborted."""
        spans = self.aborted.get(header.producer_id) if header.is_transactional else None
        if spans is None:
            return False
        at = bisect_right(spans, header.base_offset, key=lambda span: span.first_offset) - 1
        return at >= 0 and header.base_offset < spans[at].marker_offset

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        """Return whether a batch is the last one of its producer."""
        return header.producer_id >= 0 and self.producers.get(header.producer_id) == header.base_offset


def read_last_offsets(files: Files, job: CompactionJob) -> LastOffsets:
    """Read the keys from `dirty_offset` on, up to `max_keys`.

    Raises OSError, BadBatch, MalformedMessage.
    """
    last = LastOffsets(job)
    for source in job.sources:
        for found in read_batches(files, job, source):
            last.add_batch(found)
        if not last.full:
            last.covered_until = max(last.covered_until, source.end_offset)
    last.finish()
    return last


def key_digest(key: bytes) -> bytes:
    """Return the key's digest, by which the pass identifies it."""
    return blake2b(key, digest_size=KEY_DIGEST_BYTES).digest()


def decode_records(found: ScannedBatch) -> list[Record] | None:
    """Return the records of a batch; None if they are invalid under a matching CRC: such a batch is kept."""
    try:
        return list(iterate_records(found.batch, found.header, MAX_DECOMPRESSED_BYTES))
    except MalformedMessage:
        return None


def read_batches(files: Files, job: CompactionJob, source: CompactionSource) -> Iterator[ScannedBatch]:
    """Yield the verified batches of a source segment. Raises OSError, BadBatch."""
    file = files.open(Segment(job.directory, source.base_offset).path, read_only=True)
    try:
        yield from scan_verified(file, 0, source.size_bytes, source.base_offset)
    finally:
        file.close()
