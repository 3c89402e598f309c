"""validate: writes records that meet expectations, and sends others to a dead-letter topic with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock_spark.jobs.run import reading, topics, writing
from penstock_spark.jobs.run.batches import query_id
from penstock_spark.jobs.run.sinks import file_sink, with_time
from penstock_spark.jobs.spec import conditions
from penstock_spark.jobs.spec.kinds import Validate
from penstock_spark.jobs.spec.naming import DLQ, JOB, OFFSET, PARTITION, REASON, REPLAYS, TIMESTAMP, TOPIC, group
from penstock_spark.jobs.spec.specs import TopicTarget, TransformSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

REASONS = "__reasons"
UNREADABLE = "undecodable_value"
"""Reason of a value that is not UTF-8, or not JSON of the job's schema, if the job decodes it so."""


def start(spark: SparkSession, job: Validate) -> StreamingQuery:
    """Start the job's query."""
    letters = dead_letter_target(job)
    writing.make_topic(letters)
    checked = check_expectations(reading.stream(spark, job.source, group(job)), job)
    observed = checked.observe("penstock", *progress_counts())
    if job.to is None:
        return writing.launch(writing.topic_writer(bad_rows(observed, job), letters), job)
    if isinstance(job.to, TopicTarget):
        writing.make_topic(job.to)
        if job.to.brokers == letters.brokers and job.to.topic is not None and job.transform.sql is None:
            # One transaction holds both: a record is in exactly one of the topics.
            both = msgspec.structs.replace(job.to, topic=None, create=None)
            return writing.launch(writing.topic_writer(route_records(observed, job), both), job)
    return writing.launch(observed.writeStream.foreachBatch(SplitSink(job, letters)), job)


class SplitSink:
    """Writes good and bad rows of a batch to different targets, each once."""

    def __init__(self, job: Validate, letters: TopicTarget) -> None:
        assert job.to is not None, "good rows need a target"
        self._job = job
        self._letters = letters
        self._files = None if isinstance(job.to, TopicTarget) else file_sink(job.to)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the bad rows of a batch, then the good ones."""
        job, to = self._job, self._job.to
        rows.persist()
        try:
            write_topic(bad_rows(rows, job), self._letters, job.name, "bad")
            good = good_rows(rows, job)
            if isinstance(to, TopicTarget):
                # Without a query the key is already computed, from the decoded record.
                target = to if job.transform.sql is not None else msgspec.structs.replace(to, key=None)
                write_topic(writing.topic_rows(good, target), target, job.name, "good")
                return
            assert to is not None, "good rows need a target"
            assert self._files is not None, "files are the other place"
            self._files(with_time(good, to.time) if to.time else good, batch)
        finally:
            rows.unpersist()


def write_topic(rows: DataFrame, target: TopicTarget, job: str, part: str) -> None:
    """Write a part of a batch. Each part has its own transactional id, so that a repeated write is recognised."""
    identity = {"penstock.transactional.id": f"penstock-spark-{query_id(rows)}-{part}"}
    options = writing.topic_options(target)
    rows.write.format("penstock").mode("append").options(**{**identity, **options}).save()


def dead_letter_target(job: Validate) -> TopicTarget:
    """Return the topic target of dead letters."""
    letters = job.dead_letters
    return TopicTarget(
        brokers=letters.brokers or job.source.brokers,
        topic=letters.topic,
        create=letters.create,
        options=letters.options or (topics.security(job.source.options) if letters.brokers is None else {}),
    )


def check_expectations(records: DataFrame, job: Validate) -> DataFrame:
    """Return decoded records with the names of unmet expectations, comma-separated; null if all are met."""
    from pyspark.sql import functions as F  # noqa: N812

    value = msgspec.structs.replace(job.transform.value, on_error="null")
    rows = reading.decode(records, TransformSpec(key=job.transform.key, value=value))
    failed: list[Column] = []
    if value.format != "binary":
        lost = F.col("raw_value").isNotNull() & F.col("value").isNull()
        failed.append(F.when(lost, F.lit(UNREADABLE)))
    failed += [F.when(~conditions.holds(e.sql), F.lit(e.name)) for e in job.expectations]
    names = F.concat_ws(",", *failed)
    return rows.withColumn(REASONS, F.when(names != "", names))


def progress_counts() -> list[Column]:
    """Return the metrics that a batch's progress observes."""
    from pyspark.sql import functions as F  # noqa: N812

    return [F.count(F.lit(1)).alias("rows"), F.count(REASONS).alias("bad")]


def bad_rows(rows: DataFrame, job: Validate) -> DataFrame:
    """Return the dead letters of bad rows."""
    from pyspark.sql import functions as F  # noqa: N812

    found = rows.where(F.col(REASONS).isNotNull())
    return found.select(*original_columns(), dead_letter_headers(job).alias("headers"))


def good_rows(rows: DataFrame, job: Validate) -> DataFrame:
    """Return good rows with the job's query applied."""
    from pyspark.sql import functions as F  # noqa: N812

    good = rows.where(F.col(REASONS).isNull()).drop(REASONS)
    if job.transform.sql is not None:
        return reading.query(good, job.transform.sql)
    if isinstance(job.to, TopicTarget):
        return good.select(good_key(job.to).alias("key"), F.col("raw_value").alias("value"), "headers", "topic")
    return good.drop("raw_key", "raw_value")


def route_records(rows: DataFrame, job: Validate) -> DataFrame:
    """Return all records with their topic, unchanged except for the key of good ones."""
    from pyspark.sql import functions as F  # noqa: N812

    assert isinstance(job.to, TopicTarget), "good rows go to a topic"
    is_bad = F.col(REASONS).isNotNull()
    return rows.select(
        F.when(is_bad, F.col("raw_key")).otherwise(good_key(job.to)).alias("key"),
        F.col("raw_value").alias("value"),
        F.when(is_bad, dead_letter_headers(job)).otherwise(F.col("headers")).alias("headers"),
        F.when(is_bad, F.lit(job.dead_letters.topic)).otherwise(F.lit(job.to.topic)).alias("topic"),
    )


def good_key(to: TopicTarget) -> Column:
    """Return the key of a good record without a query: the job's expression over the decoded record, or its own key."""
    from pyspark.sql import functions as F  # noqa: N812

    # To text first: a number cast to binary would be its big-endian bytes.
    return F.col("raw_key") if to.key is None else F.expr(to.key).cast("string").cast("binary")


def original_columns() -> list[Column]:
    """Return the columns of the original key and value."""
    from pyspark.sql import functions as F  # noqa: N812

    return [F.col("raw_key").alias("key"), F.col("raw_value").alias("value")]


def dead_letter_headers(job: Validate) -> Column:
    """Return the record's headers, without those of an earlier failure except its replay count, plus the new ones."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = F.expr(
        f"filter(coalesce(headers, array()), h -> h.key = '{REPLAYS}' OR NOT startswith(h.key, '{DLQ}'))"
    ).cast("array<struct<key:string,value:binary>>")
    added = {
        REASON: F.col(REASONS),
        TOPIC: F.col("topic"),
        PARTITION: F.col("partition"),
        OFFSET: F.col("offset"),
        TIMESTAMP: F.unix_millis(F.col("timestamp")),
        JOB: F.lit(job.name),
    }
    headers = [
        F.struct(F.lit(n).alias("key"), c.cast("string").cast("binary").alias("value")) for n, c in added.items()
    ]
    return F.concat(kept, F.array(*headers))
