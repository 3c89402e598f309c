"""Batches of topics with `delivery.schedule.enable`: records that wait for their time, and records that were delivered.

A scheduled batch is a control batch, which consumers skip. Its only record has the key (version i16, type i16) and a
value: format i8, one row per record (due time i64, origin i64, key hash i64, end of the body u32), and the bodies. A
body is the record's key, value and headers as a delivered record has them, except for the last header. The batch has as
many offsets as rows. A delivered batch is an ordinary batch of the leader; the last header of each record names the
origin: the offset that the record had when it was scheduled, which identifies it for as long as it waits.

The attributes mark both kinds, because only the header is read to tell them from other batches. Producers cannot send
these attributes. `replica.inspection` and `replica.scheduled_delivery` build the batches, and `log.scheduled_records`
reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from penstock.wire.batch import CONTROL, CRC, CRC_OFFSET, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader, checksum
from penstock.wire.batch_builder import MAGIC, encode_headers, varint
from penstock.wire.primitives import Buffer
from penstock.wire.record import Record
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_varlong

SCHEDULED = 0x0100
"""Attribute of a control batch with scheduled records."""
DELIVERED = 0x0200
"""Attribute of a batch with records that were scheduled."""

DELIVER_AT, DELIVER_AFTER, CANCEL = "penstock-deliver-at", "penstock-deliver-after-ms", "penstock-cancel-scheduled"
"""Names of headers by which producers schedule and cancel."""
ORIGIN = "penstock-scheduled-offset"
"""Name of the last header of a delivered record."""

KEY = struct.Struct(">hh")
KEY_VERSION, KEY_TYPE = 0, 0x5053
"""Version and type of the control record. Clients ignore types that they do not know."""
FORMAT = 1
ROW, END = struct.Struct(">qqqI"), struct.Struct(">I")
END_IN_ROW = ROW.size - END.size
OWN_OFFSET = -1
"""Origin of a record that is scheduled in this batch for the first time."""
CANCELS = -1
"""Due time of a row that cancels the earlier records with its key hash."""
NO_KEY_HASH = 0
"""Hash of records without a key, which cannot be cancelled."""
PREFIX_BYTES = 48
"""Maximum bytes between the batch header and the first row."""
ORIGIN_NAME = varint(len(ORIGIN)) + ORIGIN.encode()


class ScheduledRow(NamedTuple):
    """A record to schedule, or a cancellation. `due_ms` is in ms since 1970."""

    due_ms: int
    origin: int
    key_hash: int
    body: bytes


class RowTable(NamedTuple):
    """The rows of a batch that was read: the position of the bodies in the batch, and (due time, origin, key hash, end
    of the body) of each row."""

    bodies_at: int
    rows: list[tuple[int, int, int, int]]


def hash_key(key: bytes | None) -> int:
    """Return the hash by which records of a key are cancelled."""
    if key is None:
        return NO_KEY_HASH
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big", signed=True) or 1


def encode_body(record: Record) -> bytes:
    """Return a record's key, value and headers, with room for one more header in their count."""
    count = len(record.headers)
    return b"".join(
        (
            b"\x01" if record.key is None else varint(len(record.key)) + record.key,
            b"\x01" if record.value is None else varint(len(record.value)) + record.value,
            varint(count + 1),
            encode_headers(record.headers)[len(varint(count)) :],
        )
    )


def build_scheduled(rows: Sequence[ScheduledRow], header: BatchHeader | None, now_ms: int) -> bytearray:
    """Return the batch, to be stamped with offset and leader epoch. It has the producer of `header`, if given."""
    assert rows, "a scheduled batch has rows"
    table, end = bytearray([FORMAT]), 0
    for row in rows:
        end += len(row.body)
        table += ROW.pack(row.due_ms, row.origin, row.key_hash, end)
    key = KEY.pack(KEY_VERSION, KEY_TYPE)
    start = b"".join((b"\0\0\0", varint(len(key)), key, varint(len(table) + end)))
    size = len(start) + len(table) + end + 1
    body = b"".join((varint(size), start, table, *(row.body for row in rows), b"\0"))
    producer = (-1, -1, -1) if header is None else (header.producer_id, header.producer_epoch, header.base_sequence)
    return make_batch(body, CONTROL | SCHEDULED, len(rows), 1, producer, now_ms)


def build_delivered(records: Iterable[tuple[int, bytes]], now_ms: int) -> bytearray:
    """Return a batch of (origin, body), to be stamped with offset and leader epoch."""
    parts: list[bytes] = []
    count = 0
    for origin, body in records:
        text = b"%d" % origin
        delta = varint(count)
        size = 2 + len(delta) + len(body) + len(ORIGIN_NAME) + 1 + len(text)
        parts += (varint(size), b"\0\0", delta, body, ORIGIN_NAME, varint(len(text)), text)
        count += 1
    assert count, "a delivered batch has records"
    return make_batch(b"".join(parts), DELIVERED, count, count, (-1, -1, -1), now_ms)


def make_batch(
    body: bytes, attributes: int, offsets: int, record_count: int, producer: tuple[int, int, int], now_ms: int
) -> bytearray:
    """Return an uncompressed batch whose records all have the time `now_ms`."""
    batch = bytearray(HEADER_SIZE + len(body))
    length = len(batch) - LENGTH_OVERHEAD
    HEADER.pack_into(
        batch, 0, 0, length, -1, MAGIC, 0, attributes, offsets - 1, now_ms, now_ms, *producer, record_count
    )
    batch[HEADER_SIZE:] = body
    with memoryview(batch) as view:
        CRC.pack_into(batch, CRC_OFFSET, checksum(view, 0, len(batch)))
    return batch


def is_scheduled(header: BatchHeader) -> bool:
    """Return whether a batch has scheduled records."""
    return header.attributes & (CONTROL | SCHEDULED) == CONTROL | SCHEDULED


def is_delivered(header: BatchHeader) -> bool:
    """Return whether a batch has records that were scheduled."""
    return header.attributes & (CONTROL | DELIVERED) == DELIVERED


def table_size(header: BatchHeader) -> int:
    """Return how many bytes of a scheduled batch `parse_table` needs at most."""
    return min(HEADER_SIZE + PREFIX_BYTES + ROW.size * (header.last_offset_delta + 1), header.size_bytes)


def parse_table(batch: Buffer, header: BatchHeader) -> RowTable:
    """Return the rows of a scheduled batch, of which at least the first `table_size` bytes are given. Raises
    MalformedMessage."""
    rows_at, bodies_at, bodies_size = find_rows(batch, header)
    rows = list(ROW.iter_unpack(batch[rows_at:bodies_at]))
    end = 0
    for row in rows:
        if row[3] < end:
            raise MalformedMessage(f"the bodies of the scheduled batch at offset {header.base_offset} overlap")
        end = row[3]
    if end != bodies_size:
        raise mismatch(header)
    return RowTable(bodies_at, rows)


def parse_places(batch: Buffer, header: BatchHeader, rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the position in the batch and the size of the bodies of some rows, by their numbers, without a look at the
    others. At least the first `table_size` bytes of the batch are given. Raises MalformedMessage."""
    rows_at, bodies_at, bodies_size = find_rows(batch, header)
    for row in rows:
        end_at = rows_at + ROW.size * row + END_IN_ROW
        (end,) = END.unpack_from(batch, end_at)
        start = END.unpack_from(batch, end_at - ROW.size)[0] if row else 0
        if not start <= end <= bodies_size:
            raise MalformedMessage(f"row {row} of the scheduled batch at offset {header.base_offset} is damaged")
        yield bodies_at + start, end - start


def find_rows(batch: Buffer, header: BatchHeader) -> tuple[int, int, int]:
    """Return (position of the first row, position of the bodies, their size) in a scheduled batch, of which all rows
    are given. Raises MalformedMessage."""
    try:
        at = HEADER_SIZE
        _, at = read_varlong(batch, at)
        if bytes(batch[at : at + 3]) != b"\0\0\0":
            raise MalformedMessage("a scheduled batch whose record has times or attributes")
        key_size, at = read_varlong(batch, at + 3)
        if key_size != KEY.size or KEY.unpack_from(batch, at) != (KEY_VERSION, KEY_TYPE):
            raise MalformedMessage("a scheduled batch without the key of one")
        value_size, at = read_varlong(batch, at + KEY.size)
        if batch[at] != FORMAT:
            raise MalformedMessage(f"a scheduled batch has format {batch[at]}; this version reads {FORMAT}")
    except (IndexError, struct.error) as e:
        raise MalformedMessage(f"the scheduled batch at offset {header.base_offset} is damaged: {e}") from e
    rows_at, rows_size = at + 1, ROW.size * (header.last_offset_delta + 1)
    bodies_at, bodies_size = rows_at + rows_size, value_size - 1 - rows_size
    if bodies_size < 0 or bodies_at > len(batch) or bodies_at + bodies_size > header.size_bytes:
        raise mismatch(header)
    return rows_at, bodies_at, bodies_size


def mismatch(header: BatchHeader) -> MalformedMessage:
    """Return the error of a batch whose rows do not match its size."""
    return MalformedMessage(f"the scheduled batch at offset {header.base_offset} has rows that do not match its size")


def parse_origins(batch: Buffer, header: BatchHeader) -> Iterator[int]:
    """Yield the origins of the records of a delivered batch. Raises MalformedMessage."""
    data = bytes(batch[HEADER_SIZE:])
    at = 0
    for index in range(header.record_count):
        try:
            size, at = read_varlong(data, at)
        except IndexError:
            raise MalformedMessage(f"the delivered batch at offset {header.base_offset} ends early") from None
        end = at + size
        found = data.rfind(ORIGIN_NAME, at, end)
        if size < 0 or end > len(data) or found < 0:
            raise MalformedMessage(f"record {index} of the delivered batch at {header.base_offset} has no origin")
        text = data[found + len(ORIGIN_NAME) + 1 : end]
        if not text.isdigit() or len(text) > 19:
            raise MalformedMessage(
                f"record {index} of the delivered batch at {header.base_offset} has a damaged origin"
            )
        yield int(text)
        at = end
