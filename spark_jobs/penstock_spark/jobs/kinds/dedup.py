"""dedup: writes the first record of each key within a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs.run import reading, writing
from penstock_spark.jobs.spec import conditions
from penstock_spark.jobs.spec.kinds import Dedup
from penstock_spark.jobs.spec.naming import group
from penstock_spark.jobs.spec.specs import TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TIME, ITSELF = "__time", "__itself"


def start(spark: SparkSession, job: Dedup) -> StreamingQuery:
    """Start the job's query."""
    rows = reading.decode(reading.stream(spark, job.source, group(job)), job.transform)
    if job.transform.sql is not None:
        rows = reading.query(rows, job.transform.sql)
    first = deduplicated(rows, job)
    if "raw_value" in first.columns and isinstance(job.to, TopicTarget):
        # Write the record's original bytes, not the decoded ones.
        first = first.drop("key", "value").withColumnsRenamed({"raw_key": "key", "raw_value": "value"})
    return writing.start(first.drop("raw_key", "raw_value"), job, job.to)


def deduplicated(rows: DataFrame, job: Dedup) -> DataFrame:
    """Return the rows without duplicates."""
    from pyspark.sql import functions as F  # noqa: N812

    names = {f"__by_{name}": F.expr(sql) for name, sql in job.by.items()}
    itself = conditions.unique_if_null({**job.by, TIME: job.time})
    timed = rows.withColumns({**names, ITSELF: itself, TIME: F.expr(job.time)}).withWatermark(TIME, job.within.sql)
    return timed.dropDuplicatesWithinWatermark([*names, ITSELF]).drop(TIME, ITSELF, *names)
