"""Encodes rows as records. `batches` groups the records and writes batch headers.

The bytes between keys and values are packed into short binary arrays; Arrow joins them with keys and values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock_spark.encode.varints import Ints, VarintColumn, pack, varints, widths


class RecordSizes(NamedTuple):
    """Sizes of each row: key and value in bytes, -1 for null; number of headers. `rest` is the record's size without
    its length, timestamp delta and offset delta."""

    key: Ints
    value: Ints
    header_count: Ints | None
    rest: Ints

    def part(self, rows: slice) -> RecordSizes:
        """Return the sizes of a slice."""
        counts = None if self.header_count is None else self.header_count[rows]
        return RecordSizes(self.key[rows], self.value[rows], counts, self.rest[rows])


def measure(
    key: pa.BinaryArray, value: pa.BinaryArray, counts: Ints | None, headers: pa.BinaryArray | None
) -> RecordSizes:
    """Measure rows. `headers` and `counts` come from `header_bytes`; both are None if no row has headers."""
    key_sizes, value_sizes = lengths(key), lengths(value)
    rest = widths(key_sizes) + widths(value_sizes)
    rest += 2  # attributes, and at least one byte for the number of headers
    rest += np.maximum(key_sizes, 0)
    rest += np.maximum(value_sizes, 0)
    if counts is not None and headers is not None:
        rest += widths(counts) - 1 + lengths(headers)
    return RecordSizes(key_sizes, value_sizes, counts, rest)


def lengths(array: pa.BinaryArray) -> Ints:
    """Return the size of each value in bytes; -1 for null."""
    sizes = pc.binary_length(array)
    if sizes.null_count:
        sizes = sizes.fill_null(-1)
    found: Ints = sizes.to_numpy().astype(np.int64)
    return found


def join_records(
    key: pa.BinaryArray,
    value: pa.BinaryArray,
    headers: pa.BinaryArray | None,
    sizes: RecordSizes,
    timestamp_deltas: Ints,
    offset_deltas: Ints,
) -> pa.BinaryArray:
    """Return the record of each row."""
    times, offsets = varints(timestamp_deltas), varints(offset_deltas)
    length = varints(sizes.rest + times.widths + offsets.widths)
    # The attributes are a zero byte after the length.
    columns = [VarintColumn(length.words, length.widths + 1, length.widest + 1), times, offsets, varints(sizes.key)]
    pieces: list[pa.BinaryArray | pa.BinaryScalar] = []
    if key.null_count == len(key):
        columns.append(varints(sizes.value))
    else:
        pieces += [pack(columns), key]
        columns = [varints(sizes.value)]
    pieces.append(pack(columns))
    if value.null_count < len(value):
        pieces.append(value)
    if headers is None or sizes.header_count is None:
        pieces.append(pa.scalar(b"\0", pa.binary()))
    else:
        pieces += [pack([varints(sizes.header_count)]), headers]
    return join(pieces)


def join(pieces: list[pa.BinaryArray | pa.BinaryScalar]) -> pa.BinaryArray:
    """Concatenate the pieces of each row; null counts as empty."""
    nothing = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(*pieces, nothing, null_handling="replace", null_replacement="")


def header_bytes(headers: pa.ListArray) -> tuple[Ints, pa.BinaryArray]:
    """Return the number of each row's headers, and their bytes. Raises `ValueError` for a header without key."""
    rows = len(headers)
    counts = headers.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    flat = headers.flatten()
    keys, values = flat.field("key").cast(pa.binary()), flat.field("value")
    if keys.null_count or flat.null_count:
        raise ValueError("a header has no key; give each header a key, or remove the header")
    each = join([pack([varints(lengths(keys))]), keys, pack([varints(lengths(values))]), values])
    _, offset_buffer, data = each.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(each) + 1, each.offset * 4)
    firsts = np.zeros(rows + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    edges = pa.py_buffer(offsets[firsts])
    return counts, pa.BinaryArray.from_buffers(pa.binary(), rows, [None, edges, data])
