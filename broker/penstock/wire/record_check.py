"""Checks that the records of a batch are what its header says. Called by `replica.inspection` for batches of producers.

A consumer stops at a batch whose records it cannot tell apart, and stays there. Parsing every record costs a broker as
much as everything else that it does with small records, so `check_ends` does a bounded amount of work for a batch: it
parses the first and the last record, and follows the lengths between them where there are few. The last record of a
larger batch is found from behind, by its offset. That tells a batch with the wrong number of records, or with something
else than records, from a sound one; damage in the middle of a large batch is found by `parse_records` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.wire.batch import SMALLEST_RECORD
from penstock.wire.primitives import Buffer
from penstock.wire.records import MAX_HEADERS, NULL
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_varlong, write_varlong

MAX_PARSED = 2
"""Batches with at most as many records have all of them parsed."""
MAX_STEPS = 16
"""Batches with at most as many records have all lengths followed."""
TAIL_BYTES = 4 * 1024
"""The part of a batch in which the last record is searched for first."""
MAX_CANDIDATES = 64
"""Places that look like the last record's offset and are tried before the whole batch is walked."""
MAX_GROWN_BYTES = 4
"""By how many bytes the last record of a batch of equal records may be longer than the first."""
DENSE_BYTES = 512
"""Batches with fewer bytes a record are copied before they are walked: an index into `bytes` is cheaper."""
SMALLEST_LENGTH = (SMALLEST_RECORD - 1) << 1
"""The length of the smallest record as it is written."""
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


def check_ends(data: Buffer, count: int, last_offset_delta: int) -> None:
    """Check the decompressed records `data` of a batch by a bounded number of them. Raises MalformedMessage."""
    size = check_size(data, count)
    if count <= MAX_PARSED:
        for _ in parse_records(data, count, last_offset_delta):
            pass
        return
    first = parse(data, 0, size, 0)
    check_delta(first, 0, last_offset_delta)
    if count > MAX_STEPS and ends_with(data, find_last(data, count, first.end), last_offset_delta):
        return
    is_dense = count > MAX_STEPS and size < count * DENSE_BYTES
    last = parse(data, walk_lengths(bytes(data) if is_dense else data, count), size, count - 1)
    if last.end != size:
        raise MalformedMessage(f"{size - last.end} bytes follow the last record")
    check_last(last, last_offset_delta)


def ends_with(data: Buffer, start: int | None, last_offset_delta: int) -> bool:
    """Whether a record with the batch's last offset begins at `start` and ends where `data` ends."""
    if start is None:
        return False
    size = len(data)
    try:
        last = parse_record(data, start, size)
    except (IndexError, MalformedMessage):
        return False  # the bytes of a value may look like a record: the walk decides
    return last.end == size and last.offset_delta == last_offset_delta


def parse_records(data: Buffer, count: int, last_offset_delta: int) -> Iterator[RecordShape]:
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
    check_last(shape, last_offset_delta)


def check_size(data: Buffer, count: int) -> int:
    """The size of `data` in bytes. Raises MalformedMessage where `count` records do not fit into it."""
    size = len(data)
    if count < 1 or count * SMALLEST_RECORD > size:
        raise MalformedMessage(f"{count} records in {size} bytes")
    return size


def check_delta(shape: RecordShape, index: int, last_offset_delta: int) -> None:
    if not 0 <= shape.offset_delta <= last_offset_delta:
        raise MalformedMessage(f"record {index} has the offset {shape.offset_delta}, the last is {last_offset_delta}")


def check_last(shape: RecordShape, last_offset_delta: int) -> None:
    if shape.offset_delta != last_offset_delta:
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


def walk_lengths(data: Buffer, count: int) -> int:
    """Where the last of `count` records begins. Raises MalformedMessage where there are not exactly as many."""
    size = len(data)
    start, at = step(data, 0, count, size)
    if at != size:
        raise MalformedMessage(f"{size - at} bytes follow record {count - 1}, the last that the batch claims")
    return start


def step(data: Buffer, at: int, count: int, size: int) -> tuple[int, int]:
    """(where the last of `count` records begins, the position behind it), by lengths alone, from `at` on.

    Lengths of one and two bytes are read in place. Raises MalformedMessage.
    """
    start = at
    for index in range(count):
        if at >= size:
            raise MalformedMessage(f"{index} records where the batch claims {count}")
        start = at
        low = data[at]
        if low < 0x80:
            at += 1 + (low >> 1)
            if low & 1 or low < SMALLEST_LENGTH:
                raise MalformedMessage(f"record {index} has a length that no record can have")
        else:
            high = data[at + 1] if at + 1 < size else 0x80
            if high < 0x80 and not low & 1:
                at += 2 + ((low & 0x7F | high << 7) >> 1)
            else:
                at = skip_length(data, at, index)
    if at > size:
        raise MalformedMessage(f"record {count - 1} is cut short")
    return start, at


def skip_length(data: Buffer, at: int, index: int) -> int:
    """The position behind the record at `at`, by its length of several bytes. Raises MalformedMessage."""
    try:
        signed, at = read_varlong(data, at)
    except IndexError:
        raise MalformedMessage(f"record {index} is cut short") from None
    except MalformedMessage as e:
        raise MalformedMessage(f"record {index}: {e}") from None
    if signed < SMALLEST_RECORD - 1:
        raise MalformedMessage(f"record {index} has a length that no record can have")
    return at + signed


def find_last(data: Buffer, count: int, first_size: int) -> int | None:
    """Return where the record with the offset `count` - 1 begins that ends where `data` ends; None if not found soon.

    Most batches hold records of one size, so the search begins where such a record would begin. The second attempt
    searches backwards for the bytes of the offset, and accepts a place if the length in front of it fits.
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
        # The attributes are 0 and stand two bytes in front, or further where the timestamp has more bytes.
        if not tail[at - 2] or tail[at - 2] >= 0x80:
            found = record_start(tail, at, window)
            if found is not None:
                return size - window + found
        end = at + len(pattern) - 1
    return None


def record_end(data: Buffer, start: int) -> int:
    """Return the end of a record that begins at `start`, as its length gives it; -1 if no length stands there."""
    try:
        length, behind = read_varlong(data, start)
    except (IndexError, MalformedMessage):
        return -1
    return behind + length


def record_start(data: bytes, offset_at: int, end: int) -> int | None:
    """Where a record begins whose offset stands at `offset_at` and which reaches up to `end`."""
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
            return None  # the timestamp cannot reach over a byte that ends a number
        attributes_at -= 1
    return None


def length_start(data: bytes, behind: int, end: int) -> int | None:
    """Where a length begins that stands in front of `behind` and leads from there to `end`."""
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
