"""Batches of a streaming query that tasks write to files: rows from Spark, or ranges that tasks fetch themselves.

Called by `sinks` and `direct`. In both cases tasks write the files and return their list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock_spark.jobs.run.data_files import RESULT, DataFile, DataFileWriter
from penstock_spark.jobs.spec.lists import pack_lists
from penstock_spark.model.columns import RANGES
from penstock_spark.options.source import SourceOptions
from penstock_spark.source.ranges import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNT = "count long"
COUNT_SCHEMA = pa.schema([("count", pa.int64())])
Shape = Callable[[pa.RecordBatch], pa.RecordBatch]


class JobBatch(Protocol):
    """A batch as a sink sees it."""

    @property
    def query_id(self) -> str:
        """Id of the streaming query, which its checkpoint keeps."""
        ...

    def schema(self) -> pa.Schema:
        """Return the schema of the rows that tasks write."""
        ...

    def count(self) -> int:
        """Return the current number of rows. Reads them all."""
        ...

    def write(self, writer: DataFileWriter) -> list[DataFile]:
        """Write the rows in tasks. Return the files."""
        ...


class JobRows:
    """Rows that Spark passes to tasks as Arrow."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows

    @property
    def query_id(self) -> str:
        """Id of the streaming query."""
        return query_id(self._rows)

    def schema(self) -> pa.Schema:
        """Return the schema, which Spark computes from an empty table. Instants are in UTC, regardless of the session's
        time zone."""
        found = self._rows.sparkSession.createDataFrame([], self._rows.schema).toArrow().schema
        types = [pa.timestamp("us", "UTC") if is_instant(field.type) else field.type for field in found]
        # All columns are nullable: the next version of the job's query may return nulls.
        return pa.schema([pa.field(field.name, type_) for field, type_ in zip(found, types, strict=True)])

    def count(self) -> int:
        """Return the number of rows."""
        return self._rows.count()

    def write(self, writer: DataFileWriter) -> list[DataFile]:
        """Write the rows in tasks. Return the files."""
        return collected(pack_lists(self._rows), writer)


@dataclass(frozen=True)
class ReadPlan:
    """How tasks read ranges: options of the source, a function over record batches, and its schema. Pickled."""

    options: SourceOptions
    shape: Shape
    schema: pa.Schema

    def rows(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges."""
        return map(self.shape, records(self.options, ranges))


class RangePlan:
    """Ranges of topics, one row each (`model.columns.RANGES`). A task fetches, decodes and writes in one process;
    records do not pass through the JVM."""

    def __init__(self, ranges: DataFrame, reading: ReadPlan) -> None:
        assert ranges.columns == RANGES.names, f"not ranges: {ranges.columns}"
        self._ranges = ranges
        self._reading = reading
        self.rows = 0
        """Number of rows of the last `count` or `write`."""

    @property
    def query_id(self) -> str:
        """Id of the streaming query."""
        return query_id(self._ranges)

    def schema(self) -> pa.Schema:
        """Return the schema of the rows that tasks write."""
        return self._reading.schema

    def count(self) -> int:
        """Return the number of records in the ranges. Fetches them all."""
        found = self._ranges.mapInArrow(RowCounting(self._reading), COUNT).collect()
        self.rows = sum(row["count"] for row in found)
        return self.rows

    def write(self, writer: DataFileWriter) -> list[DataFile]:
        """Fetch and write the ranges in tasks. Return the files."""
        parts = collected(self._ranges, ReadAndWrite(self._reading, writer))
        self.rows = sum(part.rows for part in parts)
        return parts


@dataclass(frozen=True)
class RowCounting:
    """Run by tasks: counts the rows of its ranges."""

    reading: ReadPlan

    def __call__(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row with the count."""
        count = sum(rows.num_rows for rows in self.reading.rows(ranges))
        yield pa.RecordBatch.from_pydict({"count": [count]}, schema=COUNT_SCHEMA)


@dataclass(frozen=True)
class ReadAndWrite:
    """Run by tasks: fetches the rows of its ranges and writes them."""

    reading: ReadPlan
    writer: DataFileWriter

    def __call__(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the files that were written."""
        return self.writer(self.reading.rows(ranges))


def query_id(rows: DataFrame) -> str:
    """Return the id of the streaming query whose batch is running."""
    found = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found, "called outside a batch of a streaming query"
    return str(found)


def is_instant(type_: pa.DataType) -> bool:
    """Return whether a type is a timestamp with a time zone."""
    return pa.types.is_timestamp(type_) and type_.tz is not None


def collected(rows: DataFrame, task: DataFileWriter | ReadAndWrite) -> list[DataFile]:
    """Run `task` over the rows. Return the files that it wrote."""
    found = rows.mapInArrow(task, RESULT).collect()
    return [DataFile(r.path, json.loads(r.partition), r.rows, r.bytes, r.stats) for r in found]
