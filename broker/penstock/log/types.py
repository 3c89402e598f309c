"""Values and errors that the log exchanges with its callers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.runtime.files import File
from penstock.wire.batch import BatchHeader
from penstock.wire.primitives import Buffer


class LogSlice:
    """A run of whole batches in one segment file, for sendfile; the file stays readable until `release`.

    The owner must call `release` exactly once, even if nothing was sent: a segment is not closed, truncated or unlinked
    while a slice is in use.
    """

    __slots__ = ("_release", "file", "next_offset", "position", "size")

    def __init__(self, file: File, position: int, size: int, release: SliceRelease, next_offset: int = -1) -> None:
        self.file, self.position, self.size, self._release = file, position, size, release
        self.next_offset = next_offset
        """Offset after the last batch, or higher."""

    def release(self) -> None:
        """Release the segment file."""
        self._release()


class SliceRelease(Protocol):
    """The callback that releases a slice."""

    def __call__(self) -> None:
        """Release the segment file."""


class BatchState(Protocol):
    """State derived from the batches of a log (producers, transactions); the log stores it and rebuilds it on open."""

    def restore(self, snapshot: bytes | None) -> None:
        """Replace the state by a snapshot, or clear it. Raises ValueError if the bytes are not a snapshot."""

    def replay(self, header: BatchHeader) -> None:
        """Apply the next data batch after the snapshot."""

    def replay_control(self, header: BatchHeader, batch: Buffer) -> None:
        """Apply the next control batch. Raises ValueError if its record cannot be parsed."""

    def forget_before(self, start_offset: int) -> None:
        """Drop state that only concerns offsets below the log's new `start_offset`."""

    def snapshot(self) -> bytes:
        """Return the state as of the log's end."""


@dataclass(frozen=True, slots=True)
class LogTimestamp:
    """A search result: the offset, its record's timestamp in ms, and the leader epoch of its batch."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class LogError(Exception):
    """A partition's files are unusable; the message names the file."""


class LogFull(LogError):
    """A transient disk error; nothing of the batch was kept, and later appends may succeed."""


class LogDirFailed(LogError):
    """The log directory stopped permanently after an I/O error."""


class LogBusy(LogError):
    """The log is being closed; opening it may succeed shortly after."""


class OffsetOutOfRange(LogError):
    """The offset is before the log's start or past its end."""


class CorruptLog(LogError):
    """The log's bytes are not those that were written."""
