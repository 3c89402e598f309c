"""dlq-replay: dead letters back to the topics they came from, each once, those that were there at the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock_spark.jobs import reading, topics, writing
from penstock_spark.jobs.kinds import DlqReplay
from penstock_spark.jobs.naming import DLQ, OFFSET, PARTITION, REASON, REPLAYS, TOPIC, group
from penstock_spark.jobs.specs import TopicTarget, Trigger

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OUTCOME = "__outcome"


def start(spark: SparkSession, job: DlqReplay) -> StreamingQuery:
    letters = with_origin(reading.stream(spark, job.source, group(job)))
    rows = judge(letters, job).observe("penstock", *counts())
    target = TopicTarget(
        brokers=job.brokers or job.source.brokers,
        options=job.options or (topics.security(job.source.options) if job.brokers is None else {}),
    )
    # What comes back while this runs is not run after: it ends where the topic ended at the start.
    once = msgspec.structs.replace(job, trigger=Trigger(once=True))
    return writing.launch(writing.topic_writer(replayed(rows, job), target), once)


def with_origin(records: DataFrame) -> DataFrame:
    """Records with what their headers tell: dlq (reason, topic, partition, offset, replays)."""
    from pyspark.sql import functions as F  # noqa: N812

    def header(name: str) -> Column:
        # Of several of a name the last counts: it is of the latest death.
        return F.expr(f"try_element_at(filter(headers, h -> h.key = '{name}'), -1).value").cast("string")

    return records.withColumn(
        "dlq",
        F.struct(
            header(REASON).alias("reason"),
            header(TOPIC).alias("topic"),
            header(PARTITION).try_cast("int").alias("partition"),
            header(OFFSET).try_cast("long").alias("offset"),
            F.coalesce(header(REPLAYS).try_cast("int"), F.lit(0)).alias("replays"),
        ),
    )


def judge(letters: DataFrame, job: DlqReplay) -> DataFrame:
    """Records with what becomes of them: replayed, not_chosen, too_often, no_origin."""
    from pyspark.sql import functions as F  # noqa: N812

    chosen = F.expr(job.where) if job.where is not None else F.lit(True)
    if job.reasons:
        wanted = F.array(*map(F.lit, job.reasons))
        chosen = chosen & F.arrays_overlap(F.split(F.col("dlq.reason"), ","), wanted)
    outcome = F.when(~F.coalesce(chosen, F.lit(False)), F.lit("not_chosen"))
    if job.to is None:
        outcome = outcome.when(F.col("dlq.topic").isNull(), F.lit("no_origin"))
    outcome = outcome.when(F.col("dlq.replays") >= job.max_replays, F.lit("too_often"))
    return letters.withColumn(OUTCOME, outcome.otherwise(F.lit("replayed")))


def counts() -> list[Column]:
    """What the progress of a batch tells of it."""
    from pyspark.sql import functions as F  # noqa: N812

    outcomes = ("replayed", "not_chosen", "too_often", "no_origin")
    return [F.count_if(F.col(OUTCOME) == outcome).alias(outcome) for outcome in outcomes]


def replayed(rows: DataFrame, job: DlqReplay) -> DataFrame:
    """Records as they were before they died, but for a header that counts how often they were replayed."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = F.expr(f"filter(coalesce(headers, array()), h -> NOT startswith(h.key, '{DLQ}'))")
    count = (F.col("dlq.replays") + 1).cast("string").cast("binary")
    headers = F.concat(
        kept.cast("array<struct<key:string,value:binary>>"),
        F.array(F.struct(F.lit(REPLAYS).alias("key"), count.alias("value"))),
    )
    topic = F.lit(job.to) if job.to is not None else F.col("dlq.topic")
    columns = [F.col("key"), F.col("value"), headers.alias("headers"), topic.alias("topic")]
    if job.same_partition:
        columns.append(F.col("dlq.partition").alias("partition"))
    return rows.where(F.col(OUTCOME) == "replayed").select(*columns)
