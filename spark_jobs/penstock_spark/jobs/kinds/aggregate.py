"""aggregate: computes aggregates by keys and windows of event time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs.run import reading, writing
from penstock_spark.jobs.run.sinks import MergeSink
from penstock_spark.jobs.spec.kinds import Aggregate
from penstock_spark.jobs.spec.naming import group
from penstock_spark.jobs.spec.specs import DeltaTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TIME, WINDOW = "__time", "__window"


def start(spark: SparkSession, job: Aggregate) -> StreamingQuery:
    """Start the job's query."""
    from pyspark.sql import functions as F  # noqa: N812

    shaped = reading.shape(reading.stream(spark, job.source, group(job)), job.transform)
    untimed = F.count_if(F.expr(job.time).isNull()).alias("without_time")
    rows = aggregated(shaped.observe("penstock", untimed), job)
    if job.emit == "final":
        return writing.start(rows, job, job.to)
    if not isinstance(job.to, DeltaTarget):
        return writing.start(rows, job, job.to, mode="update")
    sink = MergeSink(job.to, key_columns(job))
    return writing.launch(rows.writeStream.foreachBatch(sink).outputMode("update"), job)


def key_columns(job: Aggregate) -> tuple[str, ...]:
    """Return the columns that identify a row of the result."""
    return (*(("window_start", "window_end") if job.window is not None else ()), *job.by)


def aggregated(rows: DataFrame, job: Aggregate) -> DataFrame:
    """Return the aggregated rows: window_start, window_end (with windows), the columns of `by`, those of `select`."""
    from pyspark.sql import functions as F  # noqa: N812

    timed = rows.withColumn(TIME, F.expr(job.time)).withWatermark(TIME, job.watermark.sql)
    keys = [F.expr(sql).alias(name) for name, sql in job.by.items()]
    values = [F.expr(sql).alias(name) for name, sql in job.select.items()]
    if job.window is None:
        return timed.groupBy(*keys).agg(*values)
    slide = job.window.slide or job.window.length
    window = F.window(TIME, job.window.length.sql, slide.sql).alias(WINDOW)
    found = timed.groupBy(window, *keys).agg(*values)
    return found.select(
        F.col(f"{WINDOW}.start").alias("window_start"),
        F.col(f"{WINDOW}.end").alias("window_end"),
        *(F.col(name) for name in (*job.by, *job.select)),
    )
