"""A reference reader of records, one by one, to compare the vectorized one with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.wire.records import iterate_batches, iterate_records
from penstock_spark.model.ranges import Fetched, OffsetRange

MAX_BATCH_BYTES = 64 << 20


class Seen(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def records_of(answers: Iterable[Fetched], range_: OffsetRange) -> list[Seen]:
    """Return the records of a range, aborted ones included, without control records."""
    found: list[Seen] = []
    for fetched in answers:
        for header, batch in iterate_batches(memoryview(bytes(fetched.records))):
            if header.is_control:
                continue
            for record in iterate_records(batch, header, MAX_BATCH_BYTES):
                offset = record.offset
                if range_.start <= offset < range_.end:
                    found.append(Seen(offset, record.key, record.value))
    return found
