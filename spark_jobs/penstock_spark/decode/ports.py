"""Interface of the decoder, which `source` calls for each response to a fetch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from penstock_spark.model.ranges import Fetched


class Decoder(Protocol):
    """Decodes one `OffsetRange`; a new one for each (`decode.decoder.RangeDecoder(range_, isolation, headers)`)."""

    @property
    def next_offset(self) -> int:
        """Next offset to fetch; the range's end, or beyond, when the range is complete (offsets may be missing due to
        compaction and markers). Valid once the iterator of `feed` is exhausted."""

    def feed(self, fetched: Fetched) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range in order, in batches of bounded size with `columns.SCHEMA` (or with headers).

        Control batches are skipped, and with read_committed records of aborted transactions. Checks each CRC. Raises
        `CorruptBatch`.
        """
