"""Archives without a query: each task fetches its ranges and writes them to files, and no record passes the JVM.

Called by `archive` where `kinds.Archive.is_direct` says so. Spark plans, keeps the checkpoint, and runs the tasks, for
which it has a row for each range; a target gets the rows that `reading.shape` and `sinks.with_time` would make.
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

KEPT = 1_000
"""Batches whose rows are remembered: Spark keeps the progress of fewer."""


def start(spark: SparkSession, job: Archive) -> CountedQuery:
    sink = RangeSink(file_sink(job.to), reading_of(job))
    ranges = reading.ranges(spark, job.source, group(job))
    return CountedQuery(writing.launch(ranges.writeStream.foreachBatch(sink), job), sink.rows)


def reading_of(job: Archive) -> ReadPlan:
    options = SourceOptions.parse(reading.options(job.source), streaming=True)
    decodings = {"key": job.transform.key, "value": job.transform.value}
    texts = {name: decoding for name, decoding in decodings.items() if decoding.format == "string"}
    shape = Shape(texts, job.to.time.by if job.to.time is not None else None)
    schema = SCHEMA_WITH_HEADERS if options.include_headers else SCHEMA
    return ReadPlan(options, shape, shape(pa.RecordBatch.from_pylist([], schema=schema)).schema)


@dataclass(frozen=True)
class Shape:
    """Records as the target has them."""

    texts: Mapping[str, DecodingSpec]
    """Columns that hold text."""
    by: Literal["month", "day", "hour"] | None = None

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
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
    """Raises `Undecodable` where bytes are no text, and the job does not say that they read as null."""
    column = records.column(name)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
    bad = [value is not None and not is_text(value) for value in values]
    if decoding.on_error == "fail":
        row = records.slice(bad.index(True), 1).to_pylist()[0]
        where = f"{row['topic']}-{row['partition']} offset {row['offset']}"
        raise Undecodable(f"{where}: {reading.said_of(name, decoding)}")
    return pc.if_else(pa.array(bad), pa.scalar(None, pa.binary()), column).cast(pa.string())


class RangeSink:
    """What Spark calls for each batch of ranges."""

    def __init__(self, sink: FileSink, reading: ReadPlan) -> None:
        self._sink = sink
        self._reading = reading
        self.rows: dict[int, int] = {}
        """Of each of the last batches."""

    def __call__(self, ranges: DataFrame, number: int) -> None:
        batch = RangePlan(ranges, self._reading)
        self._sink.write(batch, number)
        self.rows[number] = batch.rows
        self.rows.pop(number - KEPT, None)


class CountedQuery:
    """A query of ranges whose progress tells rows: those that tasks counted, since Spark counts ranges."""

    def __init__(self, query: StreamingQuery, rows: Mapping[int, int]) -> None:
        self._query = query
        self._rows = rows

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802
        return [self._counted(progress) for progress in self._query.recentProgress]

    @property
    def status(self) -> dict[str, Any]:
        return self._query.status

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        return self._query.awaitTermination(timeout)

    def stop(self) -> None:
        self._query.stop()

    def _counted(self, progress: Any) -> Mapping[str, Any]:
        if not progress["numInputRows"]:
            return {**progress}
        return {**progress, "numInputRows": self._rows.get(progress["batchId"], 0)}
