"""Opens a partition's directory after a crash: reads what came after the last checkpoint and cuts what is torn.

Called by `LogDir` before the broker serves, for each partition of a directory that was not shut down cleanly. All
bytes behind the checkpoint are read and their CRCs compared; nothing below it is. Ends with everything that is kept
on disk, so that it counts as flushed.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.checkpoint import FILE_NAME, Checkpoint, DamagedCheckpoint, newest
from penstock.log.compaction.swap import finish_swaps
from penstock.log.epochs import EpochHistory
from penstock.log.index import Indexes, PendingEntries
from penstock.log.index_files import DEFAULT_INTERVAL_BYTES, load_indexes, write_indexes
from penstock.log.scan import BadBatch, verify
from penstock.log.segment import DELETED, LOG, Segment, parse_base_offset
from penstock.log.space import NO_SPACE
from penstock.log.types import BatchState, CorruptLog
from penstock.runtime.files import File, Files
from penstock.runtime.logging import get_logger
from penstock.wire.batch import CONTROL, BatchHeader

logger = get_logger(__name__)


class Recovered(NamedTuple):
    """A log as it was found. `checkpoint` describes it as a whole, snapshot included."""

    checkpoint: Checkpoint
    torn_bytes: int
    """Bytes behind the last sound batch, which are gone now."""
    read_bytes: int
    """Bytes that were read to get here."""


def recover(files: Files, directory: str, state: BatchState, from_table: bytes | None, now_ms: int) -> Recovered:
    """Repairs a partition's directory. Blocks; may be called in any thread.

    Raises CorruptLog where what a checkpoint vouches for is not there, OSError.
    """
    return Recovery(files, directory, state, now_ms).run(from_table)


class Recovery:
    """The state of one recovery."""

    def __init__(self, files: Files, directory: str, state: BatchState, now_ms: int) -> None:
        self.files, self.directory, self.state, self.now_ms = files, directory, state, now_ms
        self.torn_bytes = self.read_bytes = 0
        self.damaged: str | None = None
        """Why the checkpoint cannot be used, where there was one."""
        self.gaps = False
        """Whether offsets may be missing between batches."""
        self.epochs = EpochHistory()
        self.segments: list[Segment] = []

    def run(self, from_table: bytes | None) -> Recovered:
        checkpoint = self.load_checkpoint(from_table)
        self.gaps = checkpoint.gaps or self.damaged is not None
        self.epochs = EpochHistory(checkpoint.epochs)
        bases = self.clear_leftovers(checkpoint)
        unchecked = self.take_checkpointed(checkpoint, bases)
        end_offset = checkpoint.end_offset
        for number, segment in enumerate(unchecked):
            end_offset, torn = self.check(segment, end_offset)
            if torn is not None:
                self.cut(segment, torn, unchecked[number + (1 if segment.size else 0) :])
                break
        return Recovered(self.finish(checkpoint, end_offset), self.torn_bytes, self.read_bytes)

    def load_checkpoint(self, from_table: bytes | None) -> Checkpoint:
        """The newest sound checkpoint with the state restored from it; an empty one where all must be read."""
        path = f"{self.directory}/{FILE_NAME}"
        try:
            own: bytes | None = self.files.read(path)
        except FileNotFoundError:
            own = None
        try:
            checkpoint = newest(own, from_table)
            if checkpoint is not None:
                self.state.restore(checkpoint.snapshot or None)
                return checkpoint
        except (DamagedCheckpoint, ValueError) as e:
            self.damaged = str(e)
            logger.warning("a checkpoint is damaged: the whole log is read", path=path, reason=self.damaged)
        self.state.restore(None)
        return Checkpoint(0, 0, 0, [], [], b"")

    def clear_leftovers(self, checkpoint: Checkpoint) -> list[int]:
        """Finishes what a crash interrupted; returns the base offsets of the segments that count, in order."""
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
                # It was dropped: a checkpoint without it came before its files were to go.
                files.remove(f"{directory}/{name}")
            elif name.endswith(LOG):
                bases.add(base)
            elif f"{base:020d}{LOG}" not in names and base not in rows:
                files.remove(f"{directory}/{name}")
        return sorted(bases)

    def take_checkpointed(self, checkpoint: Checkpoint, bases: list[int]) -> list[Segment]:
        """Takes over the segments that the checkpoint vouches for; returns those that must be read, in order."""
        rows = checkpoint.segments
        missing = [row.base_offset for row in rows if row.base_offset not in bases]
        if missing:
            raise CorruptLog(f"{self.directory}/{missing[0]:020d}{LOG} is gone: restore it, or remove the directory")
        for row in rows:
            segment = Segment.from_row(self.directory, row, sealed=row is not rows[-1])
            self.segments.append(segment)
            if segment.sealed:
                size = self.size_of(segment)
                if size != row.size_bytes:
                    raise CorruptLog(f"{segment.path} has {size} bytes where {row.size_bytes} were on disk")
        known = {row.base_offset for row in rows}
        new = [Segment(self.directory, base) for base in bases if base not in known]
        self.segments += new
        return self.segments[len(rows) - 1 :] if rows else new

    def size_of(self, segment: Segment) -> int:
        file = self.files.open(segment.path, read_only=True)
        try:
            return file.size()
        finally:
            file.close()

    def check(self, segment: Segment, end_offset: int) -> tuple[int, BadBatch | None]:
        """Reads what of a segment no checkpoint vouches for; (offset behind it, where it is torn if it is)."""
        gap = segment.base_offset - end_offset
        if segment.size == 0 and (gap < 0 or (gap > 0 and not self.gaps)):
            torn = BadBatch(0, f"the segment begins at offset {segment.base_offset} where {end_offset} was expected")
            self.refuse_if_known_good(segment, torn)
            return end_offset, torn
        file = self.files.open(segment.path)
        try:
            return self.check_file(segment, file, end_offset)
        finally:
            file.close()

    def check_file(self, segment: Segment, file: File, end_offset: int) -> tuple[int, BadBatch | None]:
        size, vouched = file.size(), segment.size
        if size < vouched:
            raise CorruptLog(f"{segment.path} has {size} bytes where {vouched} were on disk")
        if size == vouched:
            return max(end_offset, segment.end_offset), None
        if vouched:
            segment.indexes = load_indexes(self.files, segment)
        torn: BadBatch | None = None
        expected = max(end_offset, segment.base_offset)
        try:
            epoch, replay = self.epochs.latest, self.state.replay
            for position, header, batch in verify(file, vouched, size, expected, contiguous=not self.gaps):
                timestamp_ms = header.max_timestamp_ms
                if position >= segment.indexed_until or timestamp_ms > segment.max_timestamp_ms:
                    segment.note(position, header.base_offset, timestamp_ms, DEFAULT_INTERVAL_BYTES)
                # After a failed sync the kernel takes pages for clean that never reached the disk: another sync alone
                # would promise what is not there. Who can say that the last run did not end so?
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
        self.read_bytes += size - vouched
        if torn is not None:
            self.torn_bytes += size - segment.size
            self.refuse_if_known_good(segment, torn)
            file.truncate(segment.size)
        file.sync()
        return max(end_offset, segment.end_offset), torn

    def replay_control(self, position: int, header: BatchHeader, batch: memoryview) -> None:
        try:
            self.state.replay_control(header, batch)
        except ValueError as e:  # its CRC is right, so these are the bytes that were written
            raise CorruptLog(f"{self.directory}: the control batch at byte {position} is none: {e}") from e

    def refuse_if_known_good(self, segment: Segment, torn: BadBatch) -> None:
        """Without its checkpoint nobody knows what was acknowledged: then only the end of the last segment is cut."""
        if self.damaged is not None and segment is not self.segments[-1]:
            raise CorruptLog(
                f"{segment.path}: {torn}; later segments follow and the checkpoint is damaged ({self.damaged}),"
                " so acknowledged records may be lost: restore the file, or remove it and all later ones"
            )

    def cut(self, segment: Segment, torn: BadBatch, later: list[Segment]) -> None:
        """Drops what lies behind a torn batch."""
        for one in later:
            self.torn_bytes += self.size_of(one)
            for path in (one.path, one.index_path, one.time_index_path):
                if self.files.exists(path):
                    self.files.remove(path)
            self.segments.remove(one)
        logger.warning(
            "the end of a log was torn and is cut off", segment=segment.path, where=str(torn), bytes=self.torn_bytes
        )

    def write_indexes(self, segment: Segment, pending: PendingEntries) -> None:
        """On a full disk they stay unwritten: whoever reads them next finds that out and builds them again."""
        try:
            write_indexes(self.files, segment, pending, sync=False)
        except OSError as e:
            if e.errno not in NO_SPACE:
                raise

    def finish(self, checkpoint: Checkpoint, end_offset: int) -> Checkpoint:
        """Writes the indexes of what was read, makes everything durable, and says what there is."""
        for number, segment in enumerate(self.segments):
            if segment is not self.segments[-1] and not segment.sealed:
                if segment.indexes is None and segment.size:
                    segment.indexes = load_indexes(self.files, segment)
                segment.seal(self.now_ms)
            if segment.indexes is None:
                segment.indexes = Indexes() if segment.size == 0 else None
            if segment.indexes is not None:
                self.write_indexes(segment, segment.indexes.take_unwritten())
                segment.note_written_indexes()
            assert number == 0 or self.segments[number - 1].end_offset <= segment.end_offset, "segments rise"
        if self.read_bytes or self.torn_bytes or len(self.segments) > len(checkpoint.segments):
            # also where only the name of a new segment may not have reached the disk
            self.files.sync_dir(self.directory)
        first = self.segments[0].base_offset if self.segments else 0
        start_offset = max(checkpoint.start_offset, min(first, end_offset))
        self.epochs.truncate(end_offset)
        snapshot = self.state.snapshot() if end_offset else b""
        rows = [s.row() for s in self.segments]
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
