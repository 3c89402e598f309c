"""The first pass of compaction: finds the last offset of each key, and what became of transactions (KIP-58, KIP-98).

Called by `cleaner` in the worker process. Transactions are told by their markers, which compaction leaves in place: a
committed one's records count when its marker has been read, an aborted one's never. Where the marker is not among what
is read, the pass counts only up to where that transaction began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from penstock.log.compaction.job import CompactionJob, CompactionSource
from penstock.log.scan import ScannedBatch, verify
from penstock.log.segment import Segment
from penstock.runtime.files import Files
from penstock.wire.batch import BatchHeader
from penstock.wire.control_batch import parse_marker
from penstock.wire.records import Record, iterate_records
from penstock.wire.schema import MalformedMessage

MAX_DECOMPRESSED_BYTES = 256 << 20
DIGEST_BYTES = 16


class Span(NamedTuple):
    """A transaction's first offset as far as the log goes back, and its marker's."""

    first_offset: int
    marker_offset: int


class LastOffsets:
    """What the pass has found out so far. Batches come in offset order."""

    def __init__(self, job: CompactionJob) -> None:
        self.job = job
        self.offsets: dict[bytes, int] = {}
        """By key, the offset of its last record that counts."""
        self.until = job.dirty_offset
        """Below it all has been taken into account, and every transaction is decided."""
        self.producers: dict[int, int] = {}
        """The base offset of each producer's last batch."""
        self.open: dict[int, int] = {}
        """By producer, where its transaction began whose marker has not come yet."""
        self.waiting: dict[int, dict[bytes, int]] = {}
        """By producer, the keys of that transaction."""
        self.aborted: dict[int, list[Span]] = {}
        """By producer, those that ended behind `dirty_offset`, in order."""
        self.held = 0
        """Entries of `waiting` and `aborted`."""
        self.full = False

    def take(self, found: ScannedBatch) -> None:
        header = found.header
        if header.producer_id >= 0:
            self.producers[header.producer_id] = header.base_offset
        if header.is_control:
            self.end(found)
        elif header.is_transactional and not self.full:
            self.open.setdefault(header.producer_id, header.base_offset)
        if self.full or header.last_offset < self.job.dirty_offset:
            return
        if not header.is_control:
            self.take_keys(found)
        self.until = header.last_offset + 1
        self.full = len(self.offsets) + self.held >= self.job.max_keys

    def take_keys(self, found: ScannedBatch) -> None:
        keys = self.offsets
        if found.header.is_transactional:
            keys = self.waiting.setdefault(found.header.producer_id, {})
            self.held -= len(keys)
        for record in records_of(found) or ():
            if record.key is not None:
                keys[digest(record.key)] = record.offset
        if keys is not self.offsets:
            self.held += len(keys)

    def end(self, found: ScannedBatch) -> None:
        """Takes in a marker; nothing for one whose transaction has no data any more, or none that is looked at."""
        marker = parse_marker(found.header, found.batch)
        first_offset = self.open.pop(marker.producer_id, None) if marker is not None else None
        if marker is None or first_offset is None:
            return
        keys = self.waiting.pop(marker.producer_id, {})
        self.held -= len(keys)
        if marker.committed:
            for key, offset in keys.items():
                if offset > self.offsets.get(key, -1):
                    self.offsets[key] = offset
        elif found.header.base_offset >= self.job.dirty_offset:
            self.aborted.setdefault(marker.producer_id, []).append(Span(first_offset, found.header.base_offset))
            self.held += 1

    def finish(self) -> None:
        """All has been read: what is open now is undecided."""
        undecided = min(self.open.values(), default=self.until)
        self.until = max(min(self.until, undecided), self.job.dirty_offset)
        self.waiting.clear()

    def replaces(self, record: Record) -> bool:
        """Whether a later record of the same key counts."""
        return record.key is not None and self.offsets.get(digest(record.key), -1) > record.offset

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of data is known to belong to a transaction that was aborted."""
        spans = self.aborted.get(header.producer_id) if header.is_transactional else None
        if spans is None:
            return False
        at = bisect_right(spans, header.base_offset, key=lambda span: span.first_offset) - 1
        return at >= 0 and header.base_offset < spans[at].marker_offset

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        return header.producer_id >= 0 and self.producers.get(header.producer_id) == header.base_offset


def read_last_offsets(files: Files, job: CompactionJob) -> LastOffsets:
    """Reads the keys behind `dirty_offset`, until there are `max_keys` of them or no more.

    Raises OSError, BadBatch, MalformedMessage.
    """
    last = LastOffsets(job)
    for source in job.sources:
        for found in batches_of(files, job, source):
            last.take(found)
        if not last.full:
            last.until = max(last.until, source.end_offset)
    last.finish()
    return last


def digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=DIGEST_BYTES).digest()


def records_of(found: ScannedBatch) -> list[Record] | None:
    """The records of a batch; None where a producer sent bytes that are none under a right CRC: that batch stays."""
    try:
        return list(iterate_records(found.batch, found.header, MAX_DECOMPRESSED_BYTES))
    except MalformedMessage:
        return None


def batches_of(files: Files, job: CompactionJob, source: CompactionSource) -> Iterator[ScannedBatch]:
    file = files.open(Segment(job.directory, source.base_offset).path, read_only=True)
    try:
        yield from verify(file, 0, source.size_bytes, source.base_offset)
    finally:
        file.close()
