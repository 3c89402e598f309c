"""Cleans segments: keeps the last record of each key and writes the result to new files (KIP-58, KIP-534).

Runs in the worker process. Offsets never change; a batch keeps its offset range, producer fields and codec. Records of
aborted transactions are removed; those of committed ones count like others. A record without a value is a tombstone; it
stays for `delete.retention.ms` after the first cleaning that reads it, which is recorded in its batch (the delete
horizon of KIP-534). The last batch of each producer stays even if empty, and so do control batches.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from penstock.log.compaction.job import CompactionJob, CompactionResult, CompactionSource
from penstock.log.compaction.last_offsets import LastOffsets, decode_records, read_batches, read_last_offsets
from penstock.log.compaction.swap import CLEANED
from penstock.log.index_files import write_indexes
from penstock.log.scan import BadBatch, ScannedBatch
from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment, SegmentRow
from penstock.log.transient_errors import wait_for_descriptor
from penstock.runtime.files import File, Files
from penstock.wire.batch import CODEC_MASK, BatchHeader
from penstock.wire.records import Record, build_batch
from penstock.wire.schema import MalformedMessage

DELETE_HORIZON = 0x40
"""Batch attribute: the base timestamp is the time from which the batch's tombstones may be removed (KIP-534)."""
WRITE_BYTES = 1 << 20


def cleaned_name(path: str, job: str) -> str:
    """Return the path of a cleaned file of a job."""
    return f"{path}.{job}{CLEANED}"


def clean_segments(files: Files, job: CompactionJob) -> CompactionResult:
    """Run a job. Raises OSError, BadBatch, MalformedMessage; the caller then discards its files."""
    last = read_last_offsets(files, job)
    sources = [source for source in job.sources if source.base_offset < last.covered_until]
    cleaner = Cleaner(files, job, last)
    rows = cleaner.run(sources)
    if not cleaner.changed and len(rows) == len(sources):
        remove_files(files, job.directory, f".{job.name}{CLEANED}")
        return CompactionResult(job.name, [], [], last.covered_until, cleaner.kept, cleaner.dropped)
    replaced = [source.base_offset for source in sources]
    return CompactionResult(job.name, replaced, rows, last.covered_until, cleaner.kept, cleaner.dropped)


class Cleaner:
    """Writes the kept records of the source segments to new segments."""

    def __init__(self, files: Files, job: CompactionJob, last: LastOffsets) -> None:
        self.files, self.job, self.last = files, job, last
        self.kept = self.dropped = 0
        self.changed = False
        self.rows: list[SegmentRow] = []
        self.segment = Segment(job.directory, 0)
        self.file: File | None = None
        self.buffer = bytearray()

    def run(self, sources: list[CompactionSource]) -> list[SegmentRow]:
        """Clean the sources and return the rows of the new segments, whose files are synced."""
        if not sources:
            return []
        try:
            self.start_segment(sources[0].base_offset)
            for source in sources:
                for found in read_batches(self.files, self.job, source):
                    batch = self.clean_batch(found)
                    if batch is None:
                        self.changed = True
                    else:
                        self.append_batch(found.header, batch)
            self.finish_segment(sources[-1].end_offset)
        finally:
            if self.file is not None:
                self.file.close()
        return self.rows

    def start_segment(self, base_offset: int) -> None:
        """Start a new segment."""
        self.segment = Segment(self.job.directory, base_offset)
        self.file = self.files.open(cleaned_name(self.segment.path, self.job.name), create=True)
        self.file.truncate(0)

    def append_batch(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        """Append a batch, to a new segment if the current one is full."""
        segment, job = self.segment, self.job
        wide = header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
        if segment.size and (wide or segment.size + len(batch) > job.segment_bytes):
            self.finish_segment(header.base_offset)
            self.start_segment(header.base_offset)
            segment = self.segment
        segment.add_batch(segment.size, header.base_offset, header.max_timestamp_ms, job.index_interval_bytes)
        segment.size += len(batch)
        self.buffer += batch
        if len(self.buffer) >= WRITE_BYTES:
            self.flush_buffer()

    def flush_buffer(self) -> None:
        """Write the buffered batches."""
        assert self.file is not None, "a segment is open"
        self.file.append(self.buffer)
        self.buffer.clear()

    def finish_segment(self, end_offset: int) -> None:
        """Sync the current segment with its indexes, and add its row."""
        self.flush_buffer()
        file, self.file = self.file, None
        assert file is not None, "a segment is open"
        try:
            file.sync()
        finally:
            file.close()
        segment, job = self.segment, self.job
        segment.end_offset = end_offset
        segment.seal(job.now_ms)
        indexes = segment.indexes
        assert indexes is not None, "sealing creates indexes"
        pending = indexes.pop_unwritten()
        segment.record_written_indexes()
        index_path = cleaned_name(segment.index_path, job.name)
        target = CleanedPaths(index_path, cleaned_name(segment.time_index_path, job.name))
        write_indexes(self.files, target, pending, sync=True)
        self.rows.append(segment.to_row())

    def clean_batch(self, found: ScannedBatch) -> bytes | memoryview | None:
        """Return what remains of a batch: all of it, a rebuilt batch, or None."""
        header = found.header
        if header.is_control or header.base_offset >= self.last.covered_until:
            self.kept += header.record_count
            return found.batch
        records = decode_records(found)
        if records is None:
            self.kept += header.record_count
            return found.batch
        horizon_ms = header.base_timestamp_ms if header.attributes & DELETE_HORIZON else None
        kept = [] if self.last.is_aborted(header) else [r for r in records if self.is_kept(r, horizon_ms)]
        self.kept += len(kept)
        self.dropped += len(records) - len(kept)
        tombstones = self.tombstones_applied(header) and any(r.value is None for r in kept)
        if len(kept) == len(records) and (not tombstones or horizon_ms is not None):
            return found.batch if records or self.last.is_last_of_producer(header) else None
        self.changed = True
        if not kept and not self.last.is_last_of_producer(header):
            return None
        return rebuild_batch(
            header, kept, horizon_ms, self.job.now_ms + self.job.delete_retention_ms if tombstones else None
        )

    def is_kept(self, record: Record, horizon_ms: int | None) -> bool:
        """Return whether compaction keeps a record."""
        if record.key is None:
            return False
        if self.last.is_superseded(record):
            return False
        return record.value is not None or horizon_ms is None or horizon_ms > self.job.now_ms

    def tombstones_applied(self, header: BatchHeader) -> bool:
        """Return whether the records before a batch's tombstones were removed on their account.

        Earlier releases compacted transactions without reading their outcome: tombstones from then stay.
        """
        is_old = header.last_offset < self.job.dirty_offset and not header.attributes & DELETE_HORIZON
        return not (header.is_transactional and is_old)


class CleanedPaths(NamedTuple):
    """The index file paths of a cleaned segment, for `write_indexes`."""

    index_path: str
    time_index_path: str


def rebuild_batch(
    header: BatchHeader, kept: list[Record], old_horizon_ms: int | None, new_horizon_ms: int | None
) -> bytes:
    """Return a batch that replaces `header`'s with fewer records."""
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


def run_job(files: Files, job: CompactionJob) -> CompactionResult:
    """Run a job; on an error, remove its files and return the reason."""
    try:
        return clean_segments(files, job)
    except (OSError, BadBatch, MalformedMessage, ValueError) as e:
        with contextlib.suppress(OSError):
            remove_files(files, job.directory, f".{job.name}{CLEANED}")
        return CompactionResult(job.name, error=f"{type(e).__name__}: {e}")


def remove_files(files: Files, directory: str, suffix: str) -> None:
    """Remove the files of a directory that end in `suffix`. Runs in a thread, as it needs a descriptor."""
    for name in wait_for_descriptor(files.list, directory):
        if name.endswith(suffix):
            files.remove(f"{directory}/{name}")
