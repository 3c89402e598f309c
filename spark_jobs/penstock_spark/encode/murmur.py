"""Assigns keys to partitions with the murmur2 hash of the Java client's partitioner, for all keys in parallel."""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]

MASK = 0xFFFFFFFF
M = 0x5BD1E995
MULTIPLIER = np.uint32(M)
SEED = np.uint32(0x9747B28C)
SHIFT, SHIFT_13, SHIFT_15 = np.uint32(24), np.uint32(13), np.uint32(15)
WORD = 4
FEW = 16
"""With fewer keys left, hashing them one by one is faster."""
NO_BYTES = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
"""Mask of a word by the number of bytes that are left of a key."""


def partitions(keys: pa.BinaryArray, count: int) -> npt.NDArray[np.int32]:
    """Return the partition of each key, of `count`; -1 for null."""
    if count < 1:
        raise ValueError(f"invalid partition count {count}; a topic has at least one partition")
    positive = murmur2(keys) & np.uint32(0x7FFFFFFF)
    found = (positive % np.uint32(count)).astype(np.int32)
    if keys.null_count:
        found[np.asarray(keys.is_null())] = -1
    return found


def murmur2(keys: pa.BinaryArray) -> Hashes:
    """Return the hash of each key; for null the hash of the bytes in its place."""
    rows = len(keys)
    if not rows:
        return np.empty(0, np.uint32)
    _, offset_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, rows + 1, keys.offset * WORD)
    first, end = int(offsets[0]), int(offsets[-1])
    # A word may include up to three bytes after the last key, and before it.
    data = memoryview(data_buffer)[first:end].tobytes() + bytes(WORD) if data_buffer is not None else bytes(WORD)
    words: Hashes = np.ndarray((len(data) - WORD + 1,), dtype="<u4", buffer=data, strides=(1,))
    starts = offsets[:-1].astype(np.int64) - first
    sizes = np.diff(offsets)
    hashes = whole_words(words, starts, sizes)
    left = sizes & 3
    if left.any():
        tails = words[starts + (sizes & ~3)] & NO_BYTES[left]
        hashes = np.where(left > 0, (hashes ^ tails) * MULTIPLIER, hashes)
    hashes = (hashes ^ hashes >> SHIFT_13) * MULTIPLIER
    return hashes ^ hashes >> SHIFT_15


def whole_words(words: Hashes, starts: Ints, sizes: npt.NDArray[np.int32]) -> Hashes:
    """Return the hashes after all whole words, word by word for all keys that are long enough."""
    hashes = SEED ^ sizes.astype(np.uint32)
    counts = sizes >> 2
    going = np.flatnonzero(counts)
    at, left, now = starts[going], counts[going], hashes[going]
    while len(going) > FEW:
        now = now * MULTIPLIER ^ mixed(words[at])
        left = left - 1
        more = left > 0
        if more.all():
            at = at + WORD
            continue
        hashes[going] = now
        going, at, left, now = going[more], at[more] + WORD, left[more], now[more]
    for index, start, count, hashed in zip(going.tolist(), at.tolist(), left.tolist(), now.tolist(), strict=True):
        rest = mixed(words[start : start + count * WORD : WORD]).tolist()
        hashes[index] = reduce(lambda h, word: h * M & MASK ^ word, rest, hashed)
    return hashes


def mixed(words: Hashes) -> Hashes:
    """Return words with murmur2's mix applied."""
    words = words * MULTIPLIER
    return (words ^ words >> SHIFT) * MULTIPLIER
