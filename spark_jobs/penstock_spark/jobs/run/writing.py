"""Writes rows to a job's target as a streaming query. Called by every kind.

The format's streaming sink writes topics, `sinks` write files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs.run import topics
from penstock_spark.jobs.run.session import text
from penstock_spark.jobs.run.sinks import file_sink, with_time
from penstock_spark.jobs.spec.lists import replace_nulls
from penstock_spark.jobs.spec.specs import ConsoleTarget, StreamJob, Target, TopicTarget
from penstock_spark.model.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def start(
    rows: DataFrame, job: StreamJob, target: Target, mode: str = "append", *, with_times: bool = False
) -> StreamingQuery:
    """Start a query with one target; `mode` is Spark's output mode, for `with_times` see `topic_rows`."""
    if isinstance(target, TopicTarget):
        make_topic(target)
        writer = topic_writer(topic_rows(rows, target, with_times=with_times), target)
    elif isinstance(target, ConsoleTarget):
        writer = rows.writeStream.format("console").option("numRows", str(target.rows)).option("truncate", "false")
    else:
        sink = file_sink(target)
        writer = (with_time(rows, target.time) if target.time else rows).writeStream.foreachBatch(sink)
    return launch(writer.outputMode(mode), job)


def launch(writer: DataStreamWriter, job: StreamJob) -> StreamingQuery:
    """Start a query with the job's name, checkpoint and trigger."""
    writer = writer.queryName(job.name).option("checkpointLocation", job.checkpoint)
    if job.trigger.once:
        writer = writer.trigger(availableNow=True)
    elif job.trigger.every is not None and job.trigger.every.ms:
        writer = writer.trigger(processingTime=job.trigger.every.sql)
    return writer.start()


def make_topic(target: TopicTarget) -> None:
    """Create the target topic if the job says so."""
    if target.create is not None and target.topic is not None:
        topics.ensure(topics.link(target.brokers, target.options), target.topic, target.create)


def topic_options(target: TopicTarget) -> dict[str, str]:
    """Return the target as options of the format `penstock`; the job's own options come last."""
    found = {
        "kafka.bootstrap.servers": target.brokers,
        "kafka.compression.type": target.compression,
        "penstock.delivery": target.delivery,
    }
    if target.topic is not None:
        found["topic"] = target.topic
    return {**found, **{name: text(value) for name, value in target.options.items()}}


def topic_writer(rows: DataFrame, target: TopicTarget) -> DataStreamWriter:
    """Return a writer of rows to topics."""
    return rows.writeStream.format("penstock").options(**topic_options(target))


def topic_rows(rows: DataFrame, target: TopicTarget, *, with_times: bool = False) -> DataFrame:
    """Return the columns for a topic: key, value and headers if there is a column value, else all columns as JSON.

    Partition and timestamp of source records are dropped. `with_times`: the rows come from files, and a column
    timestamp sets the record timestamps.
    """
    from pyspark.sql import functions as F  # noqa: N812

    chosen: list[Column] = []
    if target.topic is None:
        if "topic" not in rows.columns:
            raise InvalidOption("to.topic is missing, and the result has no column topic; add one of them")
        chosen.append(F.col("topic"))
    if target.key is not None:
        chosen.append(F.expr(target.key).cast("string").alias("key"))
    elif "key" in rows.columns and "value" in rows.columns:
        chosen.append(as_bytes(rows, "key"))
    if "value" in rows.columns:
        chosen.append(as_bytes(rows, "value"))
        also = ("headers", "timestamp") if with_times else ("headers",)
        chosen += [replace_nulls(rows, name) for name in also if name in rows.columns]
        return rows.select(*chosen)
    names = [name for name in rows.columns if name != "topic" or target.topic is not None]
    return rows.select(*chosen, F.to_json(F.struct(*names), {"ignoreNullFields": "false"}).alias("value"))


def as_bytes(rows: DataFrame, name: str) -> Column:
    """Return bytes and text unchanged, structs and lists as JSON, other values as text."""
    from pyspark.sql import functions as F  # noqa: N812

    kind = rows.schema[name].dataType.typeName()
    if kind in ("binary", "string"):
        return F.col(name)
    if kind in ("struct", "array", "map"):
        return F.to_json(F.col(name), {"ignoreNullFields": "false"}).alias(name)
    return F.col(name).cast("string").alias(name)
