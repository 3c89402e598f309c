"""Decodes the records that a broker has acquired for a member (KIP-932). Used by `broker_reader`.

A response has whole batches, with records that other members hold; the acquired ranges name those of this member.
"""

from __future__ import annotations

from penstock.client.errors import ClientError
from penstock.client.positions import MAX_DECOMPRESSED_BYTES
from penstock.client.share.acquired import AcquiredPartition
from penstock.client.share.types import Acknowledgement, ShareRecord
from penstock.wire.batch import BatchHeader, checksum
from penstock.wire.messages.share_fetch import AcquiredRecords, PartitionData
from penstock.wire.records import iterate_batches, iterate_records
from penstock.wire.schema import MalformedMessage

MAX_ACQUIRED_RECORDS = 1_000_000
"""Records of a partition in one response: far above the locks of a partition that a broker can be configured for."""


def delivery_counts(ranges: list[AcquiredRecords]) -> dict[int, int]:
    """Return the delivery count of each acquired offset. Raises MalformedMessage for invalid or too many ones."""
    counts: dict[int, int] = {}
    for each in ranges:
        size = each.last_offset - each.first_offset + 1
        if each.first_offset < 0 or size <= 0 or len(counts) + size > MAX_ACQUIRED_RECORDS:
            raise MalformedMessage(f"acquired records from offset {each.first_offset} to {each.last_offset}")
        counts.update(dict.fromkeys(range(each.first_offset, each.last_offset + 1), each.delivery_count))
    return counts


def decode_acquired(
    partition: AcquiredPartition, data: PartitionData, lock_end_s: float
) -> tuple[list[ShareRecord], ClientError | None]:
    """Return the acquired records of a response, whose locks end at `lock_end_s`, and the error of a damaged batch.

    Acquired offsets without a record are acknowledged as gaps, those of damaged batches are rejected. Raises
    MalformedMessage if the response is not valid.
    """
    counts = delivery_counts(data.acquired_records)
    records: list[ShareRecord] = []
    error: ClientError | None = None
    for header, batch in iterate_batches(data.records or b"", check_crc=False):
        if header.is_control or not counts:
            continue
        try:
            found = decode_batch(partition, header, batch, counts)
        except MalformedMessage as e:
            span = range(header.base_offset, header.last_offset + 1)
            partition.refuse([offset for offset in counts if offset in span], Acknowledgement.REJECT)
            counts = {offset: count for offset, count in counts.items() if offset not in span}
            error = ClientError(f"{partition.tp}: the records of a damaged batch were rejected: {e}")
            continue
        records += found
        for record in found:
            del counts[record.offset]
    partition.acquire((record.offset for record in records), lock_end_s)
    partition.refuse(counts, Acknowledgement.GAP)
    return records, error


def decode_batch(
    partition: AcquiredPartition, header: BatchHeader, batch: memoryview, counts: dict[int, int]
) -> list[ShareRecord]:
    """Return the records of a batch that have a delivery count. Raises MalformedMessage."""
    if checksum(batch, 0, len(batch)) != header.crc:
        raise MalformedMessage(f"batch at offset {header.base_offset} has an invalid CRC")
    topic, index = partition.tp
    return [
        ShareRecord(topic, index, r.offset, r.timestamp_ms, r.key, r.value, r.headers, counts[r.offset], partition)
        for r in iterate_records(batch, header, MAX_DECOMPRESSED_BYTES)
        if r.offset in counts
    ]
