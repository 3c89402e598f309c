"""dlq-replay: dead letters back to the topics they came from, each once, those that were there at the start.

A letter that cannot be replayed is skipped, counted and named with its reason, and the others are replayed. It remains
in the dead-letter topic.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock_spark.jobs.run import reading, topics, writing
from penstock_spark.jobs.run.batches import query_id
from penstock_spark.jobs.run.destinations import DDL, Destination, batch_size, describe, record_size
from penstock_spark.jobs.spec import conditions
from penstock_spark.jobs.spec.kinds import DlqReplay
from penstock_spark.jobs.spec.naming import DLQ, OFFSET, PARTITION, REASON, REPLAYS, TOPIC, group
from penstock_spark.jobs.spec.specs import TopicTarget, TriggerSpec
from penstock_spark.model.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

OUTCOME, WHY, TARGET = "__outcome", "__why", "__target"
REPLAYED, NOT_CHOSEN, TOO_OFTEN, NO_ORIGIN = "replayed", "not_chosen", "too_often", "no_origin"
NO_TOPIC, NO_PARTITION, NO_KEY, TOO_LARGE = "no_topic", "no_partition", "no_key", "too_large"
SKIPS = (NO_ORIGIN, NO_TOPIC, NO_PARTITION, NO_KEY, TOO_LARGE)
"""Outcomes of letters that the job was to replay and cannot."""
SKIPPED = "skipped"
"""The sum of `SKIPS` among the counts of a batch."""
TOPIC_NAME = r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}$"
MAX_NAMES = 10_000
"""Topics that are described by name; where letters name more, all topics of the cluster are."""
MAX_NAMED = 100
"""Skipped letters of a batch that the log names."""
KEPT = 1_000
"""Batches whose counts are kept: Spark keeps the progress of fewer."""


def start(spark: SparkSession, job: DlqReplay) -> ReplayQuery:
    target = TopicTarget(
        brokers=job.brokers or job.source.brokers,
        options=job.options or (topics.security(job.source.options) if job.brokers is None else {}),
    )
    # What comes back while this runs is not run after: it ends where the topic ended at the start.
    once = msgspec.structs.replace(job, trigger=TriggerSpec(once=True))
    sink = ReplaySink(job, target)
    letters = reading.stream(spark, job.source, group(job))
    return ReplayQuery(writing.launch(letters.writeStream.foreachBatch(sink), once), sink.counts)


class ReplaySink:
    """What Spark calls for each batch of letters."""

    def __init__(self, job: DlqReplay, target: TopicTarget) -> None:
        self._job = job
        self._target = target
        self.counts: dict[int, dict[str, int]] = {}
        """Outcomes of each of the last batches."""

    def __call__(self, rows: DataFrame, number: int) -> None:
        job = self._job
        letters = chosen(with_origin(rows), job).persist()
        try:
            places = self._destinations(letters)
            judged = judge(letters, job, places).persist()
            try:
                counts = dict.fromkeys((REPLAYED, NOT_CHOSEN, TOO_OFTEN, NO_ORIGIN), 0)
                counts |= {row[OUTCOME]: row["count"] for row in judged.groupBy(OUTCOME).count().collect()}
                counts[SKIPPED] = sum(counts.get(name, 0) for name in SKIPS)
                if counts[SKIPPED]:
                    tell_skipped(judged, counts[SKIPPED])
                self._write(judged, places)
            finally:
                judged.unpersist()
        finally:
            letters.unpersist()
        self.counts[number] = counts
        self.counts.pop(number - KEPT, None)

    def _destinations(self, letters: DataFrame) -> list[Destination]:
        """The topics that letters are to go to. Raises `InvalidOption` where the job's own topic does not exist."""
        link = topics.link(self._target.brokers, self._target.options)
        if self._job.to is not None:
            (found,) = describe(link, [self._job.to])
            if found.problem is not None:
                raise InvalidOption(f"to: {found.problem}; create it, or correct the name")
            return [found]
        named = letters.where(f"{OUTCOME} IS NULL").select(TARGET).distinct().limit(MAX_NAMES + 1).collect()
        names = [row[TARGET] for row in named]
        return describe(link, names if len(names) <= MAX_NAMES else sorted(link.topics(None)))

    def _write(self, judged: DataFrame, places: Sequence[Destination]) -> None:
        options = {
            "penstock.transactional.id": f"penstock-spark-{query_id(judged)}",
            "kafka.allow.auto.create.topics": "false",
            **batch_size(places, self._target.options),
            **writing.topic_options(self._target),
        }
        rows = replayed(judged, self._job)
        rows.write.format("penstock").mode("append").options(**options).save()


class ReplayQuery:
    """A query whose progress has the counts that its batches' sink made."""

    def __init__(self, query: StreamingQuery, counts: Mapping[int, Mapping[str, int]]) -> None:
        self._query = query
        self._counts = counts

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802
        return [
            {**progress, "observedMetrics": {"penstock": self._counts.get(progress["batchId"], {})}}
            for progress in self._query.recentProgress
        ]

    @property
    def status(self) -> dict[str, Any]:
        return self._query.status

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        return self._query.awaitTermination(timeout)

    def stop(self) -> None:
        self._query.stop()


def with_origin(records: DataFrame) -> DataFrame:
    """Records with what their headers tell: dlq (reason, topic, partition, offset, replays). A header that is absent,
    has no value, or is not UTF-8 is NULL."""
    from pyspark.sql import functions as F  # noqa: N812

    def header(name: str) -> Column:
        # Of several of a name the last counts: it is of the latest death.
        text = F.expr(f"try_element_at(filter(headers, h -> h.key = '{name}'), -1).value").cast("string")
        return F.when(F.is_valid_utf8(text), text)

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


def chosen(letters: DataFrame, job: DlqReplay) -> DataFrame:
    """Letters with the topic that they are to go to, and with an outcome where that needs no knowledge of the topic."""
    from pyspark.sql import functions as F  # noqa: N812

    is_chosen = conditions.holds(job.where if job.where is not None else "true")
    if job.reasons:
        wanted = F.array(*map(F.lit, job.reasons))
        overlap = F.arrays_overlap(F.split(F.col("dlq.reason"), ","), wanted)
        is_chosen = is_chosen & F.coalesce(overlap, F.lit(False))
    problems = [
        (~is_chosen, NOT_CHOSEN, F.lit("")),
        (F.col("dlq.replays") >= job.max_replays, TOO_OFTEN, F.lit("")),
    ]
    if job.to is None:
        name = F.col("dlq.topic")
        problems.append((name.isNull(), NO_ORIGIN, F.lit(f'no header "{TOPIC}" with a value in UTF-8')))
        is_no_name = ~name.rlike(TOPIC_NAME)
        # Text of a hostile record: shown in part, without control characters.
        shown = F.regexp_replace(F.substring(name, 1, 100), r"\p{C}", "?")
        problems.append((is_no_name, NO_ORIGIN, F.concat(F.lit('"'), shown, F.lit('" is not a valid topic name'))))
    if job.same_partition:
        is_none = F.coalesce(F.col("dlq.partition") < 0, F.lit(True))
        problems.append((is_none, NO_ORIGIN, F.lit(f'no header "{PARTITION}" with the number of a partition')))
    target = F.lit(job.to) if job.to is not None else F.col("dlq.topic")
    return letters.withColumns({TARGET: target, **outcomes(problems)})


def outcomes(problems: Sequence[tuple[Column, str, Column]]) -> dict[str, Column]:
    """The first problem of a letter as its outcome, and why."""
    from pyspark.sql import functions as F  # noqa: N812

    cases = [(F.coalesce(condition, F.lit(False)), outcome, why) for condition, outcome, why in problems]
    outcome, why = F.lit(None).cast("string"), F.lit(None).cast("string")
    for condition, name, text in reversed(cases):
        outcome, why = F.when(condition, F.lit(name)).otherwise(outcome), F.when(condition, text).otherwise(why)
    return {OUTCOME: outcome, WHY: why}


def judge(letters: DataFrame, job: DlqReplay, places: Sequence[Destination]) -> DataFrame:
    """Letters with what becomes of them, `replayed` or one of the other outcomes, and why."""
    from pyspark.sql import functions as F  # noqa: N812

    known = letters.sparkSession.createDataFrame([tuple(place) for place in places], DDL)
    joined = letters.join(F.broadcast(known), letters[TARGET] == known["name"], "left")
    topic = F.concat(F.lit('topic "'), F.col(TARGET), F.lit('"'))
    problems = [
        (
            F.col("name").isNull() | F.col("problem").isNotNull(),
            NO_TOPIC,
            F.coalesce(F.col("problem"), F.concat(topic, F.lit(" does not exist"))),
        ),
        (
            F.col("is_compacted") & F.col("key").isNull(),
            NO_KEY,
            F.concat(topic, F.lit(" is compacted and takes no record without a key")),
        ),
        (
            record_size(F.col("key"), F.col("value"), replayed_headers()) > F.col("max_bytes"),
            TOO_LARGE,
            F.concat(topic, F.lit(" takes at most "), F.col("max_bytes"), F.lit(" bytes (max.message.bytes)")),
        ),
    ]
    if job.same_partition:
        why = F.concat(topic, F.lit(" has no partition "), F.col("dlq.partition"))
        problems.insert(1, (F.col("dlq.partition") >= F.col("partitions"), NO_PARTITION, why))
    found = outcomes(problems)
    return joined.withColumns(
        {
            OUTCOME: F.coalesce(F.col(OUTCOME), found[OUTCOME], F.lit(REPLAYED)),
            WHY: F.coalesce(F.col(WHY), found[WHY]),
        }
    )


def tell_skipped(judged: DataFrame, count: int) -> None:
    """Names letters that are skipped: topic, partition, offset and reason of each."""
    skipped = judged.where(judged[OUTCOME].isin(*SKIPS)).select("topic", "partition", "offset", WHY)
    for row in skipped.orderBy("topic", "partition", "offset").limit(MAX_NAMED).collect():
        log.warning("skipped: %s-%d offset %d: %s", row["topic"], row["partition"], row["offset"], row[WHY])
    if count > MAX_NAMED:
        log.warning("skipped: %d more letters of this batch", count - MAX_NAMED)


def replayed_headers() -> Column:
    """A letter's own headers, and one that counts how often it was replayed."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = F.expr(f"filter(coalesce(headers, array()), h -> NOT startswith(h.key, '{DLQ}'))")
    count = (F.col("dlq.replays") + 1).cast("string").cast("binary")
    return F.concat(
        kept.cast("array<struct<key:string,value:binary>>"),
        F.array(F.struct(F.lit(REPLAYS).alias("key"), count.alias("value"))),
    )


def replayed(rows: DataFrame, job: DlqReplay) -> DataFrame:
    """Records as they were before they died, but for a header that counts how often they were replayed."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col("key"), F.col("value"), replayed_headers().alias("headers"), F.col(TARGET).alias("topic")]
    if job.same_partition:
        columns.append(F.col("dlq.partition").alias("partition"))
    return rows.where(F.col(OUTCOME) == REPLAYED).select(*columns)
