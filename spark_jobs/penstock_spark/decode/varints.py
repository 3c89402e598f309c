"""Many varints at once: numpy looks at the eight bytes behind each position as one 64-bit number.

`hops`, `fields` and `headers` read with it. A position may be anywhere in the buffer's data, because behind those the
buffer has `PADDING` bytes of zeros.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_varlong

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

PADDING = 64
"""A record's header is at most 42 bytes (four varints of ten bytes, a length and its attributes), read as words."""
TOP_BITS = np.uint64(0x8080808080808080)
ONE, TWO, THREE, FOUR, EIGHT, WORD_BITS = (np.uint64(number) for number in (1, 2, 3, 4, 8, 64))
SEVENS = np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)
FOURTEENS = np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)
TWENTY_EIGHTS = np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)
SMALL = np.uint64(0x7F)
CONTINUES = np.uint64(0x80)


class Bytes:
    """The first `size` bytes of a buffer, with `PADDING` behind them; what stands behind that is something else."""

    __slots__ = ("data", "octets", "pairs", "shorts", "size", "words")

    def __init__(self, data: bytearray, size: int) -> None:
        self.data = data
        self.size = size
        length = size + PADDING
        self.octets: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8, length)
        # At p: the two, eight and sixteen bytes from p on.
        self.shorts: npt.NDArray[np.uint16] = np.ndarray((length - 1,), "<u2", data, strides=(1,))
        self.words: Words = np.ndarray((length - 7,), "<u8", data, strides=(1,))
        self.pairs: npt.NDArray[np.void] = np.ndarray((length - 15,), "V16", data, strides=(1,))


class VarintTooLong(Exception):
    """A varint has more than ten bytes, or more than 64 bits; `index` says which of those that were read."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def read_varints(source: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """(values, positions behind them) of the signed varints at `at`. Raises `VarintTooLong`."""
    words = source.words[at]
    values, bits = lowest(words)
    if bits is None:
        return values, at + 1
    behind = at + (bits >> THREE).view(np.int64)
    # Nine or ten bytes: only times a million years apart need them.
    for index in np.flatnonzero(bits > WORD_BITS).tolist():
        try:
            values[index], behind[index] = read_varlong(source.data, int(at[index]))
        except (MalformedMessage, IndexError):
            raise VarintTooLong(index) from None
    return values, behind


def read_run(source: Bytes, at: Ints, count: int) -> tuple[list[Ints], Ints] | None:
    """The values of `count` varints that stand one behind the other, behind one more and a byte of something else, and
    the position behind them; None where they have, for one of `at`, more than eight bytes together, or the one before
    them more than six: then they are to be read one by one.

    Two words are fetched instead of one for each, which is what takes time.
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
    """(values of the varints in the lowest bytes, their bits), None where each is one byte. More than 64 bits are
    those of a varint that ends in none of the eight bytes; its value means nothing."""
    if not (words & CONTINUES).any():
        return unzigzag(words & SMALL), None
    # The lowest top bit that is clear ends the varint; a number less one has all bits below its lowest.
    last = ~words
    last &= TOP_BITS
    below = (last & -last) - ONE
    bits = np.bitwise_count(below).astype(np.uint64)
    bits += ONE
    return unzigzag(pack_sevens(words & below, int(bits.max()))), bits


def width_bits(words: Words) -> Words:
    """How many bits the varint in the lowest bytes takes."""
    last = ~words
    last &= TOP_BITS
    bits: Words = np.bitwise_count((last & -last) - ONE).astype(np.uint64)
    bits += ONE
    return bits


def pack_sevens(words: Words, bits: int = 64) -> Words:
    """Of each byte the low seven bits, side by side: 56 bits of 64. Of words of at most so many bits."""
    words = (words & SEVENS[0]) | ((words & SEVENS[1]) >> ONE)
    if bits > 16:
        words = (words & FOURTEENS[0]) | ((words & FOURTEENS[1]) >> TWO)
    if bits > 32:
        words = (words & TWENTY_EIGHTS[0]) | ((words & TWENTY_EIGHTS[1]) >> FOUR)
    return words


def unzigzag(words: Words) -> Ints:
    """Even numbers are twice a number from 0 on, odd ones twice its complement."""
    return ((words >> ONE) ^ -(words & ONE)).view(np.int64)
