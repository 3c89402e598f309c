"""Decodes record headers to Arrow lists: the first header of all records at once, then the second, and so on. The
number of steps is the maximum number of headers in one record.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.client.batches import MAX_HEADERS
from penstock_spark.decode.fields import DamagedRecord, check
from penstock_spark.decode.gather import bitmap, gather
from penstock_spark.decode.varints import Bytes, Ints, VarintTooLong, read_varints
from penstock_spark.model.columns import HEADER

SURROGATES: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
REPLACEMENT = "\ufffd".encode()


def read_headers(source: Bytes, buffer: pa.Buffer, ends: Ints, at: Ints, count: Ints) -> pa.ListArray:
    """Return the list of each record's headers; null if it has none, as in Spark's Kafka connector.

    `at` and `count` are `Fields.headers_at` and `header_count`; `buffer` is `source` for Arrow. Raises `DamagedRecord`.
    """
    most = int(count.max(initial=0))
    if most > MAX_HEADERS:
        raise DamagedRecord(int(count.argmax()), f"it has {most} headers, more than {MAX_HEADERS}")
    rows = len(count)
    firsts = np.zeros(rows + 1, np.int64)
    np.cumsum(count, out=firsts[1:])
    total = int(firsts[-1])
    key_at, key_size, value_at, value_size = (np.empty(total, np.int64) for _ in range(4))
    records = np.flatnonzero(count)
    at, limits, left, slot = at[records], ends[records], count[records], firsts[records]
    try:
        while len(records):
            size, begin = read_varints(source, at)
            key_size[slot], key_at[slot] = size, begin
            check((size >= 0) & (size <= limits - begin), "the key of a header exceeds the record")
            size, begin = read_varints(source, begin + size)
            value_size[slot], value_at[slot] = size, begin
            check((size >= -1) & (size <= limits - begin), "the value of a header exceeds the record")
            at = begin + np.maximum(size, 0)
            going = left > 1
            check(going | (at == limits), "its headers do not end with the record")
            if not going.all():
                records, at, limits, left, slot = (column[going] for column in (records, at, limits, left, slot))
            left = left - 1
            slot = slot + 1
    except VarintTooLong as e:
        raise DamagedRecord(int(records[e.index]), "a varint in its headers has more than 64 bits") from None
    except DamagedRecord as e:
        raise DamagedRecord(int(records[e.index]), e.reason) from None
    return lists(firsts, as_text(gather(buffer, key_at, key_size)), gather(buffer, value_at, value_size))


def lists(firsts: Ints, keys: pa.StringArray, values: pa.BinaryArray) -> pa.ListArray:
    """Return lists of keys and values, split at `firsts`."""
    rows = len(firsts) - 1
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    empty = firsts[1:] == firsts[:-1]
    type_ = pa.list_(HEADER)
    offsets = pa.py_buffer(firsts.astype(np.int32))
    return pa.ListArray.from_buffers(type_, rows, [bitmap(~empty), offsets], -1, 0, [structs])


def as_text(keys: pa.BinaryArray) -> pa.StringArray:
    """Return the keys as text; invalid UTF-8 is replaced as by the Java client."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([java_text(key) for key in keys.to_pylist()], pa.string())


def java_text(key: bytes) -> str:
    """Decode UTF-8 as Java does: one U+FFFD for half of a surrogate pair, where Python writes one for each byte."""
    return SURROGATES.sub(REPLACEMENT, key).decode(errors="replace")
