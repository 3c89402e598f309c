"""backfill: files into a topic, each row once; when run again, files that are new."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock_spark.jobs import reading, writing
from penstock_spark.jobs.kinds import Backfill
from penstock_spark.jobs.session import text
from penstock_spark.jobs.specs import Trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def start(spark: SparkSession, job: Backfill) -> StreamingQuery:
    options = {name: text(value) for name, value in job.read_options.items()}
    if job.max_files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(job.max_files_per_batch)
    rows = spark.readStream.format(job.format).schema(job.schema).options(**options).load(job.path)
    if job.sql is not None:
        rows = reading.query(rows, job.sql)
    once = msgspec.structs.replace(job, trigger=Trigger(once=True))
    return writing.start(rows, once, job.to, with_times=True)
