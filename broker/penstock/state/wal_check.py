"""Checks SQLite's write-ahead log before SQLite opens it. Called by `database`.

SQLite takes the first invalid frame for the end of the log and silently drops what follows. That is right for a write
that a crash interrupted, but wrong for a flipped bit before later committed transactions. Each transaction is synced
before the next is written, so frames of two transactions behind an invalid one prove damage.

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

Checksums = tuple[int, int]


def find_damage(path: str) -> str | None:
    """Return what is wrong with the write-ahead log at `path`; None if it is valid or missing. Raises OSError."""
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        content = file.read()
    if len(content) < HEADER.size or not any(content[: HEADER.size]):
        return None
    magic, _, page_size, _, salt1, salt2, *header_sums = HEADER.unpack_from(content)
    order = {MAGIC_LITTLE_ENDIAN: "<", MAGIC_BIG_ENDIAN: ">"}.get(magic)
    if order is None:
        return "its header is not that of a write-ahead log"
    sums = update_checksum(content[: HEADER.size - 8], order, (0, 0))
    if list(sums) != header_sums or page_size < 512:
        return "the checksum of its header is wrong"
    bad = first_bad_frame(content, page_size, (salt1, salt2), order, sums)
    if has_later_transactions(content, page_size, (salt1, salt2), bad):
        return f"frame {bad} is damaged, and transactions follow it"
    return None


def first_bad_frame(content: bytes, page_size: int, salts: Checksums, order: str, sums: Checksums) -> int:
    """Return the number, from 0, of the first frame that is incomplete, of another log, or has a wrong checksum."""
    size = FRAME.size + page_size
    number = 0
    for start in range(HEADER.size, len(content) - size + 1, size):
        _, _, salt1, salt2, sum1, sum2 = FRAME.unpack_from(content, start)
        if (salt1, salt2) != salts:
            break
        sums = update_checksum(content[start : start + 8], order, sums)
        sums = update_checksum(content[start + FRAME.size : start + size], order, sums)
        if sums != (sum1, sum2):
            break
        number += 1
    return number


def has_later_transactions(content: bytes, page_size: int, salts: Checksums, bad: int) -> bool:
    """Return whether the frames from `bad` on belong to more than one transaction of this log."""
    size = FRAME.size + page_size
    committed = False
    for start in range(HEADER.size + bad * size, len(content) - size + 1, size):
        _, pages, salt1, salt2, _, _ = FRAME.unpack_from(content, start)
        if (salt1, salt2) == salts:
            if committed:
                return True
            committed = pages > 0
    return False


def update_checksum(data: bytes, order: str, sums: Checksums) -> Checksums:
    """Update SQLite's checksum over pairs of 32-bit words."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, two in zip(words, words, strict=True):
        first = (first + one + second) & MASK
        second = (second + two + first) & MASK
    return first, second
