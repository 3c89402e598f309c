"""Reads many varints at once: numpy reads the eight bytes at each position as one 64-bit number.

Called by `hops`, `fields` and `headers`. A position may be anywhere in the data: `PADDING` zero bytes follow it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.client.batches import MalformedMessage, read_varlong

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

PADDING = 64
"""A record's fields before the key take at most 42 bytes (four varints of ten bytes, a length and its attributes)."""
TOP_BITS = np.uint64(0x8080808080808080)
ONE, TWO, THREE, FOUR, EIGHT, WORD_BITS = (np.uint64(number) for number in (1, 2, 3, 4, 8, 64))
SEVENS = np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)
FOURTEENS = np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)
TWENTY_EIGHTS = np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)
SMALL = np.uint64(0x7F)
CONTINUES = np.uint64(0x80)


class Bytes:
    """The first `size` bytes of a buffer, followed by `PADDING` bytes."""

    __slots__ = ("data", "octets", "pairs", "shorts", "size", "words")

    def __init__(self, data: bytearray, size: int) -> None:
        self.data = data
        self.size = size
        length = size + PADDING
        self.octets: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8, length)
        # Views with the two, eight and sixteen bytes from each position.
        self.shorts: npt.NDArray[np.uint16] = np.ndarray((length - 1,), "<u2", data, strides=(1,))
        self.words: Words = np.ndarray((length - 7,), "<u8", data, strides=(1,))
        self.pairs: npt.NDArray[np.void] = np.ndarray((length - 15,), "V16", data, strides=(1,))


class VarintTooLong(Exception):
    """A varint has more than ten bytes, or more than 64 bits; `index` is its index among those that were read."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def read_varints(source: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the values of the signed varints at `at`, and the positions after them. Raises `VarintTooLong`."""
    words = source.words[at]
    values, bits = lowest(words)
    if bits is None:
        return values, at + 1
    behind = at + (bits >> THREE).view(np.int64)
    # Nine or ten bytes occur only for timestamps a million years apart.
    for index in np.flatnonzero(bits > WORD_BITS).tolist():
        try:
            values[index], behind[index] = read_varlong(source.data, int(at[index]))
        except (MalformedMessage, IndexError):
            raise VarintTooLong(index) from None
    return values, behind


def read_run(source: Bytes, at: Ints, count: int) -> tuple[list[Ints], Ints] | None:
    """Return the values of `count` consecutive varints, and the position after them.

    They follow one other varint and one byte. None if, for any of `at`, they have more than eight bytes in total, or
    the varint before them more than six; then read them one by one. Reads two words instead of one per varint: memory
    access dominates.
    """
    pairs = source.pairs[at].view("<u8").reshape(-1, 2)
    low = pairs[:, 0]
    first = width_bits(low)
    first += EIGHT
    if int(first.max(initial=0)) > WORD_BITS - 8:
        return None
    window = low >> first
    window |= pairs[:, 1] << (WORD_BITS - first)
    behind = first
    values = []
    total = np.zeros(len(at), np.uint64)
    for _ in range(count):
        found, bits = lowest(window)
        values.append(found)
        if bits is None:
            total += EIGHT
            window = window >> EIGHT
        else:
            total += bits
            window = window >> bits
    if int(total.max(initial=0)) > WORD_BITS:
        return None
    behind += total
    behind >>= THREE
    return values, at + behind.view(np.int64)


def lowest(words: Words) -> tuple[Ints, Words | None]:
    """Return the values of the varints in the lowest bytes, and their bits; None if each is one byte. More than 64 bits
    mean a varint that does not end in the eight bytes; its value is meaningless."""
    if not (words & CONTINUES).any():
        return unzigzag(words & SMALL), None
    # The lowest clear top bit ends the varint; x - 1 sets all bits below the lowest bit of x.
    last = ~words
    last &= TOP_BITS
    below = (last & -last) - ONE
    bits = np.bitwise_count(below).astype(np.uint64)
    bits += ONE
    return unzigzag(pack_sevens(words & below, int(bits.max()))), bits


def width_bits(words: Words) -> Words:
    """Return the number of bits of the varint in the lowest bytes."""
    last = ~words
    last &= TOP_BITS
    bits: Words = np.bitwise_count((last & -last) - ONE).astype(np.uint64)
    bits += ONE
    return bits


def pack_sevens(words: Words, bits: int = 64) -> Words:
    """Pack the low seven bits of each byte: 56 of 64 bits. `bits` is the maximum number of bits in a word."""
    words = (words & SEVENS[0]) | ((words & SEVENS[1]) >> ONE)
    if bits > 16:
        words = (words & FOURTEENS[0]) | ((words & FOURTEENS[1]) >> TWO)
    if bits > 32:
        words = (words & TWENTY_EIGHTS[0]) | ((words & TWENTY_EIGHTS[1]) >> FOUR)
    return words


def unzigzag(words: Words) -> Ints:
    """Decode zigzag: even numbers are twice a non-negative number, odd ones twice its complement."""
    return ((words >> ONE) ^ -(words & ONE)).view(np.int64)
