"""What a log writes down now and then, so that opening it needs to read only what came later.

A checkpoint says: all below its end offset is on disk and sound, in these segments, by these epochs, and this was the
state derived from it. Each partition directory has a file `checkpoint`; a clean shutdown writes the checkpoints of all
partitions into one file, `checkpoints`. Of two for the same partition the one with the higher sequence counts.

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
from penstock.log.space import PASSING, patiently, sync_directory
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
    """The bytes are not what was written; the message says what is wrong."""


class Checkpoint(msgspec.Struct, array_like=True, frozen=True):
    """A log as of a moment. Offsets as in the log; the last row is the active segment."""

    sequence: int
    """Counts the checkpoints of this log."""
    start_offset: int
    end_offset: int
    segments: list[SegmentRow]
    epochs: list[tuple[int, int]]
    snapshot: bytes
    """The `BatchState` as of `end_offset`; empty where there is none."""
    compacted_until: int = 0
    """The offset up to which compaction has seen the log."""
    gaps: bool = False
    """Whether batches behind this checkpoint may leave out offsets, as those of a compacted log's follower do."""


ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(Checkpoint)


def encode(checkpoint: Checkpoint) -> bytes:
    """The whole file."""
    return frame(MAGIC, ENCODER.encode(checkpoint))


def write(files: Files, directory: str, checkpoint: Checkpoint) -> None:
    """Puts a partition's checkpoint in the place of the one before, durably. In a thread.

    Raises OSError. Where that is one that passes, the one before is still there: who knows neither can go neither on
    nor back.
    """
    path, data = f"{directory}/{FILE_NAME}", encode(checkpoint)
    try:
        files.write_atomic(path, data)
    except OSError as e:
        if e.errno not in PASSING or not files.exists(path) or patiently(files.read, path) != data:
            raise
        try:
            sync_directory(files, directory)  # that was left to do
        except OSError as again:
            raise OSError(errno.EIO, f"{directory} cannot be synced: {again}") from again


def decode(data: bytes) -> Checkpoint:
    """Raises DamagedCheckpoint."""
    payload = unframe(MAGIC, data)
    try:
        checkpoint = DECODER.decode(payload)
    except msgspec.DecodeError as e:
        raise DamagedCheckpoint(f"it does not decode: {e}") from e
    rows = checkpoint.segments
    if any(a.base_offset >= b.base_offset for a, b in pairwise(rows)):
        raise DamagedCheckpoint("its segments do not rise")
    if not 0 <= checkpoint.start_offset <= checkpoint.end_offset:
        raise DamagedCheckpoint(f"its offsets are {checkpoint.start_offset} to {checkpoint.end_offset}")
    return checkpoint


def frame(magic: bytes, payload: bytes) -> bytes:
    return FRAME.pack(magic, FORMAT, crc32c(payload), len(payload)) + payload


def unframe(magic: bytes, data: bytes) -> bytes:
    if len(data) < FRAME.size:
        raise DamagedCheckpoint(f"it has {len(data)} bytes")
    found, version, crc, size = FRAME.unpack_from(data)
    if found != magic:
        raise DamagedCheckpoint("it does not begin as one")
    if version > FORMAT:
        raise DamagedCheckpoint(f"it is in format {version}, and this build reads up to {FORMAT}")
    payload = data[FRAME.size :]
    if len(payload) != size or crc32c(payload) != crc:
        raise DamagedCheckpoint("its CRC does not match its bytes")
    return payload


def encode_table(entries: Iterable[tuple[Key, bytes]]) -> bytes:
    """One file with the encoded checkpoints of many partitions."""
    parts = []
    for (topic_id, partition), data in entries:
        parts.append(ENTRY.pack(topic_id.bytes, partition, len(data)))
        parts.append(data)
    return frame(TABLE_MAGIC, b"".join(parts))


def decode_table(data: bytes) -> Iterator[tuple[Key, bytes]]:
    """The entries, each still to be decoded. Raises DamagedCheckpoint."""
    payload = unframe(TABLE_MAGIC, data)
    position = 0
    while position < len(payload):
        if position + ENTRY.size > len(payload):
            raise DamagedCheckpoint("it ends within an entry")
        topic_id, partition, size = ENTRY.unpack_from(payload, position)
        position += ENTRY.size
        if position + size > len(payload) or partition < 0:
            raise DamagedCheckpoint("an entry does not fit")
        yield (UUID(bytes=topic_id), partition), payload[position : position + size]
        position += size


def newest(own: bytes | None, from_table: bytes | None) -> Checkpoint | None:
    """Of the two encoded checkpoints that a log can have the later one; None where it has none.

    Raises DamagedCheckpoint where either is damaged: the other may be older than the last time segments were dropped.
    """
    checkpoints = [decode(data) for data in (own, from_table) if data is not None]
    return max(checkpoints, key=lambda c: c.sequence, default=None)
