"""Writes many varints at once: each is computed as a 64-bit number, and numpy writes these to their positions.

Called by `records` for everything between keys and values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

LARGEST = (1 << 55) - 1
"""Varints of at most eight bytes represent numbers from the complement of this to this."""
WORD = 8
ONE, THREE = np.uint64(1), np.uint64(3)
WIDTHS = np.array([1, *((bits + 6) // 7 for bits in range(1, 65))], np.int64)
"""Varint size in bytes by the bit length of a zigzag number."""
BELOW_TOP = np.array([0x8080808080808080 & ((1 << 8 * (width - 1)) - 1) for width in range(1, WORD + 1)], np.uint64)
"""By size - 1, the continuation bits of a varint."""
SPLIT_28 = np.uint64(0x000000000FFFFFFF), np.uint64(0x00FFFFFFF0000000)
SPLIT_14 = np.uint64(0x00003FFF00003FFF), np.uint64(0x0FFFC0000FFFC000)
SPLIT_7 = np.uint64(0x007F007F007F007F), np.uint64(0x3F803F803F803F80)
TWO, FOUR = np.uint64(2), np.uint64(4)


class VarintColumn(NamedTuple):
    """A few bytes for each row: the lowest `widths` bytes of `words`; the others are 0."""

    words: Words
    widths: Ints
    widest: int


def zigzag(values: Ints) -> Words:
    """Encode signed numbers as zigzag."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def widths(values: Ints) -> Ints:
    """Return the varint size of each value in bytes."""
    bits = zigzag(values)
    largest = int(bits.max(initial=0))
    smear = 1
    while smear < largest.bit_length():
        bits |= bits >> np.uint64(smear)
        smear <<= 1
    return WIDTHS[np.bitwise_count(bits)]


def varints(values: Ints, known_widths: Ints | None = None) -> VarintColumn:
    """Return the varints of `values`, which must be within `LARGEST` of 0."""
    width = widths(values) if known_widths is None else known_widths
    words = zigzag(values)
    widest = int(width.max(initial=1))
    assert widest <= WORD, "a varint of more than eight bytes"
    if widest > 1:
        if widest > 4:
            words = (words & SPLIT_28[0]) | ((words & SPLIT_28[1]) << FOUR)
        if widest > 2:
            words = (words & SPLIT_14[0]) | ((words & SPLIT_14[1]) << TWO)
        words = (words & SPLIT_7[0]) | ((words & SPLIT_7[1]) << ONE)
        words |= BELOW_TOP[width - 1]
    return VarintColumn(words, width, widest)


def pack(columns: list[VarintColumn]) -> pa.BinaryArray:
    """Concatenate the bytes of all columns for each row."""
    merged = merge(columns)
    rows = len(merged[0].words)
    total = sum(column.widths for column in merged)
    assert isinstance(total, np.ndarray), "at least one column"
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(total, out=offsets[1:])
    # Words are written in order, so that each overwrites the excess bytes of the previous one.
    at = np.empty((rows, len(merged)), np.int64)
    words = np.empty((rows, len(merged)), np.uint64)
    at[:, 0] = offsets[:-1]
    for index, column in enumerate(merged):
        words[:, index] = column.words
        if index + 1 < len(merged):
            np.add(at[:, index], column.widths, out=at[:, index + 1])
    data = bytearray(int(offsets[-1]) + WORD)
    target: Words = np.ndarray((len(data) - WORD + 1,), dtype="<u8", buffer=data, strides=(1,))
    target[at.ravel()] = words.ravel()
    return pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def merge(columns: list[VarintColumn]) -> list[VarintColumn]:
    """Merge neighbouring columns that fit into one word."""
    merged = [columns[0]]
    for column in columns[1:]:
        last = merged[-1]
        widest = last.widest + column.widest
        if widest > WORD:
            merged.append(column)
            continue
        words = last.words | column.words << (last.widths.view(np.uint64) << THREE)
        merged[-1] = VarintColumn(words, last.widths + column.widths, widest)
    return merged
