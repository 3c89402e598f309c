"""A batch of a streaming query on its way to files: rows that Spark has, or ranges that tasks read themselves.

Called by `sinks` and `direct`. Either way tasks write the files, and the list of them comes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock_spark.jobs.run.data_files import RESULT, DataFile, DataFileWriter
from penstock_spark.jobs.spec.lists import packed
from penstock_spark.model.columns import RANGES
from penstock_spark.options.source import SourceOptions
from penstock_spark.source.ranges import records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNT = "count long"
COUNT_SCHEMA = pa.schema([("count", pa.int64())])
Shape = Callable[[pa.RecordBatch], pa.RecordBatch]


class JobBatch(Protocol):
    """What a sink needs of a batch."""

    @property
    def query_id(self) -> str:
        """Of the streaming query; its checkpoint keeps it."""
        ...

    def schema(self) -> pa.Schema:
        """Of the rows as tasks write them."""
        ...

    def count(self) -> int:
        """How many rows there are now, which takes reading them."""
        ...

    def write(self, writer: DataFileWriter) -> list[DataFile]:
        """Has tasks write the rows."""
        ...


class JobRows:
    """Rows that Spark hands to tasks, as Arrow."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows

    @property
    def query_id(self) -> str:
        return query_id(self._rows)

    def schema(self) -> pa.Schema:
        """Asked of Spark by an empty table of these columns. Instants are in UTC, whatever time zone the session shows
        them in."""
        found = self._rows.sparkSession.createDataFrame([], self._rows.schema).toArrow().schema
        types = [pa.timestamp("us", "UTC") if is_instant(field.type) else field.type for field in found]
        # Whether a query can give null is no promise for the next version of the job.
        return pa.schema([pa.field(field.name, type_) for field, type_ in zip(found, types, strict=True)])

    def count(self) -> int:
        return self._rows.count()

    def write(self, writer: DataFileWriter) -> list[DataFile]:
        return collected(packed(self._rows), writer)


@dataclass(frozen=True)
class ReadPlan:
    """How tasks read ranges: what becomes of a batch of records, and the schema that it has then. Pickled."""

    options: SourceOptions
    shape: Shape
    schema: pa.Schema

    def rows(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(self.shape, records(self.options, ranges))


class RangePlan:
    """Ranges of topics, a row each (`model.columns.RANGES`): a task fetches, decodes and writes in one process, and no
    record passes through the JVM."""

    def __init__(self, ranges: DataFrame, reading: ReadPlan) -> None:
        assert ranges.columns == RANGES.names, f"these are no ranges: {ranges.columns}"
        self._ranges = ranges
        self._reading = reading
        self.rows = 0
        """How many were counted or written last."""

    @property
    def query_id(self) -> str:
        return query_id(self._ranges)

    def schema(self) -> pa.Schema:
        return self._reading.schema

    def count(self) -> int:
        found = self._ranges.mapInArrow(RowCounting(self._reading), COUNT).collect()
        self.rows = sum(row["count"] for row in found)
        return self.rows

    def write(self, writer: DataFileWriter) -> list[DataFile]:
        parts = collected(self._ranges, ReadAndWrite(self._reading, writer))
        self.rows = sum(part.rows for part in parts)
        return parts


@dataclass(frozen=True)
class RowCounting:
    """What a task runs to count the rows of its ranges."""

    reading: ReadPlan

    def __call__(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = sum(rows.num_rows for rows in self.reading.rows(ranges))
        yield pa.RecordBatch.from_pydict({"count": [count]}, schema=COUNT_SCHEMA)


@dataclass(frozen=True)
class ReadAndWrite:
    """What a task runs to write the rows of its ranges."""

    reading: ReadPlan
    writer: DataFileWriter

    def __call__(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.writer(self.reading.rows(ranges))


def query_id(rows: DataFrame) -> str:
    """The id of the streaming query in whose batch this runs."""
    found = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found, "this runs in a batch of a streaming query"
    return str(found)


def is_instant(type_: pa.DataType) -> bool:
    return pa.types.is_timestamp(type_) and type_.tz is not None


def collected(rows: DataFrame, task: DataFileWriter | ReadAndWrite) -> list[DataFile]:
    found = rows.mapInArrow(task, RESULT).collect()
    return [DataFile(r.path, json.loads(r.partition), r.rows, r.bytes, r.stats) for r in found]
