"""Blanks the records of a damaged batch in a segment file, offline, for `penstock log cut`.

The batch is overwritten in place by one of the same size and offsets, so that positions, indexes and checkpoints stay
valid. The replacement is a control batch, which every client skips.
"""

from __future__ import annotations

import os

from penstock.log.opening import LOCK_NAME, lock_directory
from penstock.log.scan import BadBatch, ScannedBatch, scan_verified
from penstock.log.segment import LOG
from penstock.runtime.disk import OsFiles
from penstock.wire.batch import CONTROL, CRC, CRC_OFFSET, HEADER, HEADER_SIZE, BatchHeader, checksum
from penstock.wire.records import iterate_records
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import write_varlong

MAX_DECOMPRESSED_BYTES = 256 << 20
CONTROL_KEY = b"\x00\x01\x00\x64"
"""Key of a control record, version 1, of a type that no client knows."""
SHORT_CONTROL_KEY = CONTROL_KEY[:2]


class RepairError(Exception):
    """The batch was not removed; the message names the file and the fix."""


def find_damage(found: ScannedBatch) -> str | None:
    """Return what is wrong with the records of a batch whose CRC matches, None if they are valid."""
    header = found.header
    if header.is_control or not header.record_count:
        return None
    try:
        for _ in iterate_records(found.batch, header, MAX_DECOMPRESSED_BYTES):
            pass
    except MalformedMessage as e:
        return str(e)
    return None


def cut_batch(path: str, offset: int, saved_path: str) -> BatchHeader:
    """Overwrite the damaged batch that contains `offset`, after saving its bytes to `saved_path`. Return its header.

    Raises RepairError, DirectoryInUse while a broker uses the directory, OSError.
    """
    files, directory = OsFiles(), os.path.dirname(os.path.dirname(os.path.abspath(path)))
    lock_directory(files, directory)
    try:
        found = find_batch(files, path, offset)
        if find_damage(found) is None:
            raise RepairError(f'cannot cut offset {offset} out of "{path}": its batch is valid')
        blank = blank_batch(found.header)
        with open(saved_path, "xb") as saved:
            saved.write(found.batch)
            saved.flush()
            os.fsync(saved.fileno())
        overwrite(path, blank, found.position)
    finally:
        files.unlock(f"{directory}/{LOCK_NAME}")
    return found.header


def overwrite(path: str, data: bytes, position: int) -> None:
    """Write and sync bytes at a position of a file."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, position)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_batch(files: OsFiles, path: str, offset: int) -> ScannedBatch:
    """Return the batch that contains `offset`, with a copy of its bytes. Raises RepairError."""
    if not path.endswith(LOG):
        raise RepairError(f'cannot cut offset {offset} out of "{path}": not a segment file ("*{LOG}")')
    file = files.open(path, read_only=True)
    try:
        for found in scan_verified(file, 0, file.size()):
            if found.header.base_offset <= offset <= found.header.last_offset:
                return found._replace(batch=memoryview(bytes(found.batch)))
    except BadBatch as e:
        raise RepairError(f'cannot cut offset {offset} out of "{path}": {e}') from None
    finally:
        file.close()
    raise RepairError(
        f'cannot cut offset {offset} out of "{path}": no batch contains it; list the batches with `penstock log dump`'
    )


def blank_batch(header: BatchHeader) -> bytes:
    """Return a control batch with the size, offsets, epoch and timestamps of `header`, without a producer.

    A batch too small for a control record (below 70 bytes) gets a record without key and value. Raises RepairError
    below 68 bytes.
    """
    body, attributes = blank_record(header.size_bytes - HEADER_SIZE, header.last_offset_delta)
    blank = header._replace(
        attributes=attributes,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )
    batch = bytearray(HEADER.pack(*blank) + body)
    assert len(batch) == header.size_bytes, "a batch keeps its size"
    with memoryview(batch) as view:
        CRC.pack_into(batch, CRC_OFFSET, checksum(view, 0, len(batch)))
    return bytes(batch)


def blank_record(size: int, offset_delta: int) -> tuple[bytes, int]:
    """Return (a record of `size` bytes at `offset_delta`, the attributes of its batch). Raises RepairError."""
    for key, attributes in ((CONTROL_KEY, CONTROL), (SHORT_CONTROL_KEY, CONTROL), (None, 0)):
        for value_bytes in range(size, max(size - 40, -1), -1):
            record = zero_record(key, value_bytes, offset_delta, size)
            if len(record) == size:
                return record, attributes
            if len(record) < size:
                break
    raise RepairError(
        f"cannot cut a batch with {size} bytes of records: too small for a replacement record;"
        " skip it in the consumers or delete the records up to it"
    )


def zero_record(key: bytes | None, value_bytes: int, offset_delta: int, size: int) -> bytes:
    """Return a record of zeros; its length field is one byte longer than needed if that makes it `size` bytes."""
    body = bytearray(2)
    write_varlong(body, offset_delta)
    write_varlong(body, -1 if key is None else len(key))
    body += key or b""
    write_varlong(body, value_bytes if value_bytes else -1)
    body += bytes(value_bytes) + b"\0"
    out = bytearray()
    write_varlong(out, len(body))
    if len(out) + len(body) == size - 1:
        out[-1] |= 0x80
        out.append(0)
    return bytes(out + body)
