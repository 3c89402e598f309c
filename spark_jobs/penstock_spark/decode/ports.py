"""From batches as they stand in the log to Arrow: what `source` calls for each answer to a fetch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from penstock_spark.model.ranges import Fetched


class Decoder(Protocol):
    """Reads one `OffsetRange`; made anew for each (`decode.decoder.RangeDecoder(range_, isolation, headers)`)."""

    @property
    def next_offset(self) -> int:
        """What to fetch next; the range's end, or beyond, when all of it was seen (offsets may lack: compaction,
        markers). Right once the iterator of `feed` is at its end."""

    def feed(self, fetched: Fetched) -> Iterator[pa.RecordBatch]:
        """The records of the range, in order, as `columns.SCHEMA` (or with headers); of bounded size each.

        Control batches, and under read_committed records of aborted transactions, are left out. Checks each CRC.
        Raises `CorruptBatch`.
        """
