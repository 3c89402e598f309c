"""Archives without a query: each task fetches its ranges and writes them to files; records do not pass through the JVM.

Called by `archive` if `kinds.Archive.is_direct`. Spark plans, keeps the checkpoint and runs the tasks, with one row for
each range. The target gets the same rows as from `reading.shape` and `sinks.with_time`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock_spark.jobs.run import reading, writing
from penstock_spark.jobs.run.batches import RangePlan, ReadPlan
from penstock_spark.jobs.run.data_files import is_text
from penstock_spark.jobs.run.query_progress import QueryWithProgress
from penstock_spark.jobs.run.sinks import FileSink, file_sink
from penstock_spark.jobs.spec.naming import group
from penstock_spark.jobs.spec.specs import DecodingSpec
from penstock_spark.model.columns import SCHEMA, SCHEMA_WITH_HEADERS
from penstock_spark.model.errors import Undecodable
from penstock_spark.options.source import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock_spark.jobs.spec.kinds import Archive

MAX_KEPT_BATCHES = 1_000
"""Batches whose row counts are kept; Spark keeps the progress of fewer."""


def start(spark: SparkSession, job: Archive) -> CountedQuery:
    """Start the job's query."""
    sink = RangeSink(file_sink(job.to), read_plan(job))
    ranges = reading.ranges(spark, job.source, group(job))
    return CountedQuery(writing.launch(ranges.writeStream.foreachBatch(sink), job), sink.rows)


def read_plan(job: Archive) -> ReadPlan:
    """Return how tasks read the job's ranges."""
    options = SourceOptions.parse(reading.options(job.source), streaming=True)
    decodings = {"key": job.transform.key, "value": job.transform.value}
    texts = {name: decoding for name, decoding in decodings.items() if decoding.format == "string"}
    shape = ColumnConverter(texts, job.to.time.by if job.to.time is not None else None)
    schema = SCHEMA_WITH_HEADERS if options.include_headers else SCHEMA
    return ReadPlan(options, shape, shape(pa.RecordBatch.from_pylist([], schema=schema)).schema)


@dataclass(frozen=True)
class ColumnConverter:
    """Converts record batches to the target's columns."""

    texts: Mapping[str, DecodingSpec]
    """Columns that are decoded as text."""
    by: Literal["month", "day", "hour"] | None = None

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of records."""
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        for name, decoding in self.texts.items():
            columns[name] = text(records, name, decoding)
        return pa.RecordBatch.from_pydict({**columns, **self._folders(columns["timestamp"])})

    def _folders(self, times: pa.Array) -> Mapping[str, pa.Array]:
        if self.by is None:
            return {}
        if self.by == "month":
            return {"month": pc.strftime(times, "%Y-%m")}
        date = {"date": times.cast(pa.date32())}
        return date if self.by == "day" else {**date, "hour": pc.hour(times).cast(pa.int32())}


def text(records: pa.RecordBatch, name: str, decoding: DecodingSpec) -> pa.Array:
    """Decode a column. Raises `Undecodable` for bytes that are not UTF-8, unless the job reads them as null."""
    column = records.column(name)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
    bad = [value is not None and not is_text(value) for value in values]
    if decoding.on_error == "fail":
        row = records.slice(bad.index(True), 1).to_pylist()[0]
        where = f"{row['topic']}-{row['partition']} offset {row['offset']}"
        raise Undecodable(f"{where}: {reading.undecodable_message(name, decoding)}")
    return pc.if_else(pa.array(bad), pa.scalar(None, pa.binary()), column).cast(pa.string())


class RangeSink:
    """Called by Spark for each batch of ranges."""

    def __init__(self, sink: FileSink, reading: ReadPlan) -> None:
        self._sink = sink
        self._reading = reading
        self.rows: dict[int, int] = {}
        """Row counts by batch, for the last batches."""

    def __call__(self, ranges: DataFrame, number: int) -> None:
        """Write a batch of ranges to the target."""
        batch = RangePlan(ranges, self._reading)
        self._sink.write(batch, number)
        self.rows[number] = batch.rows
        self.rows.pop(number - MAX_KEPT_BATCHES, None)


class CountedQuery(QueryWithProgress):
    """A query of ranges whose progress has the rows that tasks counted; Spark counts ranges."""

    def __init__(self, query: StreamingQuery, rows: Mapping[int, int]) -> None:
        super().__init__(query)
        self._rows = rows

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802
        """The query's recent progress, with rows as `numInputRows`."""
        return [self._counted(progress) for progress in self._query.recentProgress]

    def _counted(self, progress: Any) -> Mapping[str, Any]:
        if not progress["numInputRows"]:
            return {**progress}
        return {**progress, "numInputRows": self._rows.get(progress["batchId"], 0)}
