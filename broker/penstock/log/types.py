"""The values that pass between the log and the rooms above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.runtime.files import File
from penstock.wire.batch import BatchHeader
from penstock.wire.primitives import Buffer


class LogSlice:
    """A run of whole batches in one segment file, for sendfile; the file stays readable until `release`.

    Whoever takes one must release it once, also when nothing was sent (a segment is not closed, truncated or unlinked
    under a slice in use).
    """

    __slots__ = ("_release", "file", "next_offset", "position", "size")

    def __init__(self, file: File, position: int, size: int, release: SliceRelease, next_offset: int = -1) -> None:
        self.file, self.position, self.size, self._release = file, position, size, release
        self.next_offset = next_offset
        """The offset behind the last batch, or beyond."""

    def release(self) -> None:
        self._release()


class SliceRelease(Protocol):
    def __call__(self) -> None: ...


class BatchState(Protocol):
    """State derived from the batches of a log (producers, their transactions), which the log stores and rebuilds on
    opening."""

    def restore(self, snapshot: bytes | None) -> None:
        """Starts from a snapshot, or from nothing. Raises ValueError where the bytes are no snapshot."""

    def replay(self, header: BatchHeader) -> None:
        """Takes in the next batch behind the snapshot, where it holds data."""

    def replay_control(self, header: BatchHeader, batch: Buffer) -> None:
        """Takes in the next batch where it is a control batch, which says something in its record. Raises ValueError
        where that cannot be read."""

    def forget_before(self, start_offset: int) -> None:
        """The log begins at `start_offset` now: what concerns only offsets below it may go."""

    def snapshot(self) -> bytes:
        """The state as of the log's end."""


@dataclass(frozen=True, slots=True)
class LogTimestamp:
    """An answer of a search by time: the offset, its record's timestamp in ms, the leader epoch of its batch."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class LogError(Exception):
    """Something is wrong with a partition's files; the message names the file."""


class LogFull(LogError):
    """No space is left; nothing of the batch was kept, and later appends may succeed."""


class LogDirFailed(LogError):
    """The log directory has stopped for good after an I/O error."""


class LogBusy(LogError):
    """The log is being closed; a little later it can be opened again."""


class OffsetOutOfRange(LogError):
    """The offset is before the log's start or past its end."""


class CorruptLog(LogError):
    """Bytes in the middle of the log are not what was written."""
