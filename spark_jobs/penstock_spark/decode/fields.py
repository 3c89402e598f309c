"""Splits records into fields: a column of positions or numbers for each. Called by `decoder` for up to some ten
thousand records at once.

A record consists of its length, attributes (one byte), timestamp delta, offset delta, key and value with their lengths
(-1 for null), the number of headers, headers. All numbers except the attributes are varints.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock_spark.decode.varints import Bytes, Ints, VarintTooLong, read_run, read_varints

Flags = npt.NDArray[np.bool_]


class DamagedRecord(Exception):
    """A record is damaged. `index` is its index among the records that were decoded together."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index, self.reason = index, reason


class Fields(NamedTuple):
    """Fields of each record. Sizes in bytes, -1 for null."""

    timestamp_delta_ms: Ints
    offset_delta: Ints
    key_at: Ints
    key_size: Ints
    value_at: Ints
    value_size: Ints
    headers_at: Ints
    """Position of the first header; the record's end if it has none."""
    header_count: Ints


def read_fields(source: Bytes, starts: Ints, ends: Ints) -> Fields:
    """Decode the fields of records from their starts and ends. All results lie inside their records, except headers,
    which `headers.read_headers` checks. Raises `DamagedRecord`."""
    try:
        timestamp_delta, offset_delta, key_size, key_at = read_beginnings(source, starts)
        check((key_size >= -1) & (key_size <= ends - key_at), "its key exceeds the record")
        value_size, value_at = read_varints(source, key_at + np.maximum(key_size, 0))
        check((value_size >= -1) & (value_size <= ends - value_at), "its value exceeds the record")
        behind = value_at + np.maximum(value_size, 0)
        if np.array_equal(behind + 1, ends) and not source.octets.take(behind).any():
            none = np.zeros(len(ends), np.int64)
            return Fields(timestamp_delta, offset_delta, key_at, key_size, value_at, value_size, ends, none)
        count, headers_at = read_varints(source, behind)
    except VarintTooLong as e:
        raise DamagedRecord(e.index, "a varint has more than 64 bits") from None
    left = ends - headers_at
    # A header has at least two bytes; without headers no bytes may be left.
    check((count >= 0) & (count <= left >> 1) & ((left == 0) | (count > 0)), "its headers do not end with the record")
    return Fields(timestamp_delta, offset_delta, key_at, key_size, value_at, value_size, headers_at, count)


def read_beginnings(source: Bytes, starts: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return timestamp deltas, offset deltas, key sizes and key positions."""
    run = read_run(source, starts, 3)
    if run is not None:
        (timestamp_delta, offset_delta, key_size), key_at = run
    else:
        _, at = read_varints(source, starts)
        timestamp_delta, at = read_varints(source, at + 1)
        offset_delta, at = read_varints(source, at)
        key_size, key_at = read_varints(source, at)
    return timestamp_delta, offset_delta, key_size, key_at


def check(good: Flags, reason: str) -> None:
    """Raise `DamagedRecord` for the first record that is not good."""
    if not good.all():
        raise DamagedRecord(int(np.argmin(good)), reason)
