"""archive: writes topics to a Parquet folder or a Delta table, each record exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs.run import direct, reading, writing
from penstock_spark.jobs.run.session import TIME_ZONE
from penstock_spark.jobs.spec.kinds import Archive
from penstock_spark.jobs.spec.naming import group

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock_spark.jobs.run.supervisor import RunningQuery


def start(spark: SparkSession, job: Archive) -> RunningQuery:
    """Start the job's query."""
    if job.is_direct(str(spark.conf.get(TIME_ZONE))):
        return direct.start(spark, job)
    records = reading.stream(spark, job.source, group(job))
    return writing.start(reading.shape(records, job.transform), job, job.to)
