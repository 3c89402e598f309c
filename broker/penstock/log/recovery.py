"""Recovers a partition's directory after a crash: reads everything after the last checkpoint and truncates torn writes.

Called by `LogDirectory` before the broker serves, for each partition of a directory that was not shut down cleanly. All
bytes after the checkpoint are read and their CRCs verified; nothing below it is read. Everything that recovery keeps is
synced before the broker serves, so it counts as flushed.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.checkpoint import FILE_NAME, Checkpoint, DamagedCheckpoint, select_newest
from penstock.log.compaction.swap import finish_swaps
from penstock.log.deferred_syncs import DeferredSyncs
from penstock.log.epochs import EpochHistory
from penstock.log.index import Indexes, PendingEntries
from penstock.log.index_files import DEFAULT_INTERVAL_BYTES, load_indexes, write_indexes
from penstock.log.scan import BadBatch, scan_verified
from penstock.log.segment import DELETED, LOG, Segment, parse_base_offset
from penstock.log.transient_errors import NO_SPACE
from penstock.log.types import BatchState, CorruptLog
from penstock.runtime.files import File, Files
from penstock.runtime.logging import get_logger
from penstock.wire.batch import CONTROL, BatchHeader

logger = get_logger(__name__)


class RecoveredLog(NamedTuple):
    """A recovered log; `checkpoint` describes all of it, including the state snapshot."""

    checkpoint: Checkpoint
    torn_bytes: int
    """Bytes after the last valid batch, which were removed."""
    read_bytes: int
    """Bytes read by recovery."""


def recover(
    files: Files, directory: str, state: BatchState, from_table: bytes | None, now_ms: int, syncs: DeferredSyncs
) -> RecoveredLog:
    """Recover a partition's directory; it is durable after the next run of `syncs`. Blocks; runs in any thread.

    Raises CorruptLog if data that a checkpoint covers is missing, OSError.
    """
    return Recovery(files, directory, state, now_ms, syncs).run(from_table)


class Recovery:
    """The state of one recovery."""

    def __init__(self, files: Files, directory: str, state: BatchState, now_ms: int, syncs: DeferredSyncs) -> None:
        self.files, self.directory, self.state, self.now_ms = files, directory, state, now_ms
        self.syncs = syncs
        self.torn_bytes = self.read_bytes = 0
        self.damaged: str | None = None
        """Why the checkpoint cannot be used; None if it can, or if there is none."""
        self.gaps = False
        """Whether batches may skip offsets."""
        self.epochs = EpochHistory()
        self.segments: list[Segment] = []

    def run(self, from_table: bytes | None) -> RecoveredLog:
        """Recover the partition. Raises CorruptLog, OSError."""
        checkpoint = self.load_checkpoint(from_table)
        self.gaps = checkpoint.gaps or self.damaged is not None
        self.epochs = EpochHistory(checkpoint.epochs)
        bases = self.remove_leftovers(checkpoint)
        unchecked = self.load_checkpointed(checkpoint, bases)
        end_offset = checkpoint.end_offset
        for number, segment in enumerate(unchecked):
            end_offset, torn = self.verify_segment(segment, end_offset, unchecked[number + 1 :])
            if torn is not None:
                break
        return RecoveredLog(self.finish(checkpoint, end_offset), self.torn_bytes, self.read_bytes)

    def load_checkpoint(self, from_table: bytes | None) -> Checkpoint:
        """Return the newest valid checkpoint and restore the state; an empty one if all must be read."""
        path = f"{self.directory}/{FILE_NAME}"
        try:
            own: bytes | None = self.files.read(path)
        except FileNotFoundError:
            own = None
        try:
            checkpoint = select_newest(own, from_table)
            if checkpoint is not None:
                self.state.restore(checkpoint.snapshot or None)
                return checkpoint
        except (DamagedCheckpoint, ValueError) as e:
            self.damaged = str(e)
            logger.warning("checkpoint is damaged; reading the whole log", path=path, reason=self.damaged)
        self.state.restore(None)
        return Checkpoint(0, 0, 0, [], [], b"")

    def remove_leftovers(self, checkpoint: Checkpoint) -> list[int]:
        """Finish interrupted swaps and deletions; return the base offsets of the remaining segments, in order."""
        files, directory = self.files, self.directory
        finish_swaps(files, directory, checkpoint.sequence)
        bases = set()
        rows = {row.base_offset for row in checkpoint.segments}
        first = checkpoint.segments[0].base_offset if rows else -1
        last = checkpoint.segments[-1].base_offset if rows else -1
        names = files.list(directory)
        for name in names:
            if name.endswith((DELETED, ".tmp")):
                files.remove(f"{directory}/{name}")
                continue
            base = parse_base_offset(name)
            if base is None:
                continue
            if base < first or (base not in rows and base < last):
                # A dropped segment: its files are deleted after a checkpoint without it.
                files.remove(f"{directory}/{name}")
            elif name.endswith(LOG):
                bases.add(base)
            elif f"{base:020d}{LOG}" not in names and base not in rows:
                files.remove(f"{directory}/{name}")
        return sorted(bases)

    def load_checkpointed(self, checkpoint: Checkpoint, bases: list[int]) -> list[Segment]:
        """Load the segments in the checkpoint; return those that must be read, in order."""
        rows = checkpoint.segments
        missing = [row.base_offset for row in rows if row.base_offset not in bases]
        if missing:
            name = f"{self.directory}/{missing[0]:020d}{LOG}"
            raise CorruptLog(f'"{name}" is missing; restore it or remove the directory')
        for row in rows:
            segment = Segment.from_row(self.directory, row, sealed=row is not rows[-1])
            self.segments.append(segment)
            if segment.sealed:
                size = self.file_size(segment)
                if size != row.size_bytes:
                    raise CorruptLog(f'"{segment.path}" has {size} bytes, expected {row.size_bytes}; restore it')
        known = {row.base_offset for row in rows}
        new = [Segment(self.directory, base) for base in bases if base not in known]
        self.segments += new
        return self.segments[len(rows) - 1 :] if rows else new

    def file_size(self, segment: Segment) -> int:
        """Return the size of a segment file."""
        file = self.files.open(segment.path, read_only=True)
        try:
            return file.size()
        finally:
            file.close()

    def verify_segment(self, segment: Segment, end_offset: int, later: list[Segment]) -> tuple[int, BadBatch | None]:
        """Verify the bytes of a segment after the checkpoint and remove what follows an invalid batch.

        Returns (end offset, first invalid batch or None).
        """
        gap = segment.base_offset - end_offset
        if segment.size == 0 and (gap < 0 or (gap > 0 and not self.gaps)):
            torn = BadBatch(0, f"segment starts at offset {segment.base_offset}, expected {end_offset}")
            self.raise_if_acknowledged(segment, torn)
            self.remove_later(segment, torn, [segment, *later])
            return end_offset, torn
        file, read_bytes = self.files.open(segment.path), self.read_bytes
        try:
            verified = self.verify_file(segment, file, end_offset)
            if verified[1] is not None:
                self.truncate(segment, file, verified[1], later)
        except BaseException:
            file.close()
            raise
        if self.read_bytes == read_bytes:
            file.close()
        else:
            self.syncs.add_file(file, self.read_bytes - read_bytes)
        return verified

    def verify_file(self, segment: Segment, file: File, end_offset: int) -> tuple[int, BadBatch | None]:
        """Verify an open segment file and rewrite its valid bytes. The caller truncates the rest and syncs the file."""
        size, checkpointed_bytes = file.size(), segment.size
        if size < checkpointed_bytes:
            raise CorruptLog(f'"{segment.path}" has {size} bytes, expected at least {checkpointed_bytes}; restore it')
        if size == checkpointed_bytes:
            return max(end_offset, segment.end_offset), None
        if checkpointed_bytes:
            segment.indexes = load_indexes(self.files, segment)
        torn: BadBatch | None = None
        expected = max(end_offset, segment.base_offset)
        try:
            epoch, replay = self.epochs.latest, self.state.replay
            for position, header, batch in scan_verified(
                file, checkpointed_bytes, size, expected, contiguous=not self.gaps
            ):
                timestamp_ms = header.max_timestamp_ms
                if position >= segment.indexed_until or timestamp_ms > segment.max_timestamp_ms:
                    segment.add_batch(position, header.base_offset, timestamp_ms, DEFAULT_INTERVAL_BYTES)
                # After a failed sync the kernel marks pages clean that never reached the disk, and another sync would
                # succeed without writing them. The previous process may have ended so: write the pages again.
                file.write_at(position, batch)
                segment.size = position + len(batch)
                segment.end_offset = header.base_offset + header.last_offset_delta + 1
                if header.leader_epoch > epoch:
                    epoch = header.leader_epoch
                    self.epochs.assign(epoch, header.base_offset)
                if header.attributes & CONTROL:
                    self.replay_control(position, header, batch)
                else:
                    replay(header)
        except BadBatch as e:
            torn = e
        self.read_bytes += size - checkpointed_bytes
        return max(end_offset, segment.end_offset), torn

    def truncate(self, segment: Segment, file: File, torn: BadBatch, later: list[Segment]) -> None:
        """Truncate a segment before its first invalid batch, and remove the later segments first.

        A log that may have gaps would accept a later segment that a crash brings back, once the invalid batch is gone.
        """
        self.raise_if_acknowledged(segment, torn)
        if segment.size == 0:
            self.remove_later(segment, torn, [segment, *later])
            return
        self.torn_bytes += file.size() - segment.size
        self.remove_later(segment, torn, later)
        file.truncate(segment.size)

    def replay_control(self, position: int, header: BatchHeader, batch: memoryview) -> None:
        """Apply a control batch to the state. Raises CorruptLog if it cannot be parsed."""
        try:
            self.state.replay_control(header, batch)
        except ValueError as e:  # the CRC matches, so this is what was written
            raise CorruptLog(f'"{self.directory}": invalid control batch at byte {position}: {e}') from e

    def raise_if_acknowledged(self, segment: Segment, torn: BadBatch) -> None:
        """Raise CorruptLog if a segment other than the last is damaged and the checkpoint is unreadable.

        Without its checkpoint it is unknown which records were acknowledged, so only the last segment's end is
        truncated.
        """
        if self.damaged is not None and segment is not self.segments[-1]:
            raise CorruptLog(
                f'"{segment.path}": {torn}; the checkpoint is damaged too ({self.damaged}), so acknowledged records'
                " may be lost; restore the file, or remove it and all later segments"
            )

    def remove_later(self, segment: Segment, torn: BadBatch, later: list[Segment]) -> None:
        """Remove the segments after a torn batch, durably."""
        for one in later:
            self.torn_bytes += self.file_size(one)
            for path in (one.path, one.index_path, one.time_index_path):
                if self.files.exists(path):
                    self.files.remove(path)
            self.segments.remove(one)
        if later:
            self.files.sync_dir(self.directory)
        logger.warning("torn end of log truncated", segment=segment.path, where=str(torn), bytes=self.torn_bytes)

    def write_indexes(self, segment: Segment, pending: PendingEntries) -> None:
        """Write index entries; on a full disk they stay unwritten and the next read rebuilds them."""
        try:
            write_indexes(self.files, segment, pending, sync=False)
        except OSError as e:
            if e.errno not in NO_SPACE:
                raise

    def finish(self, checkpoint: Checkpoint, end_offset: int) -> Checkpoint:
        """Write the indexes and return the checkpoint of the recovered log."""
        for number, segment in enumerate(self.segments):
            if segment is not self.segments[-1] and not segment.sealed:
                if segment.indexes is None and segment.size:
                    segment.indexes = load_indexes(self.files, segment)
                segment.seal(self.now_ms)
            if segment.indexes is None:
                segment.indexes = Indexes() if segment.size == 0 else None
            if segment.indexes is not None:
                self.write_indexes(segment, segment.indexes.pop_unwritten())
                segment.record_written_indexes()
            assert number == 0 or self.segments[number - 1].end_offset <= segment.end_offset, "segments are in order"
        if self.read_bytes or self.torn_bytes or len(self.segments) > len(checkpoint.segments):
            # The last condition: the name of a new segment may not have reached the disk.
            self.syncs.add_directory(self.directory)
        first = self.segments[0].base_offset if self.segments else 0
        start_offset = max(checkpoint.start_offset, min(first, end_offset))
        self.epochs.truncate(end_offset)
        snapshot = self.state.snapshot() if end_offset else b""
        rows = [s.to_row() for s in self.segments]
        return Checkpoint(
            checkpoint.sequence + 1,
            start_offset,
            end_offset,
            rows,
            self.epochs.entries(),
            snapshot,
            checkpoint.compacted_until,
            self.gaps,
        )
