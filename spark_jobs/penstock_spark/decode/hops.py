"""Finds the starts of records. A record has only its length, so each start follows from the previous record.

There are two methods. `hop` goes from record to record in a comprehension. `stride` starts at many places at once and
advances them in parallel with numpy; the places are starts of batches, which are certain, and positions that look like
starts of records. Its result is always correct, because each stretch must end exactly at the start of the next; if one
does not, `stride` gives up and `hop` decides.
"""

from __future__ import annotations

from array import array
from itertools import repeat

import numpy as np
import numpy.typing as npt

from penstock.client.batches import SMALLEST_RECORD, MalformedMessage, read_varlong
from penstock_spark.decode.varints import THREE, Bytes, Ints, lowest, read_run, width_bits

Flags = npt.NDArray[np.bool_]

FAR = 1 << 40
"""Added to a position it exceeds every buffer: for lengths that are negative or have more than three bytes."""
FIRST = tuple(FAR if byte & 1 else (byte >> 1) + 1 if byte < 0x80 else ((byte & 0x7F) >> 1) + 2 for byte in range(256))
SECOND = tuple(byte << 6 if byte < 0x80 else ((byte & 0x7F) << 6) + 1 for byte in range(256))
THIRD = tuple(byte << 13 if byte < 0x80 else FAR for byte in range(256))
"""What each byte of a length's varint adds to the position: their sum is the record's total size."""
SIZES = np.array(
    [
        FIRST[first] + (0 if first < 0x80 else SECOND[second] if second < 0x80 else FAR)
        for second in range(256)
        for first in range(256)
    ],
    np.int64,
)
"""Total size of a record by its first two bytes, read as one number; `FAR` if its length has more bytes."""
THREE_BYTES = np.uint64(24)

MIN_STRIDE_RECORDS = 6_000
"""Number of records from which `stride` is faster."""
MAX_STRIDE_RECORDS = 1 << 20
"""Above this `stride` needs hundreds of megabytes, because it holds whole columns of candidates."""
RECORDS_PER_BLOCK = 1 << 16
"""Maximum list length in `hop`: a number takes five times more memory in a list than in an array."""
RECORDS_PER_STRETCH = 40
WINDOW_RECORDS = 3
"""Size of the window for a stretch's first record, in records of average size."""
MAX_ZEROS = 8 * WINDOW_RECORDS
"""With more zero bytes per window on average, checking them all costs more than `stride` saves."""
MIN_STRETCHES = 48
"""With fewer active stretches `hop` is faster."""


class DamagedOffsets(Exception):
    """Records do not follow one another. `position` is the expected start of a record, `reason` says what is wrong."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


def record_starts(source: Bytes, count: int, sections: Ints) -> Ints:
    """Return `count` + 1 positions: the start of each record, and the end of `source`.

    `sections` are the starts of the batches' records. Raises `DamagedOffsets` unless there are exactly `count` records.
    Uses 8 bytes of memory per record, whatever the data, plus a bounded amount.
    """
    if MIN_STRIDE_RECORDS <= count <= MAX_STRIDE_RECORDS and (found := stride(source, count, sections)) is not None:
        return found
    return hop(source, 0, source.size, count)


def hop(source: Bytes, start: int, end: int, count: int) -> Ints:
    """Return the starts of records from `start` to `end`; see `record_starts`."""
    data, at = source.data, start
    starts = np.empty(count + 1, np.int64)
    starts[0] = start
    try:
        for first in range(0, count, RECORDS_PER_BLOCK):
            behind = [
                at := at
                + FIRST[byte := data[at]]
                + (0 if byte < 0x80 else SECOND[byte := data[at + 1]] + (0 if byte < 0x80 else THIRD[data[at + 2]]))
                for _ in repeat(None, min(RECORDS_PER_BLOCK, count - first))
            ]
            starts[first + 1 : first + 1 + len(behind)] = behind
    except IndexError:
        return walk(source, start, end, count)
    return starts if at == end else walk(source, start, end, count)


def walk(source: Bytes, start: int, end: int, count: int) -> Ints:
    """Return the same as `hop`, for lengths of any size, with a reason in the error."""
    starts = array("q", [start])
    at = start
    for index in range(count):
        if at >= end:
            raise DamagedOffsets(at, f"it claims {count} records and holds {index}")
        try:
            size, body = read_varlong(source.data, at)
        except (MalformedMessage, IndexError):
            raise DamagedOffsets(at, f"the length of record {index} has more than 64 bits") from None
        if not SMALLEST_RECORD - 1 <= size <= end - body:
            raise DamagedOffsets(at, f"record {index} claims {size} bytes where {end - body} are left")
        at = body + size
        starts.append(at)
    if at != end:
        raise DamagedOffsets(at, f"{end - at} bytes follow its {count} records")
    return np.frombuffer(starts, np.int64)


def stride(source: Bytes, count: int, sections: Ints) -> Ints | None:
    """Return the same as `record_starts`, or None if it cannot be determined this way."""
    stretches = count // RECORDS_PER_STRETCH
    begins = np.concatenate((sections[sections < source.size], likely_starts(source, count, stretches)))
    if len(begins) < stretches // 2:
        return None
    begins.sort()
    begins = begins[first_of_each(begins)]
    goals = np.append(begins[1:], source.size)
    found = [begins]
    at = begins
    total = len(begins)
    while True:
        behind = at + SIZES.take(source.shorts[at])
        going = behind < goals
        if not going.all():
            far = behind >= FAR
            if far.any():
                behind[far] = at[far] + sizes_at(source, at[far])
                going = behind < goals
            if not np.array_equal(behind[~going], goals[~going]):
                return None
            behind, goals = behind[going], goals[going]
        at = behind
        if len(at) < MIN_STRETCHES:
            break
        found.append(at)
        total += len(at)
        if total > count:
            return None
    for begin, goal in zip(at.tolist(), goals.tolist(), strict=True):
        rest = finish(source.data, begin, goal)
        if rest is None:
            return None
        found.append(rest)
    found.append(np.array([source.size], np.int64))
    starts = np.concatenate(found)
    if len(starts) != count + 1:
        return None
    starts.sort()
    return starts


def first_of_each(values: Ints) -> Flags:
    """Return for each of the sorted values whether it is the first of its kind."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def sizes_at(source: Bytes, at: Ints) -> Ints:
    """Return the total size of the record at each position; `FAR` if its length is negative or has more than three
    bytes."""
    words = source.words[at]
    last = width_bits(words)
    lengths, _ = lowest(words)
    sizes = lengths + (last >> THREE).view(np.int64)
    sizes[(lengths < 0) | (last > THREE_BYTES)] = FAR
    return sizes


def finish(data: bytearray, begin: int, goal: int) -> Ints | None:
    """Return the starts of records from `begin` to `goal`, exclusive; None if they do not meet `goal`."""
    starts = []
    try:
        at = begin
        while at < goal:
            starts.append(at)
            at += FIRST[byte := data[at]]
            if byte >= 0x80:
                second = data[begin + 1]
                at += SECOND[second] + (THIRD[data[begin + 2]] if second >= 0x80 else 0)
            begin = at
    except IndexError:
        return None
    return np.array(starts, np.int64) if at == goal else None


def likely_starts(source: Bytes, count: int, stretches: int) -> Ints:
    """Return at most one position per stretch of the buffer at which a record seems to start.

    A record's length is followed by its attributes, a zero byte, and by timestamp and offset delta. The next record
    starts at its end, with the next offset delta.
    """
    step = source.size // stretches
    window = min(step, WINDOW_RECORDS * (source.size // count) + 16)
    rows = np.lib.stride_tricks.as_strided(source.octets, (stretches, window), (step, 1), writeable=False)
    zeros = rows == 0
    if np.count_nonzero(zeros) > MAX_ZEROS * stretches:
        return np.empty(0, np.int64)
    stretch, within = np.divmod(np.flatnonzero(zeros), window)
    attributes = stretch * step + within
    keep = attributes >= 3
    stretch, attributes = stretch[keep], attributes[keep]
    begins = attributes - 1
    begins -= source.octets[begins - 1] >= 0x80
    ends = begins + sizes_at(source, begins)
    keep = (ends < source.size) & (ends >= begins + SMALLEST_RECORD)
    stretch, begins, ends = stretch[keep], begins[keep], ends[keep]
    offsets, next_offsets = offsets_at(source, begins), offsets_at(source, ends)
    keep = (offsets >= 0) & (next_offsets == offsets + 1)
    found: Ints = begins[keep][first_of_each(stretch[keep])]
    return found


def offsets_at(source: Bytes, begins: Ints) -> Ints:
    """Return the offset delta of a record that starts at each position; -2 if its attributes are not 0."""
    attributes = begins + (width_bits(source.words[begins]) >> THREE).view(np.int64)
    run = read_run(source, begins, 2)
    if run is not None:
        offsets: Ints = run[0][1]
    else:
        words = source.words[attributes + 1]
        offsets, _ = lowest(words >> width_bits(words))  # after the timestamp
    offsets[source.octets[attributes] != 0] = -2
    return offsets
