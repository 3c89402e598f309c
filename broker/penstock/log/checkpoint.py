"""Checkpoints: the state of a log at an offset, so that opening the log reads only what came later.

A checkpoint guarantees that all batches below its end offset are on disk and valid, and holds the segments, leader
epochs and derived state as of that offset. Each partition directory has a file `checkpoint`; a clean shutdown writes
the checkpoints of all partitions into one file, `checkpoints`. Of two checkpoints of a partition, the one with the
higher sequence is current.

A frame is: magic 4 bytes, format version u8, CRC-32C u32 of the payload, payload length u32, payload (msgpack).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from uuid import UUID

import msgspec
from crc32c import crc32c

from penstock.log.segment import SegmentRow
from penstock.log.transient_errors import TRANSIENT_ERRORS, sync_directory, wait_for_descriptor
from penstock.runtime.files import Files

FILE_NAME = "checkpoint"
TABLE_NAME = "checkpoints"
MAGIC, TABLE_MAGIC = b"PSCP", b"PSCT"
FORMAT = 1
FRAME = struct.Struct(">4sBII")
ENTRY = struct.Struct(">16siI")
MAX_BYTES = 1 << 30

Key = tuple[UUID, int]


class DamagedCheckpoint(Exception):
    """The checkpoint's bytes are invalid; the message gives the reason."""


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    """A log at a point in time; the last row is the active segment."""

    sequence: int
    """Number of this checkpoint within its log, increasing."""
    start_offset: int
    end_offset: int
    segments: list[SegmentRow]
    epochs: list[tuple[int, int]]
    snapshot: bytes
    """The `BatchState` as of `end_offset`; empty if none."""
    compacted_until: int = 0
    """Offset below which compaction has processed the log."""
    gaps: bool = False
    """Whether batches after this checkpoint may skip offsets, as in the follower of a compacted log."""


ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(Checkpoint)


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint file."""
    return frame(MAGIC, ENCODER.encode(checkpoint))


def write(files: Files, directory: str, checkpoint: Checkpoint) -> None:
    """Replace a partition's checkpoint durably. Runs in a thread.

    Raises OSError. After a transient OSError the previous checkpoint is still in place: if it is unknown which of the
    two is, the caller can neither continue nor roll back.
    """
    path, data = f"{directory}/{FILE_NAME}", encode(checkpoint)
    try:
        files.write_atomic(path, data)
    except OSError as e:
        if e.errno not in TRANSIENT_ERRORS or not files.exists(path) or wait_for_descriptor(files.read, path) != data:
            raise
        try:
            sync_directory(files, directory)  # the step that failed
        except OSError as again:
            raise OSError(errno.EIO, f"{directory} cannot be synced: {again}") from again


def decode(data: bytes) -> Checkpoint:
    """Parse a checkpoint file. Raises DamagedCheckpoint."""
    payload = unframe(MAGIC, data)
    try:
        checkpoint = DECODER.decode(payload)
    except msgspec.DecodeError as e:
        raise DamagedCheckpoint(f"it cannot be decoded: {e}") from e
    rows = checkpoint.segments
    if any(a.base_offset >= b.base_offset for a, b in pairwise(rows)):
        raise DamagedCheckpoint("its segments are out of order")
    if not 0 <= checkpoint.start_offset <= checkpoint.end_offset:
        raise DamagedCheckpoint(f"invalid offset range {checkpoint.start_offset} to {checkpoint.end_offset}")
    return checkpoint


def frame(magic: bytes, payload: bytes) -> bytes:
    """Return a payload with its header."""
    return FRAME.pack(magic, FORMAT, crc32c(payload), len(payload)) + payload


def unframe(magic: bytes, data: bytes) -> bytes:
    """Check a frame's header and CRC and return its payload. Raises DamagedCheckpoint."""
    if len(data) < FRAME.size:
        raise DamagedCheckpoint(f"it has only {len(data)} bytes")
    found, version, crc, size = FRAME.unpack_from(data)
    if found != magic:
        raise DamagedCheckpoint("wrong magic bytes")
    if version > FORMAT:
        raise DamagedCheckpoint(f"format {version} is newer than the supported format {FORMAT}")
    payload = data[FRAME.size :]
    if len(payload) != size or crc32c(payload) != crc:
        raise DamagedCheckpoint("CRC mismatch")
    return payload


def encode_table(entries: Iterable[tuple[Key, bytes]]) -> bytes:
    """Return one file with the encoded checkpoints of many partitions."""
    parts = []
    for (topic_id, partition), data in entries:
        parts.append(ENTRY.pack(topic_id.bytes, partition, len(data)))
        parts.append(data)
    return frame(TABLE_MAGIC, b"".join(parts))


def decode_table(data: bytes) -> Iterator[tuple[Key, bytes]]:
    """Yield the entries with their checkpoints still encoded. Raises DamagedCheckpoint."""
    payload = unframe(TABLE_MAGIC, data)
    position = 0
    while position < len(payload):
        if position + ENTRY.size > len(payload):
            raise DamagedCheckpoint("it ends inside an entry")
        topic_id, partition, size = ENTRY.unpack_from(payload, position)
        position += ENTRY.size
        if position + size > len(payload) or partition < 0:
            raise DamagedCheckpoint("an entry exceeds the file")
        yield (UUID(bytes=topic_id), partition), payload[position : position + size]
        position += size


def select_newest(own: bytes | None, from_table: bytes | None) -> Checkpoint | None:
    """Return the checkpoint with the higher sequence of the partition's own and the table's; None if there is neither.

    Raises DamagedCheckpoint if either is damaged, because the other may be older than the last removal of segments.
    """
    checkpoints = [decode(data) for data in (own, from_table) if data is not None]
    return max(checkpoints, key=lambda c: c.sequence, default=None)
