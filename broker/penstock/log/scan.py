"""Walks the batches of a segment file, header by header or with all their bytes checked.

Called by recovery, index rebuilding, searches, compaction and the offline dump. Whatever it meets is taken for damaged
until it proves sound; sizes are bounded by the file before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from penstock.runtime.files import File
from penstock.wire.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader

CHUNK_BYTES = 1 << 20
HOP_BYTES = 16 << 10
MAGIC = 2
MAX_OFFSET = (1 << 63) - 1
SMALLEST_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD
CRC = BatchHeader._fields.index("crc")
LAST_OFFSET_DELTA = BatchHeader._fields.index("last_offset_delta")


class ScannedBatch(NamedTuple):
    """A batch in a file. `batch` is its bytes where they were asked for, else empty; valid until the next step."""

    position: int
    header: BatchHeader
    batch: memoryview


class BadBatch(Exception):
    """What stands at `position` is no sound batch; the message says why."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position, self.reason = position, reason


NOTHING = memoryview(b"")


def walk(file: File, position: int, end: int, expected_offset: int = 0) -> Iterator[ScannedBatch]:
    """The headers of the batches from `position` up to `end`. Raises BadBatch where one cannot be right."""
    chunk, chunk_start = b"", 0
    while position < end:
        at = position - chunk_start
        if at < 0 or at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.read_at(position, min(HOP_BYTES, end - position)), position, 0
        header = header_at(chunk, at, position, end, expected_offset)
        yield ScannedBatch(position, header, NOTHING)
        expected_offset = header.last_offset + 1
        position += header.size_bytes


def verify(
    file: File, position: int, end: int, expected_offset: int = 0, contiguous: bool = False
) -> Iterator[ScannedBatch]:
    """As `walk`, reading each batch whole and comparing its CRC.

    With `contiguous` no offset may be missing: base offsets are not under the CRC, so this is what vouches for them.
    """
    chunk, chunk_start = memoryview(b""), 0
    unpack, make = HEADER.unpack_from, BatchHeader._make
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = read(file, position, min(CHUNK_BYTES, end - position)), position, 0
            if len(chunk) < HEADER_SIZE:
                raise BadBatch(position, "the file ends within a batch's header")
        header = make(unpack(chunk, at))
        reason = flaw(header, end - position, expected_offset)
        if reason is not None:
            raise BadBatch(position, reason)
        base_offset, size = header[0], header[1] + LENGTH_OVERHEAD
        if contiguous and base_offset != expected_offset:
            raise BadBatch(position, f"offset {base_offset} where {expected_offset} was expected")
        if at + size > len(chunk):
            wanted = min(max(CHUNK_BYTES, size), end - position)
            chunk, chunk_start, at = read(file, position, wanted), position, 0
            if len(chunk) < size:
                raise BadBatch(position, "the file ends within a batch")
        if crc32c(chunk[at + CRC_START : at + size]) != header[CRC]:
            raise BadBatch(position, "the CRC of a batch does not match its bytes")
        yield ScannedBatch(position, header, chunk[at : at + size])
        expected_offset = base_offset + header[LAST_OFFSET_DELTA] + 1
        position += size


def read(file: File, position: int, size: int) -> memoryview:
    return memoryview(file.read_at(position, size))


def header_at(chunk: bytes | memoryview, at: int, position: int, end: int, expected_offset: int) -> BatchHeader:
    """The header at `at` of a chunk, which is at `position` of a file that counts up to `end`."""
    if len(chunk) - at < HEADER_SIZE:
        raise BadBatch(position, "the file ends within a batch's header")
    header = BatchHeader._make(HEADER.unpack_from(chunk, at))
    reason = flaw(header, end - position, expected_offset)
    if reason is not None:
        raise BadBatch(position, reason)
    return header


def flaw(header: BatchHeader, room_bytes: int, expected_offset: int) -> str | None:
    """What is impossible about a header, if something is."""
    base_offset, length, _, magic, _, _, last_offset_delta, *_ = header
    if (
        magic == MAGIC
        and SMALLEST_LENGTH <= length <= room_bytes - LENGTH_OVERHEAD
        and expected_offset <= base_offset <= base_offset + last_offset_delta < MAX_OFFSET
    ):
        return None
    if magic != MAGIC:
        return f"a batch in format {magic} where only format {MAGIC} is written"
    if length < SMALLEST_LENGTH:
        return f"a batch that claims {length} bytes"
    if length > room_bytes - LENGTH_OVERHEAD:
        return f"a batch of {length + LENGTH_OVERHEAD} bytes where {room_bytes} are left"
    if base_offset < expected_offset:
        return f"offset {base_offset} where at least {expected_offset} was expected"
    return f"a batch whose last offset is {header.last_offset}"
