"""Checks that the records of a batch are what its header says. Called by `replica.inspection` for batches of producers.

A consumer stops at a batch whose records it cannot tell apart, and stays there. Parsing every record costs a broker as
much as everything else that it does with small records, so `check_ends` does a bounded amount of work for a batch: it
parses the first and the last record and follows the lengths of `MAX_STEPS` others. Of a batch with up to that many
records it therefore sees every length, of a larger one that it begins and ends with the records that belong there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.wire.batch import SMALLEST_RECORD
from penstock.wire.primitives import Buffer
from penstock.wire.records import MAX_HEADERS, NULL
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_varlong, write_varlong

MAX_PARSED = 4
"""Batches with at most as many records have all of them parsed."""
MAX_STEPS = 32
"""Records whose lengths are followed from the beginning of a batch."""
HEAD_BYTES = 32 * 1024
"""The part of a batch that is copied to follow lengths in it."""
TAIL_BYTES = 4 * 1024
"""The part of a batch in which the last record is searched for first."""
MAX_CANDIDATES = 32
"""Places that look like the last record's offset and are tried before the whole batch is walked."""
MAX_VARINT_BYTES = 10
new = tuple.__new__
"""What `RecordShape` does, without a call in Python."""
MAX_LENGTH_BYTES = 5


class RecordShape(NamedTuple):
    """What `parse_record` finds out about a record. `end` is the position behind it."""

    end: int
    offset_delta: int
    timestamp_delta_ms: int
    has_key: bool


def check_ends(data: Buffer, count: int, last_offset_delta: int, contiguous: bool) -> None:
    """Check the decompressed records `data` of a batch by a bounded number of them.

    `contiguous` asks that the last record has the last offset. Raises MalformedMessage.
    """
    size = check_size(data, count)
    if count <= MAX_PARSED:
        for _ in parse_records(data, count, last_offset_delta, contiguous):
            pass
        return
    first = parse(data, 0, size, 0)
    check_delta(first, 0, last_offset_delta)
    last_start = follow_lengths(data, count)
    if last_start is None:
        last_start = find_last(data, count, first.end)
    if last_start is None:
        last_start = walk_lengths(bytes(data), count)
    last = parse(data, last_start, size, count - 1)
    if last.end != size:
        raise MalformedMessage(f"{size - last.end} bytes follow the last record")
    check_last(last, count, last_offset_delta, contiguous)


def parse_records(data: Buffer, count: int, last_offset_delta: int, contiguous: bool) -> Iterator[RecordShape]:
    """Parse all records. Raises MalformedMessage, at the latest at the record."""
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
    check_last(shape, count, last_offset_delta, contiguous)


def check_size(data: Buffer, count: int) -> int:
    """The size of `data` in bytes. Raises MalformedMessage where `count` records do not fit into it."""
    size = len(data)
    if count < 1 or count * SMALLEST_RECORD > size:
        raise MalformedMessage(f"{count} records in {size} bytes")
    return size


def check_delta(shape: RecordShape, index: int, last_offset_delta: int) -> None:
    if not 0 <= shape.offset_delta <= last_offset_delta:
        raise MalformedMessage(f"record {index} has the offset {shape.offset_delta}, the last is {last_offset_delta}")


def check_last(shape: RecordShape, count: int, last_offset_delta: int, contiguous: bool) -> None:
    check_delta(shape, count - 1, last_offset_delta)
    if contiguous and shape.offset_delta != last_offset_delta:
        raise MalformedMessage(f"the last record has the offset {shape.offset_delta}, not {last_offset_delta}")


def parse(data: Buffer, offset: int, end: int, index: int) -> RecordShape:
    try:
        return parse_record(data, offset, end)
    except IndexError:
        raise MalformedMessage(f"record {index} is cut short") from None
    except MalformedMessage as e:
        raise MalformedMessage(f"record {index}: {e}") from None


def parse_record(data: Buffer, offset: int, end: int) -> RecordShape:
    """Parse the record at `offset` of `data`, which ends at `end`. Raises MalformedMessage, IndexError.

    Numbers of one byte are read in place.
    """
    size, at = read_varlong(data, offset)
    stop = at + size
    if size < SMALLEST_RECORD - 1 or stop > end:
        raise MalformedMessage(f"a length of {size} bytes where {end - at} are left")
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
        raise MalformedMessage("its fields do not add up to its length")
    return new(RecordShape, (stop, offset_delta, timestamp_delta_ms, has_key))


def parse_headers(data: Buffer, at: int, stop: int, count: int) -> int:
    """The position behind `count` headers."""
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


def follow_lengths(data: Buffer, count: int) -> int | None:
    """Follow the lengths of `MAX_STEPS` records; return where the last of `count` begins if it is among them.

    Raises MalformedMessage for a length that cannot be right.
    """
    if count <= MAX_STEPS:
        return walk_lengths(data, count)
    head, size = bytes(data[:HEAD_BYTES]), len(data)
    known = size if len(head) == size else len(head) - MAX_LENGTH_BYTES
    at = 0
    for index in range(MAX_STEPS):
        if at >= known:
            break
        at = skip_length(head, at, index)
    if at >= size:
        raise MalformedMessage(f"the lengths of the first records lead to byte {at} of {size}")
    return None


def walk_lengths(data: Buffer, count: int) -> int:
    """Where the last of `count` records begins. Raises MalformedMessage where there are not exactly as many."""
    at, start, size = 0, 0, len(data)
    for index in range(count):
        if at >= size:
            raise MalformedMessage(f"{index} records where the batch claims {count}")
        start = at
        at = skip_length(data, at, index)
    if at != size:
        raise MalformedMessage(f"{size - at} bytes follow record {count - 1}, the last that the batch claims")
    return start


def skip_length(data: Buffer, at: int, index: int) -> int:
    """The position behind the record at `at`, by its length alone. Raises MalformedMessage."""
    try:
        low = data[at]
        if low < 0x80:
            length, at = low, at + 1
        else:
            high = data[at + 1]
            if high < 0x80:
                length, at = low & 0x7F | high << 7, at + 2
            else:
                signed, at = read_varlong(data, at)
                length = signed << 1 if signed >= 0 else 1
    except IndexError:
        raise MalformedMessage(f"record {index} is cut short") from None
    if length & 1 or length < (SMALLEST_RECORD - 1) << 1:
        raise MalformedMessage(f"record {index} has a length that no record can have")
    return at + (length >> 1)


def find_last(data: Buffer, count: int, first_size: int) -> int | None:
    """Where the record with the offset `count` - 1 begins that ends where `data` ends; None where none is found soon.

    Searches backwards for the bytes of that offset, and takes the place for which the length in front of it fits.
    """
    size = len(data)
    window = min(size, max(TAIL_BYTES, 4 * first_size))
    tail = bytes(data[size - window :])
    pattern = bytearray()
    write_varlong(pattern, count - 1)
    end = window
    for _ in range(MAX_CANDIDATES):
        at = tail.rfind(pattern, 0, end)
        if at < 0:
            return None
        start = record_start(tail, at, window)
        if start is not None:
            return size - window + start
        end = at + len(pattern) - 1
    return None


def record_start(data: bytes, offset_at: int, end: int) -> int | None:
    """Where a record begins whose offset stands at `offset_at` and which reaches up to `end`."""
    for attributes_at in varint_starts(data, offset_at, MAX_VARINT_BYTES, before=1):
        if data[attributes_at]:
            continue
        for start in varint_starts(data, attributes_at, MAX_LENGTH_BYTES, before=0):
            length, _ = read_varlong(data, start)
            if attributes_at + length == end:
                return start
    return None


def varint_starts(data: bytes, end: int, max_bytes: int, before: int) -> Iterator[int]:
    """Each position, less `before`, at which a varint may begin that ends in front of `end`."""
    if end < 1 or data[end - 1] >= 0x80:
        return
    for at in range(end - 1, max(end - 1 - max_bytes, before - 1), -1):
        if at < end - 1 and data[at] < 0x80:
            return
        yield at - before
