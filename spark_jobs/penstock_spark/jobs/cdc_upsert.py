"""cdc-upsert: the latest row of each key, in a Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs import reading, writing
from penstock_spark.jobs.kinds import CdcUpsert
from penstock_spark.jobs.naming import group
from penstock_spark.jobs.sinks import MergeSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DELETED, OFFSET = "__deleted", "__offset"


def start(spark: SparkSession, job: CdcUpsert) -> StreamingQuery:
    changes = changed(reading.decode(reading.stream(spark, job.source, group(job)), job.transform), job)
    keys = tuple(job.keys)
    sink = MergeSink(job.to, keys, DELETED, lambda rows: latest(rows, keys))
    return writing.launch(changes.writeStream.foreachBatch(sink), job)


def changed(rows: DataFrame, job: CdcUpsert) -> DataFrame:
    """Each record as a change: keys, the other columns, whether it deletes, its offset."""
    from pyspark.sql import functions as F  # noqa: N812

    keys = [F.expr(sql).alias(name) for name, sql in job.keys.items()]
    if job.select:
        values = [F.expr(sql).alias(name) for name, sql in job.select.items()]
    elif job.transform.value.format == "json":
        names = rows.select("value.*").columns
        values = [F.col(f"value.{name}") for name in names if name not in job.keys]
    else:
        values = [F.col("value")]
    deleted = F.coalesce(F.expr(job.delete_when), F.lit(False)).alias(DELETED)
    return rows.select(*keys, *values, deleted, F.col("offset").alias(OFFSET))


def latest(rows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Of each key the change with the highest offset: what a merge needs, one row for a key."""
    from pyspark.sql import functions as F  # noqa: N812

    others = [name for name in rows.columns if name not in (*keys, OFFSET)]
    found = rows.groupBy(*keys).agg(F.max_by(F.struct(*others), F.col(OFFSET)).alias("__row"))
    return found.select(*keys, *(F.col(f"__row.{name}") for name in others))
