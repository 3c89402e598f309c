"""Looks at SQLite's write-ahead log before SQLite does. Called by `database` at each opening.

SQLite takes the first frame that is not as it should be for the end of the log, and drops what follows without a word:
right for a write that a crash cut short, wrong for a flipped bit before later transactions, which were answered. Each
transaction is synced before the next is written, so frames of two transactions behind a bad one prove damage.

The layout is that of "WAL File Format" in SQLite's documentation (https://www.sqlite.org/fileformat2.html#walformat).
"""

from __future__ import annotations

import os
import struct

HEADER = struct.Struct(">8I")
"""magic, version, page size, checkpoint number, two salts, two checksums"""
FRAME = struct.Struct(">6I")
"""page number, pages of the database after a commit or 0, two salts, two checksums"""
MAGIC_LITTLE_ENDIAN, MAGIC_BIG_ENDIAN = 0x377F0682, 0x377F0683
MASK = 0xFFFFFFFF

Sums = tuple[int, int]


def damage(path: str) -> str | None:
    """What is wrong with the write-ahead log at `path`; None where nothing is, or there is none. Raises OSError."""
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        content = file.read()
    if len(content) < HEADER.size or not any(content[: HEADER.size]):
        return None
    magic, _, page_size, _, salt1, salt2, *header_sums = HEADER.unpack_from(content)
    order = {MAGIC_LITTLE_ENDIAN: "<", MAGIC_BIG_ENDIAN: ">"}.get(magic)
    if order is None:
        return "its header is not a write-ahead log's"
    sums = add(content[: HEADER.size - 8], order, (0, 0))
    if list(sums) != header_sums or page_size < 512:
        return "the checksum of its header is wrong"
    bad = first_bad_frame(content, page_size, (salt1, salt2), order, sums)
    if transactions_go_on(content, page_size, (salt1, salt2), bad):
        return f"frame {bad} is damaged, and transactions follow it"
    return None


def first_bad_frame(content: bytes, page_size: int, salts: Sums, order: str, sums: Sums) -> int:
    """The number of the first frame that is not whole, of this log, and as it was written; from 0."""
    size = FRAME.size + page_size
    number = 0
    for start in range(HEADER.size, len(content) - size + 1, size):
        _, _, salt1, salt2, sum1, sum2 = FRAME.unpack_from(content, start)
        if (salt1, salt2) != salts:
            break
        sums = add(content[start : start + 8], order, sums)
        sums = add(content[start + FRAME.size : start + size], order, sums)
        if sums != (sum1, sum2):
            break
        number += 1
    return number


def transactions_go_on(content: bytes, page_size: int, salts: Sums, bad: int) -> bool:
    """Whether frames from `bad` on belong to more than one transaction of this log."""
    size = FRAME.size + page_size
    committed = False
    for start in range(HEADER.size + bad * size, len(content) - size + 1, size):
        _, pages, salt1, salt2, _, _ = FRAME.unpack_from(content, start)
        if (salt1, salt2) == salts:
            if committed:
                return True
            committed = pages > 0
    return False


def add(data: bytes, order: str, sums: Sums) -> Sums:
    """SQLite's running checksum over 32-bit words, two at a time."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, two in zip(words, words, strict=True):
        first = (first + one + second) & MASK
        second = (second + two + first) & MASK
    return first, second
