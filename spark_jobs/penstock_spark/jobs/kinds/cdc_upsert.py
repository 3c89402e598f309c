"""cdc-upsert: keeps the latest row of each key in a Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs.run import reading, writing
from penstock_spark.jobs.run.sinks import MergeSink
from penstock_spark.jobs.spec import conditions
from penstock_spark.jobs.spec.kinds import CdcUpsert
from penstock_spark.jobs.spec.naming import group

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DELETED, OFFSET = "__deleted", "__offset"


def start(spark: SparkSession, job: CdcUpsert) -> StreamingQuery:
    """Start the job's query."""
    changes = changed(reading.decode(reading.stream(spark, job.source, group(job)), job.transform), job)
    keys = tuple(job.keys)
    sink = MergeSink(job.to, keys, DELETED, lambda rows: latest(rows, keys))
    return writing.launch(changes.writeStream.foreachBatch(sink), job)


def changed(rows: DataFrame, job: CdcUpsert) -> DataFrame:
    """Return each record as a change: keys, other columns, whether it deletes, offset. See `conditions` for NULL."""
    from pyspark.sql import functions as F  # noqa: N812

    is_tombstone = F.col("raw_value").isNull()
    skipped = {name: is_skipped for name, is_skipped in skips(job).items() if is_skipped is not None}
    if skipped:
        counts = [F.count_if(is_skipped).alias(name) for name, is_skipped in skipped.items()]
        rows = rows.observe("penstock", *counts)
        for is_skipped in skipped.values():
            rows = rows.where(~is_skipped)
    if job.select:
        values = [F.expr(sql).alias(name) for name, sql in job.select.items()]
    elif job.transform.value.format == "json":
        names = rows.select("value.*").columns
        keys = {name.lower() for name in job.keys}  # Spark ignores case in names
        values = [F.col(f"value.{name}") for name in names if name.lower() not in keys]
    else:
        values = [F.col("value")]
    deleted = (is_tombstone | conditions.holds(job.delete_when)).alias(DELETED)
    return rows.select(*conditions.key_columns(rows, job.keys), *values, deleted, F.col("offset").alias(OFFSET))


def skips(job: CdcUpsert) -> dict[str, Column | None]:
    """Return a condition for each reason to skip a record: never NULL, or None if the job does not skip for it."""
    from pyspark.sql import functions as F  # noqa: N812

    is_tombstone = F.col("raw_value").isNull()
    value = job.transform.value
    is_lost = value.format != "binary" and value.on_error == "null"
    return {
        "unreadable": ~is_tombstone & F.col("value").isNull() if is_lost else None,
        "ignored_tombstones": is_tombstone if job.tombstones == "ignore" else None,
        "without_key": conditions.has_null_key(job.keys) if job.null_keys == "skip" else None,
    }


def latest(rows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Return the change with the highest offset of each key: a merge needs one row per key."""
    from pyspark.sql import functions as F  # noqa: N812

    others = [name for name in rows.columns if name not in (*keys, OFFSET)]
    found = rows.groupBy(*keys).agg(F.max_by(F.struct(*others), F.col(OFFSET)).alias("__row"))
    return found.select(*keys, *(F.col(f"__row.{name}") for name in others))
