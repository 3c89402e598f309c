"""Validates that a batch's records match its header. Called by `replica.inspection` for produced batches.

A consumer that cannot parse a batch is stuck there. But parsing all records doubles a broker's cost per small record,
so `check_ends` does bounded work per batch: it parses the first and last record, and follows the record lengths in
between if there are few. In larger batches the last record is found from the end, by its offset. This detects batches
with a wrong record count or with other data; only `parse_records` detects damage in the middle of a large batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.wire.batch import SMALLEST_RECORD
from penstock.wire.primitives import Buffer
from penstock.wire.records import MAX_HEADERS, NULL
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_varlong, write_varlong

MAX_STEPS = 16
"""Record count up to which all record lengths are followed."""
TAIL_BYTES = 4 * 1024
"""Bytes at the end of a batch that are searched for the last record first."""
MAX_CANDIDATES = 64
"""Matches of the last record's offset that are tried before all record lengths are followed."""
MAX_GROWN_BYTES = 4
"""Bytes by which the last record of equal records may be longer than the first."""
DENSE_BYTES = 512
"""Average record size below which data is copied before following lengths: indexing `bytes` is faster."""
MIN_ENCODED_LENGTH = (SMALLEST_RECORD - 1) << 1
"""Encoded length of the smallest record."""
MAX_VARINT_BYTES = 10
new = tuple.__new__
"""Faster than `RecordShape(...)`."""
MAX_LENGTH_BYTES = 5


class RecordShape(NamedTuple):
    """What `parse_record` returns. `end` is the end offset."""

    end: int
    offset_delta: int
    timestamp_delta_ms: int
    has_key: bool


def check_ends(data: Buffer, count: int, last_offset_delta: int) -> None:
    """Validate the decompressed records `data` with bounded work. Raises MalformedMessage."""
    size = check_size(data, count)
    first = last = parse(data, 0, size, 0)
    if count == 1 and first.offset_delta == last_offset_delta == 0 and first.end == size:
        return
    check_delta(first, 0, last_offset_delta)
    if count > MAX_STEPS and ends_with(data, find_last(data, count, first.end), last_offset_delta):
        return
    if count > 1:
        is_dense = count > MAX_STEPS and size < count * DENSE_BYTES
        last = parse(data, walk_lengths(bytes(data) if is_dense else data, count), size, count - 1)
    if last.end != size:
        raise MalformedMessage(f"{size - last.end} bytes follow the last record")
    check_last(last, last_offset_delta)


def ends_with(data: Buffer, start: int | None, last_offset_delta: int) -> bool:
    """Return whether a record with the last offset delta starts at `start` and ends with `data`."""
    if start is None:
        return False
    size = len(data)
    try:
        last = parse_record(data, start, size)
    except (IndexError, MalformedMessage):
        return False  # bytes of a value may look like a record: follow the lengths instead
    return last.end == size and last.offset_delta == last_offset_delta


def parse_records(data: Buffer, count: int, last_offset_delta: int) -> Iterator[RecordShape]:
    """Yield the shapes of all records. Raises MalformedMessage, at the latest at the damaged record."""
    size = check_size(data, count)
    offset = 0
    shape = None
    for index in range(count):
        shape = parse(data, offset, size, index)
        check_delta(shape, index, last_offset_delta)
        yield shape
        offset = shape.end
    if offset != size:
        raise MalformedMessage(f"{size - offset} bytes follow the last record")
    assert shape is not None, "a batch has records"
    check_last(shape, last_offset_delta)


def check_size(data: Buffer, count: int) -> int:
    """Return the size of `data` in bytes. Raises MalformedMessage if `count` records do not fit."""
    size = len(data)
    if count < 1 or count * SMALLEST_RECORD > size:
        raise MalformedMessage(f"{count} records in {size} bytes")
    return size


def check_delta(shape: RecordShape, index: int, last_offset_delta: int) -> None:
    """Raise MalformedMessage if the record's offset delta is out of range."""
    if not 0 <= shape.offset_delta <= last_offset_delta:
        raise MalformedMessage(f"record {index} has the offset {shape.offset_delta}, the last is {last_offset_delta}")


def check_last(shape: RecordShape, last_offset_delta: int) -> None:
    """Raise MalformedMessage if the last record does not have the last offset delta."""
    if shape.offset_delta != last_offset_delta:
        raise MalformedMessage(f"the last record has the offset {shape.offset_delta}, not {last_offset_delta}")


def parse(data: Buffer, offset: int, end: int, index: int) -> RecordShape:
    """Parse a record as `parse_record` does; errors name its index."""
    try:
        return parse_record(data, offset, end)
    except IndexError:
        raise MalformedMessage(f"record {index} is truncated") from None
    except MalformedMessage as e:
        raise MalformedMessage(f"record {index}: {e}") from None


def parse_record(data: Buffer, offset: int, end: int) -> RecordShape:
    """Parse the record at `offset`, which must end by `end`. Raises MalformedMessage, IndexError.

    Decodes one-byte numbers inline.
    """
    size, at = read_varlong(data, offset)
    stop = at + size
    if size < SMALLEST_RECORD - 1 or stop > end:
        raise MalformedMessage(f"a length of {size} bytes with {end - at} bytes left")
    timestamp_delta_ms = data[at + 1]
    if timestamp_delta_ms < 0x80:
        timestamp_delta_ms = (timestamp_delta_ms >> 1) ^ -(timestamp_delta_ms & 1)
        at += 2
    else:
        timestamp_delta_ms, at = read_varlong(data, at + 1)
    offset_delta = data[at]
    if offset_delta < 0x80:
        offset_delta = (offset_delta >> 1) ^ -(offset_delta & 1)
        at += 1
    else:
        offset_delta, at = read_varlong(data, at)
    has_key = data[at] != NULL
    if has_key:
        size, at = read_varlong(data, at)
        at += size
        if size < 0 or at >= stop:
            raise MalformedMessage(f"a key of {size} bytes")
    else:
        at += 1
    size = data[at]
    if size < 0x80:
        size = (size >> 1) ^ -(size & 1)
        at += 1
    else:
        size, at = read_varlong(data, at)
    if size > 0:
        at += size
    if size < -1 or at >= stop:
        raise MalformedMessage(f"a value of {size} bytes")
    if data[at]:
        count, at = read_varlong(data, at)
        at = parse_headers(data, at, stop, count)
    else:
        at += 1
    if at != stop:
        raise MalformedMessage("its fields do not match its length")
    return new(RecordShape, (stop, offset_delta, timestamp_delta_ms, has_key))


def parse_headers(data: Buffer, at: int, stop: int, count: int) -> int:
    """Return the offset after `count` headers."""
    if not 0 < count <= MAX_HEADERS or count * 2 > stop - at:
        raise MalformedMessage(f"{count} headers")
    for _ in range(count):
        size, at = read_varlong(data, at)
        if size < 0:
            raise MalformedMessage("a header without a key")
        at += size
        if at >= stop:
            raise MalformedMessage(f"a header's key of {size} bytes")
        size, at = read_varlong(data, at)
        at += max(size, 0)
        if size < -1 or at > stop:
            raise MalformedMessage(f"a header's value of {size} bytes")
    return at


def walk_lengths(data: Buffer, count: int) -> int:
    """Return where the last of `count` records starts. Raises MalformedMessage if there are not exactly that many."""
    size = len(data)
    start, at = follow_lengths(data, 0, count, size)
    if at != size:
        raise MalformedMessage(f"{size - at} bytes follow record {count - 1}, the last one")
    return start


def follow_lengths(data: Buffer, at: int, count: int, size: int) -> tuple[int, int]:
    """Follow `count` record lengths from `at`. Returns (start, end) of the last record.

    Decodes lengths of one and two bytes inline. Raises MalformedMessage.
    """
    start = at
    for index in range(count):
        if at >= size:
            raise MalformedMessage(f"{index} records instead of {count}")
        start = at
        low = data[at]
        if low < 0x80:
            at += 1 + (low >> 1)
            if low & 1 or low < MIN_ENCODED_LENGTH:
                raise MalformedMessage(f"record {index} has an invalid length")
        else:
            high = data[at + 1] if at + 1 < size else 0x80
            if high < 0x80 and not low & 1:
                at += 2 + ((low & 0x7F | high << 7) >> 1)
            else:
                at = skip_length(data, at, index)
    if at > size:
        raise MalformedMessage(f"record {count - 1} is truncated")
    return start, at


def skip_length(data: Buffer, at: int, index: int) -> int:
    """Return the end of the record at `at`, whose length has several bytes. Raises MalformedMessage."""
    try:
        signed, at = read_varlong(data, at)
    except IndexError:
        raise MalformedMessage(f"record {index} is truncated") from None
    except MalformedMessage as e:
        raise MalformedMessage(f"record {index}: {e}") from None
    if signed < SMALLEST_RECORD - 1:
        raise MalformedMessage(f"record {index} has an invalid length")
    return at + signed


def find_last(data: Buffer, count: int, first_size: int) -> int | None:
    """Return the start of the record with offset delta `count` - 1 that ends with `data`; None if not found quickly.

    Most batches have records of equal size, so the expected start is tried first. Then the encoded offset delta is
    searched from the end, and a match is accepted if the length before it fits.
    """
    size = len(data)
    pattern = bytearray()
    write_varlong(pattern, count - 1)
    likely = size - first_size - len(pattern) + 1
    for start in range(likely, max(likely - MAX_GROWN_BYTES, 0), -1):
        if record_end(data, start) == size:
            return start
    window = min(size, max(TAIL_BYTES, 4 * first_size))
    tail = bytes(data[size - window :])
    end = window
    for _ in range(MAX_CANDIDATES):
        at = tail.rfind(pattern, 0, end)
        if at < 3:
            return None
        # The attributes byte, 0, is two bytes before, or further if the timestamp delta has several bytes.
        if not tail[at - 2] or tail[at - 2] >= 0x80:
            found = record_start(tail, at, window)
            if found is not None:
                return size - window + found
        end = at + len(pattern) - 1
    return None


def record_end(data: Buffer, start: int) -> int:
    """Return the end of the record at `start` by its length; -1 if there is no valid length."""
    try:
        length, behind = read_varlong(data, start)
    except (IndexError, MalformedMessage):
        return -1
    return behind + length


def record_start(data: bytes, offset_at: int, end: int) -> int | None:
    """Return the start of a record whose offset delta is at `offset_at` and which ends at `end`."""
    if offset_at < 3 or data[offset_at - 1] >= 0x80:
        return None
    attributes_at = offset_at - 2
    lowest = max(attributes_at - MAX_VARINT_BYTES, 1)
    while attributes_at >= lowest:
        if not data[attributes_at]:
            start = length_start(data, attributes_at, end)
            if start is not None:
                return start
        if data[attributes_at] < 0x80:
            return None  # a varint cannot continue past its last byte
        attributes_at -= 1
    return None


def length_start(data: bytes, behind: int, end: int) -> int | None:
    """Return the start of a length that ends before `behind` and leads from there to `end`."""
    if data[behind - 1] >= 0x80:
        return None
    start = behind - 1
    lowest = max(behind - MAX_LENGTH_BYTES, 0)
    while start >= lowest:
        length, _ = read_varlong(data, start)
        if behind + length == end:
            return start
        start -= 1
        if start < 0 or data[start] < 0x80:
            return None
    return None
