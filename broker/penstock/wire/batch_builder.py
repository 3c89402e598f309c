"""Builds record batches (format v2) record by record. Used by the client's producer and by log compaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.wire.batch import CODEC_MASK, CRC, CRC_OFFSET, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, checksum
from penstock.wire.compression import compress
from penstock.wire.record import Header, Record
from penstock.wire.varint import write_varlong

MAGIC = 2
CACHED_VARINTS = 4096
RECORD_OVERHEAD = 36
"""Maximum bytes of a record besides key, value and headers: attributes, lengths and deltas."""
HEADER_OVERHEAD = 10


def varlong(value: int) -> bytes:
    """Return the zigzag varint of a number."""
    out = bytearray()
    write_varlong(out, value)
    return bytes(out)


VARINTS = [varlong(n) for n in range(CACHED_VARINTS)]
"""Varints of small numbers, which most lengths and deltas are."""


def varint(value: int) -> bytes:
    """Return the zigzag varint of a number, from the cache if it is small."""
    return VARINTS[value] if 0 <= value < CACHED_VARINTS else varlong(value)


class BatchBuilder:
    """Collects encoded records; `build` prepends the header.

    `size_bytes` is the current uncompressed size of the batch.
    """

    __slots__ = ("base_timestamp_ms", "body", "count", "max_timestamp_ms", "next_offset_delta")

    def __init__(self, base_timestamp_ms: int | None = None) -> None:
        self.body = bytearray()
        self.count = 0
        self.next_offset_delta = 0
        self.base_timestamp_ms = base_timestamp_ms
        self.max_timestamp_ms = -1

    @property
    def size_bytes(self) -> int:
        """Return the uncompressed size of the batch."""
        return HEADER_SIZE + len(self.body)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        timestamp_ms: int = -1,
        offset_delta: int | None = None,
    ) -> int:
        """Append a record and return its offset delta. Raises ValueError if offsets do not increase."""
        delta = self.next_offset_delta
        if offset_delta is not None:
            if offset_delta < delta:
                raise ValueError(f"offset delta {offset_delta} follows {delta - 1}; offset deltas must increase")
            delta = offset_delta
        if self.base_timestamp_ms is None:
            self.base_timestamp_ms = timestamp_ms
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        record = b"".join(
            (
                b"\0",
                varint(timestamp_ms - self.base_timestamp_ms),
                varint(delta),
                b"\x01" if key is None else varint(len(key)) + key,
                b"\x01" if value is None else varint(len(value)) + value,
                b"\0" if not headers else encode_headers(headers),
            )
        )
        self.body += varint(len(record))
        self.body += record
        self.count += 1
        self.next_offset_delta = delta + 1
        return delta

    def build(
        self,
        *,
        base_offset: int = 0,
        last_offset_delta: int | None = None,
        codec: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        leader_epoch: int = -1,
        attributes: int = 0,
        max_timestamp_ms: int | None = None,
    ) -> bytes:
        """Return the batch. `attributes` excludes the codec bits; `last_offset_delta` defaults to the last record's.

        More records can be appended afterwards, to build again.
        """
        assert not attributes & CODEC_MASK, "the codec is a separate argument"
        body = compress(codec, self.body)
        last = self.next_offset_delta - 1 if last_offset_delta is None else last_offset_delta
        if last < self.next_offset_delta - 1:
            raise ValueError(f"last_offset_delta {last} is lower than the last record's offset delta")
        batch = bytearray(HEADER_SIZE + len(body))
        HEADER.pack_into(
            batch,
            0,
            base_offset,
            len(batch) - LENGTH_OVERHEAD,
            leader_epoch,
            MAGIC,
            0,
            attributes | codec,
            last,
            -1 if self.base_timestamp_ms is None else self.base_timestamp_ms,
            self.max_timestamp_ms if max_timestamp_ms is None else max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            self.count,
        )
        batch[HEADER_SIZE:] = body
        with memoryview(batch) as view:
            CRC.pack_into(batch, CRC_OFFSET, checksum(view, 0, len(batch)))
        return bytes(batch)


def encode_headers(headers: Sequence[Header]) -> bytes:
    """Return encoded record headers with their count."""
    out = bytearray(varint(len(headers)))
    for key, value in headers:
        name = key.encode(errors="surrogateescape")
        out += varint(len(name))
        out += name
        if value is None:
            out.append(1)
        else:
            out += varint(len(value))
            out += value
    return bytes(out)


def record_size_bound(key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> int:
    """Return the maximum encoded size of a record in bytes, to check beforehand whether it fits."""
    size = RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += HEADER_OVERHEAD + 4 * len(name) + len(content or b"")
    return size


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    attributes: int = 0,
    base_timestamp_ms: int | None = None,
    max_timestamp_ms: int | None = None,
) -> bytes:
    """Return a batch of `records`, whose offsets must increase from `base_offset`; records without one are numbered.

    `last_offset_delta` and the timestamps preserve the original values when compaction removes records. Raises
    ValueError if offsets do not increase.
    """
    builder = BatchBuilder(base_timestamp_ms)
    for record in records:
        delta = builder.next_offset_delta if record.offset < 0 else record.offset - base_offset
        builder.append(record.key, record.value, record.headers, record.timestamp_ms, delta)
    return builder.build(
        base_offset=base_offset,
        last_offset_delta=last_offset_delta,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
        attributes=attributes,
        max_timestamp_ms=max_timestamp_ms,
    )
