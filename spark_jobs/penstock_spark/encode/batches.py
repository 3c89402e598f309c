"""Cuts rows into record batches with header, compression and checksum. Called by `sink`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock.client.batches import CRC, CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, TRANSACTIONAL, compress
from penstock_spark.encode.ports import EncodableRows, EncodedBatch, ProducerId
from penstock_spark.encode.records import RecordSizes, header_bytes, join_records, measure
from penstock_spark.encode.varints import LARGEST, WORD, Ints, widths

MAGIC = 2
CRC_OFFSET = 17
SEQUENCE_MASK = 0x7FFFFFFF
BLOCK_BYTES = 64 << 20
"""Bytes of records that are joined at once; the last batch may exceed it."""


class MeasuredRows(NamedTuple):
    """Sizes of rows in batches. `ends` are cumulative upper bounds of the record sizes."""

    times: Ints
    headers: pa.BinaryArray | None
    sizes: RecordSizes
    ends: Ints


def measure_rows(rows: EncodableRows) -> MeasuredRows:
    """Measure rows. Raises `ValueError` for a header without key, and for timestamps too far apart."""
    count = len(rows.value)
    assert len(rows.key) == len(rows.timestamp_ms) == count, "the columns of rows have different lengths"
    times = rows.timestamp_ms.astype(np.int64)
    spread = int(times.max()) - int(times.min())
    if spread > LARGEST:
        raise ValueError(f"timestamps of one write are {spread} ms apart; at most {LARGEST} are allowed")
    counts, headers = None, None
    if rows.headers is not None and rows.headers.null_count < count:
        counts, headers = header_bytes(rows.headers)
    sizes = measure(rows.key, rows.value, counts, headers)
    # Upper bound of a record's size: its timestamp and offset deltas are below these maxima.
    largest = widths(np.array([spread, count, sizes.rest.max() + 2 * WORD]))
    bound = sizes.rest + int(largest.sum())
    return MeasuredRows(times, headers, sizes, np.cumsum(bound))


def batch_edges(rows: EncodableRows, max_bytes: int) -> list[int]:
    """See `ports.BatchEdges`. Raises `ValueError` as `encode` does."""
    return cuts(measure_rows(rows).ends, max_bytes - HEADER_SIZE).tolist() if len(rows.value) else [0]


def encode(
    rows: EncodableRows, codec: int, max_bytes: int, producer: ProducerId, base_sequence: int
) -> list[EncodedBatch]:
    """Return batches of at most `max_bytes` before compression (one record may be larger), in order.

    Sequence numbers continue from `base_sequence` and wrap at 2**31. Vectorised: no Python code per record. Raises
    `ValueError` for a header without key, and for timestamps too far apart.
    """
    if not len(rows.value):
        return []
    times, headers, sizes, ends = measure_rows(rows)
    batches: list[EncodedBatch] = []
    for edges in blocks(ends, cuts(ends, max_bytes - HEADER_SIZE)):
        first, end = int(edges[0]), int(edges[-1])
        part = slice(first, end)
        repeats = np.diff(edges)
        bases = edges[:-1]
        records = join_records(
            rows.key[part],
            rows.value[part],
            None if headers is None else headers[part],
            sizes.part(part),
            times[part] - np.repeat(times[bases], repeats),
            np.arange(first, end) - np.repeat(bases, repeats),
        )
        _, offset_buffer, data = records.buffers()
        offsets = np.frombuffer(offset_buffer, np.int32, end - first + 1, records.offset * 4)
        spans = offsets[edges - first].tolist()
        latest = np.maximum.reduceat(times[part], bases - first).tolist()
        view = memoryview(data)
        for index, (at, base_time) in enumerate(zip(bases.tolist(), times[bases].tolist(), strict=True)):
            body = compress(codec, view[spans[index] : spans[index + 1]])
            sequence = -1 if producer.producer_id < 0 else base_sequence + at & SEQUENCE_MASK
            length = int(repeats[index])
            batches.append(seal(body, length, codec, base_time, latest[index], producer, sequence))
    return batches


def cuts(ends: Ints, max_bytes: int) -> Ints:
    """Return the index of each batch's first row, and the number of rows. `ends` are cumulative row sizes."""
    edges = [0]
    taken = 0
    while edges[-1] < len(ends):
        edge = max(int(np.searchsorted(ends, taken + max_bytes, "right")), edges[-1] + 1)
        edges.append(edge)
        taken = int(ends[edge - 1])
    return np.array(edges, np.int64)


def blocks(ends: Ints, edges: Ints) -> Iterator[Ints]:
    """Yield the edges of runs of batches that are joined at once."""
    first = 0
    sums = np.concatenate(([0], ends))[edges]
    while first + 1 < len(edges):
        end = max(int(np.searchsorted(sums, sums[first] + BLOCK_BYTES, "right")) - 1, first + 1)
        yield edges[first : end + 1]
        first = end


def seal(
    body: bytes | bytearray | memoryview,
    count: int,
    codec: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    producer: ProducerId,
    sequence: int,
) -> EncodedBatch:
    """Return a batch of compressed records."""
    batch = bytearray(HEADER_SIZE + len(body))
    batch[HEADER_SIZE:] = body
    HEADER.pack_into(
        batch,
        0,
        0,
        len(batch) - LENGTH_OVERHEAD,
        -1,
        MAGIC,
        0,
        codec | TRANSACTIONAL if producer.transactional else codec,
        count - 1,
        base_timestamp_ms,
        max_timestamp_ms,
        producer.producer_id,
        producer.epoch if producer.producer_id >= 0 else -1,
        sequence,
        count,
    )
    with memoryview(batch) as view:
        CRC.pack_into(batch, CRC_OFFSET, crc32c(view[CRC_START:]))
    return EncodedBatch(batch, count)
