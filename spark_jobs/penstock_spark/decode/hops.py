"""Where records begin. A record says only how long it is, so each is found from the one before it.

Two ways lead there. `hop` goes from record to record in a comprehension. `stride` starts at many places at once and
goes from each in step with the others, in numpy; the places are beginnings of batches, which are certain, and others
that look like beginnings of records. It is right whenever it answers, because each stretch must end exactly where the
next begins; where one does not, it gives up and `hop` decides.
"""

from __future__ import annotations

from array import array
from itertools import repeat

import numpy as np
import numpy.typing as npt

from penstock.wire.batch import SMALLEST_RECORD
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_varlong
from penstock_spark.decode.varints import THREE, Bytes, Ints, lowest, read_run, width_bits

Flags = npt.NDArray[np.bool_]

FAR = 1 << 40
"""Added to a position, leads out of every buffer: for lengths that are negative or have more than three bytes."""
FIRST = tuple(FAR if byte & 1 else (byte >> 1) + 1 if byte < 0x80 else ((byte & 0x7F) >> 1) + 2 for byte in range(256))
SECOND = tuple(byte << 6 if byte < 0x80 else ((byte & 0x7F) << 6) + 1 for byte in range(256))
THIRD = tuple(byte << 13 if byte < 0x80 else FAR for byte in range(256))
"""What the bytes of a length's varint add to the position: together the record's whole size."""
SIZES = np.array(
    [
        FIRST[first] + (0 if first < 0x80 else SECOND[second] if second < 0x80 else FAR)
        for second in range(256)
        for first in range(256)
    ],
    np.int64,
)
"""By two bytes, as one number, the size of the record that begins with them; `FAR` where its length has more bytes."""
THREE_BYTES = np.uint64(24)

WORTH_STRIDING = 6_000
"""Records from which on `stride` is faster."""
MOST_STRIDING = 1 << 20
"""With more records `stride` takes memory by the hundreds of megabytes: whole columns of guesses are held at once."""
RECORDS_A_BLOCK = 1 << 16
"""`hop` makes no longer list than this: numbers in a list take five times the memory that they take in an array."""
RECORDS_A_STRETCH = 40
WINDOW_RECORDS = 3
"""The size of the window, in records of average size, in which a stretch's first record is looked for."""
MANY_ZEROS = 8 * WINDOW_RECORDS
"""With more bytes 0 than this in a window on average, looking at each costs more than it saves."""
FEW_STRETCHES = 48
"""With so few stretches still going, `hop` is faster."""


class DamagedOffsets(Exception):
    """`position` is where a record should begin, and `reason` says why there is none."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


def record_starts(source: Bytes, count: int, sections: Ints) -> Ints:
    """`count` + 1 positions: where each record begins, and the end of `source`. `sections` are where batches' records
    begin. Raises `DamagedOffsets` where there are not exactly `count`.

    Takes 8 bytes of memory a record, whatever the bytes say, and a bounded sum beside that.
    """
    if WORTH_STRIDING <= count <= MOST_STRIDING and (found := stride(source, count, sections)) is not None:
        return found
    return hop(source, 0, source.size, count)


def hop(source: Bytes, start: int, end: int, count: int) -> Ints:
    """As `record_starts`, from `start` to `end`."""
    data, at = source.data, start
    starts = np.empty(count + 1, np.int64)
    starts[0] = start
    try:
        for first in range(0, count, RECORDS_A_BLOCK):
            behind = [
                at := at
                + FIRST[byte := data[at]]
                + (0 if byte < 0x80 else SECOND[byte := data[at + 1]] + (0 if byte < 0x80 else THIRD[data[at + 2]]))
                for _ in repeat(None, min(RECORDS_A_BLOCK, count - first))
            ]
            starts[first + 1 : first + 1 + len(behind)] = behind
    except IndexError:
        return walk(source, start, end, count)
    return starts if at == end else walk(source, start, end, count)


def walk(source: Bytes, start: int, end: int, count: int) -> Ints:
    """As `hop`, for lengths of any size, and with an answer to what is wrong."""
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
    """As `record_starts`, or None where that cannot be told."""
    stretches = count // RECORDS_A_STRETCH
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
        if len(at) < FEW_STRETCHES:
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
    """Of sorted values, whether each is the first of its kind."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def sizes_at(source: Bytes, at: Ints) -> Ints:
    """The whole size of the record at each position; `FAR` where its length is negative or has more than three
    bytes."""
    words = source.words[at]
    last = width_bits(words)
    lengths, _ = lowest(words)
    sizes = lengths + (last >> THREE).view(np.int64)
    sizes[(lengths < 0) | (last > THREE_BYTES)] = FAR
    return sizes


def finish(data: bytearray, begin: int, goal: int) -> Ints | None:
    """The beginnings of records from `begin` up to and without `goal`."""
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
    """At most one position for each stretch of the buffer, where a record seems to begin.

    Behind a record's length stand its attributes, a byte 0, the time and the offset within the batch; and where it ends
    the next one begins, whose offset is greater by one.
    """
    step = source.size // stretches
    window = min(step, WINDOW_RECORDS * (source.size // count) + 16)
    rows = np.lib.stride_tricks.as_strided(source.octets, (stretches, window), (step, 1), writeable=False)
    zeros = rows == 0
    if np.count_nonzero(zeros) > MANY_ZEROS * stretches:
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
    """The offset within the batch that each record has if one begins there; -2 where its attributes are not 0."""
    attributes = begins + (width_bits(source.words[begins]) >> THREE).view(np.int64)
    run = read_run(source, begins, 2)
    if run is not None:
        offsets: Ints = run[0][1]
    else:
        words = source.words[attributes + 1]
        offsets, _ = lowest(words >> width_bits(words))  # behind the time
    offsets[source.octets[attributes] != 0] = -2
    return offsets
