"""`spark.readStream.format("penstock-ranges")`: what a batch would read, a row for each task, instead of the records.

For whoever reads the records in a task of their own, without passing them through the JVM. Offsets, limits, losses,
checkpoint and progress are those of the format `penstock`, and a checkpoint of one goes on with the other.
Made by `jobs`; `records` is what a task calls.
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
    """Streams alone: a batch query has nothing to gain from a plan."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return RANGES_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return RangesReader(SourceOptions.parse(self.options, streaming=True))


class RangesReader(StreamReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield row(partition.value)


def row(task: ReadTask) -> pa.RecordBatch:
    range_, id_ = task
    values: list[Any] = [*range_, None if id_ is None else str(id_)]
    return pa.RecordBatch.from_pydict(
        {name: [value] for name, value in zip(RANGES.names, values, strict=True)}, schema=RANGES
    )


def tasks(rows: pa.RecordBatch) -> Iterator[ReadTask]:
    for found in rows.to_pylist():
        id_ = found.pop("topic_id")
        yield ReadTask(OffsetRange(**found), None if id_ is None else UUID(id_))


def records(options: SourceOptions, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records of these ranges, as `reading.read_task` has them. Raises what it raises."""
    for rows in ranges:
        for task in tasks(rows):
            yield from read_task(options, task)
