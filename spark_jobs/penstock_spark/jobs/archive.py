"""archive: topics to a Parquet folder or a Delta table, each record exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs import direct, reading, writing
from penstock_spark.jobs.kinds import Archive
from penstock_spark.jobs.naming import group
from penstock_spark.jobs.session import TIME_ZONE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock_spark.jobs.running import RunningQuery


def start(spark: SparkSession, job: Archive) -> RunningQuery:
    if job.is_direct(str(spark.conf.get(TIME_ZONE))):
        return direct.start(spark, job)
    records = reading.stream(spark, job.source, group(job))
    return writing.start(reading.shape(records, job.transform), job, job.to)
