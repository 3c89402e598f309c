"""Cleans segments: keeps of each key the last record, and writes what stays to new files (KIP-58, KIP-534).

Runs in the worker process. Offsets never change, a batch keeps its span of offsets, its producer's fields and its
codec. Of transactions, aborted records go, and committed ones count like others. A record without a value says that its
key is gone; it stays for delete.retention.ms after the first cleaning that saw it, which is noted in its batch (the
delete horizon of KIP-534). The last batch of each producer stays even if empty, and so do control batches.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from penstock.log.compaction.job import CompactionJob, CompactionResult, CompactionSource
from penstock.log.compaction.last_offsets import LastOffsets, batches_of, read_last_offsets, records_of
from penstock.log.compaction.swap import CLEANED
from penstock.log.index_files import write_indexes
from penstock.log.scan import BadBatch, ScannedBatch
from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment, SegmentRow
from penstock.log.space import patiently
from penstock.runtime.files import File, Files
from penstock.wire.batch import CODEC_MASK, BatchHeader
from penstock.wire.records import Record, build_batch
from penstock.wire.schema import MalformedMessage

DELETE_HORIZON = 0x40
"""The attribute that makes a batch's base timestamp the time from which its tombstones may go (KIP-534)."""
WRITE_BYTES = 1 << 20


def cleaned_name(path: str, job: str) -> str:
    return f"{path}.{job}{CLEANED}"


def clean(files: Files, job: CompactionJob) -> CompactionResult:
    """Does a job. Raises OSError, BadBatch, MalformedMessage; then no file of it is to be used."""
    last = read_last_offsets(files, job)
    sources = [source for source in job.sources if source.base_offset < last.until]
    cleaner = Cleaner(files, job, last)
    rows = cleaner.run(sources)
    if not cleaner.changed and len(rows) == len(sources):
        remove_files(files, job.directory, f".{job.name}{CLEANED}")
        return CompactionResult(job.name, [], [], last.until, cleaner.kept, cleaner.dropped)
    replaced = [source.base_offset for source in sources]
    return CompactionResult(job.name, replaced, rows, last.until, cleaner.kept, cleaner.dropped)


class Cleaner:
    """Writes what stays of the sources to new segments."""

    def __init__(self, files: Files, job: CompactionJob, last: LastOffsets) -> None:
        self.files, self.job, self.last = files, job, last
        self.kept = self.dropped = 0
        self.changed = False
        self.rows: list[SegmentRow] = []
        self.segment = Segment(job.directory, 0)
        self.file: File | None = None
        self.out = bytearray()

    def run(self, sources: list[CompactionSource]) -> list[SegmentRow]:
        """The rows of the new segments; their files are on disk."""
        if not sources:
            return []
        try:
            self.begin(sources[0].base_offset)
            for source in sources:
                for found in batches_of(self.files, self.job, source):
                    batch = self.cleaned(found)
                    if batch is None:
                        self.changed = True
                    else:
                        self.add(found.header, batch)
            self.end(sources[-1].end_offset)
        finally:
            if self.file is not None:
                self.file.close()
        return self.rows

    def begin(self, base_offset: int) -> None:
        self.segment = Segment(self.job.directory, base_offset)
        self.file = self.files.open(cleaned_name(self.segment.path, self.job.name), create=True)
        self.file.truncate(0)

    def add(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        segment, job = self.segment, self.job
        wide = header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        if segment.size and (wide or segment.size + len(batch) > job.segment_bytes):
            self.end(header.base_offset)
            self.begin(header.base_offset)
            segment = self.segment
        segment.note(segment.size, header.base_offset, header.max_timestamp_ms, job.index_interval_bytes)
        segment.size += len(batch)
        self.out += batch
        if len(self.out) >= WRITE_BYTES:
            self.write()

    def write(self) -> None:
        assert self.file is not None, "a segment was begun"
        self.file.append(self.out)
        self.out.clear()

    def end(self, end_offset: int) -> None:
        """Makes the present segment durable, with its indexes, and notes its row."""
        self.write()
        file, self.file = self.file, None
        assert file is not None, "a segment was begun"
        try:
            file.sync()
        finally:
            file.close()
        segment, job = self.segment, self.job
        segment.end_offset = end_offset
        segment.seal(job.now_ms)
        indexes = segment.indexes
        assert indexes is not None, "sealing makes indexes"
        pending = indexes.take_unwritten()
        segment.note_written_indexes()
        index_path = cleaned_name(segment.index_path, job.name)
        target = CleanedPaths(index_path, cleaned_name(segment.time_index_path, job.name))
        write_indexes(self.files, target, pending, sync=True)
        self.rows.append(segment.row())

    def cleaned(self, found: ScannedBatch) -> bytes | memoryview | None:
        """What stays of a batch: all of it, a new batch, or nothing."""
        header = found.header
        if header.is_control or header.base_offset >= self.last.until:
            self.kept += header.record_count
            return found.batch
        records = records_of(found)
        if records is None:
            self.kept += header.record_count
            return found.batch
        horizon_ms = header.base_timestamp_ms if header.attributes & DELETE_HORIZON else None
        kept = [] if self.last.is_aborted(header) else [r for r in records if self.stays(r, horizon_ms)]
        self.kept += len(kept)
        self.dropped += len(records) - len(kept)
        tombstones = self.took_effect(header) and any(r.value is None for r in kept)
        if len(kept) == len(records) and (not tombstones or horizon_ms is not None):
            return found.batch if records or self.last.is_last_of_producer(header) else None
        self.changed = True
        if not kept and not self.last.is_last_of_producer(header):
            return None
        return rebuilt(header, kept, horizon_ms, self.job.now_ms + self.job.delete_retention_ms if tombstones else None)

    def stays(self, record: Record, horizon_ms: int | None) -> bool:
        if record.key is None:
            return False
        if self.last.replaces(record):
            return False
        return record.value is not None or horizon_ms is None or horizon_ms > self.job.now_ms

    def took_effect(self, header: BatchHeader) -> bool:
        """Whether what came before a batch's tombstones was dropped for them. That of transactions was not when they
        were compacted without looking at outcomes, as was once done: those tombstones stay."""
        is_old = header.last_offset < self.job.dirty_offset and not header.attributes & DELETE_HORIZON
        return not (header.is_transactional and is_old)


class CleanedPaths(NamedTuple):
    """Where the index files of a cleaned segment are, for `write_indexes`."""

    index_path: str
    time_index_path: str


def rebuilt(header: BatchHeader, kept: list[Record], old_horizon_ms: int | None, new_horizon_ms: int | None) -> bytes:
    """A batch with fewer records in the place of an old one."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    base_timestamp_ms = header.base_timestamp_ms
    horizon_ms = new_horizon_ms if old_horizon_ms is None else old_horizon_ms
    if horizon_ms is not None and new_horizon_ms is not None:
        attributes |= DELETE_HORIZON
        base_timestamp_ms = horizon_ms
    return build_batch(
        kept,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        codec=header.codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.leader_epoch,
        attributes=attributes,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
    )


def clean_safely(files: Files, job: CompactionJob) -> CompactionResult:
    """Does a job; where it cannot, removes its files and says why."""
    try:
        return clean(files, job)
    except (OSError, BadBatch, MalformedMessage, ValueError) as e:
        with contextlib.suppress(OSError):
            remove_files(files, job.directory, f".{job.name}{CLEANED}")
        return CompactionResult(job.name, error=f"{type(e).__name__}: {e}")


def remove_files(files: Files, directory: str, suffix: str) -> None:
    """In a thread, as it needs a descriptor."""
    for name in patiently(files.list, directory):
        if name.endswith(suffix):
            files.remove(f"{directory}/{name}")
