"""`spark.readStream.format("penstock-ranges")`: the ranges of a batch, one row for each task, instead of its records.

For tasks that read the records themselves, without the JVM. Offsets, limits, losses, checkpoint and progress are those
of the format `penstock`, and both formats can continue each other's checkpoints. Created by `jobs`, whose tasks call
`records`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock_spark.model.columns import RANGES, RANGES_DDL
from penstock_spark.model.ranges import OffsetRange
from penstock_spark.options.source import SourceOptions
from penstock_spark.source.reading import read_task
from penstock_spark.source.splitting import ReadTask
from penstock_spark.source.stream import StreamReader

NAME = "penstock-ranges"


class RangesDataSource(DataSource):
    """Data source of ranges, for streaming queries only."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the schema as DDL."""
        return RANGES_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query. Raises `InvalidOption`."""
        return RangesReader(SourceOptions.parse(self.options, streaming=True))


class RangesReader(StreamReader):
    """Reader of ranges."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the range of a task as a row."""
        yield row(partition.value)


def row(task: ReadTask) -> pa.RecordBatch:
    """Return a task as a row of `RANGES`."""
    range_, id_ = task
    values: list[Any] = [*range_, None if id_ is None else str(id_)]
    return pa.RecordBatch.from_pydict(
        {name: [value] for name, value in zip(RANGES.names, values, strict=True)}, schema=RANGES
    )


def tasks(rows: pa.RecordBatch) -> Iterator[ReadTask]:
    """Yield the tasks of rows."""
    for found in rows.to_pylist():
        id_ = found.pop("topic_id")
        yield ReadTask(OffsetRange(**found), None if id_ is None else UUID(id_))


def records(options: SourceOptions, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges. Raises the errors of `reading.read_task`."""
    for rows in ranges:
        for task in tasks(rows):
            yield from read_task(options, task)
