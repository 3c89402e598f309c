"""archive: topics to a Parquet folder or a Delta table, each record exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs import reading, writing
from penstock_spark.jobs.kinds import Archive
from penstock_spark.jobs.naming import group

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def start(spark: SparkSession, job: Archive) -> StreamingQuery:
    records = reading.stream(spark, job.source, group(job))
    return writing.start(reading.shape(records, job.transform), job, job.to)
