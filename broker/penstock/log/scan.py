"""Scans the batches of a segment file: headers only, or all bytes with their CRCs.

Called by recovery, index rebuilding, searches, compaction and the offline dump. Batches are untrusted until they have
been checked; sizes are bounded by the file before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from penstock.runtime.files import File
from penstock.wire.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader

CHUNK_BYTES = 1 << 20
HEADER_READ_BYTES = 16 << 10
MAGIC = 2
MAX_OFFSET = (1 << 63) - 1
MIN_BATCH_LENGTH = HEADER_SIZE - LENGTH_OVERHEAD
CRC = BatchHeader._fields.index("crc")
LAST_OFFSET_DELTA = BatchHeader._fields.index("last_offset_delta")


class ScannedBatch(NamedTuple):
    """A batch in a file. `batch` holds its bytes if requested, else it is empty; valid until the next step."""

    position: int
    header: BatchHeader
    batch: memoryview


class BadBatch(Exception):
    """The bytes at `position` are not a valid batch; the message gives the reason."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position, self.reason = position, reason


NO_BYTES = memoryview(b"")


def scan_headers(file: File, position: int, end: int, expected_offset: int = 0) -> Iterator[ScannedBatch]:
    """Yield the headers of the batches from `position` up to `end`. Raises BadBatch for an impossible header."""
    chunk, chunk_start = b"", 0
    while position < end:
        at = position - chunk_start
        if at < 0 or at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.read_at(position, min(HEADER_READ_BYTES, end - position)), position, 0
        header = header_at(chunk, at, position, end, expected_offset)
        yield ScannedBatch(position, header, NO_BYTES)
        expected_offset = header.last_offset + 1
        position += header.size_bytes


def scan_verified(
    file: File, position: int, end: int, expected_offset: int = 0, contiguous: bool = False
) -> Iterator[ScannedBatch]:
    """Yield whole batches like `scan_headers`, after verifying their CRCs.

    With `contiguous` no offset may be missing: base offsets are not covered by the CRC, and this check validates them.
    """
    chunk, chunk_start = memoryview(b""), 0
    unpack, make_header = HEADER.unpack_from, BatchHeader._make
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = read_chunk(file, position, min(CHUNK_BYTES, end - position)), position, 0
            if len(chunk) < HEADER_SIZE:
                raise BadBatch(position, "file ends inside a batch header")
        header = make_header(unpack(chunk, at))
        reason = find_header_flaw(header, end - position, expected_offset)
        if reason is not None:
            raise BadBatch(position, reason)
        base_offset, size = header[0], header[1] + LENGTH_OVERHEAD
        if contiguous and base_offset != expected_offset:
            raise BadBatch(position, f"expected offset {expected_offset}, got {base_offset}")
        if at + size > len(chunk):
            chunk_bytes = min(max(CHUNK_BYTES, size), end - position)
            chunk, chunk_start, at = read_chunk(file, position, chunk_bytes), position, 0
            if len(chunk) < size:
                raise BadBatch(position, "file ends inside a batch")
        if crc32c(chunk[at + CRC_START : at + size]) != header[CRC]:
            raise BadBatch(position, "batch CRC mismatch")
        yield ScannedBatch(position, header, chunk[at : at + size])
        expected_offset = base_offset + header[LAST_OFFSET_DELTA] + 1
        position += size


def read_chunk(file: File, position: int, size: int) -> memoryview:
    """Read a chunk of a file."""
    return memoryview(file.read_at(position, size))


def header_at(chunk: bytes | memoryview, at: int, position: int, end: int, expected_offset: int) -> BatchHeader:
    """Return the header at `at` of a chunk read from `position` of a file that ends at `end`. Raises BadBatch."""
    if len(chunk) - at < HEADER_SIZE:
        raise BadBatch(position, "file ends inside a batch header")
    header = BatchHeader._make(HEADER.unpack_from(chunk, at))
    reason = find_header_flaw(header, end - position, expected_offset)
    if reason is not None:
        raise BadBatch(position, reason)
    return header


def find_header_flaw(header: BatchHeader, room_bytes: int, expected_offset: int) -> str | None:
    """Return why a header is invalid, None if it is valid."""
    base_offset, length, _, magic, _, _, last_offset_delta, *_ = header
    if (
        magic == MAGIC
        and MIN_BATCH_LENGTH <= length <= room_bytes - LENGTH_OVERHEAD
        and expected_offset <= base_offset <= base_offset + last_offset_delta < MAX_OFFSET
    ):
        return None
    if magic != MAGIC:
        return f"batch has magic {magic}, expected {MAGIC}"
    if length < MIN_BATCH_LENGTH:
        return f"batch length {length} is below the minimum {MIN_BATCH_LENGTH}"
    if length > room_bytes - LENGTH_OVERHEAD:
        return f"batch has {length + LENGTH_OVERHEAD} bytes, but only {room_bytes} are left"
    if base_offset < expected_offset:
        return f"expected offset {expected_offset} or higher, got {base_offset}"
    return f"invalid last offset {header.last_offset}"
