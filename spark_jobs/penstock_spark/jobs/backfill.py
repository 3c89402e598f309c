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

MAX_FILE_AGE = "36500d"
"""Spark's file source passes over files that are older than the newest one it has seen by more than this, and does not
say so; its own default is a week. Copies that keep times (rsync -a, tar) come late and are old: a century takes them
all. The price is that the driver remembers the names of all files, for as long as it runs."""
STRICT = {"mode": "FAILFAST", "enforceSchema": "false"}
"""A value that is not of the schema, or a CSV header that names other columns, fails the job. Spark's own defaults make
a null of the one, and take columns in their order whatever the other says."""


def start(spark: SparkSession, job: Backfill) -> StreamingQuery:
    # The job's own come later, and win, however they are spelled: Spark takes names of any case.
    options = {"maxFileAge": MAX_FILE_AGE, **STRICT, **{name: text(value) for name, value in job.read_options.items()}}
    if job.max_files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(job.max_files_per_batch)
    rows = spark.readStream.format(job.format).schema(job.schema).options(**options).load(job.path)
    if job.sql is not None:
        rows = reading.query(rows, job.sql)
    once = msgspec.structs.replace(job, trigger=Trigger(once=True))
    return writing.start(rows, once, job.to, with_times=True)
