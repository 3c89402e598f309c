"""dlq-replay: sends dead letters back to their original topics, each once, up to the topic's end at the job's start.

A letter that cannot be replayed is skipped, counted and logged with its reason, and stays in the dead-letter topic. The
others are replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock_spark.jobs.run import reading, topics, writing
from penstock_spark.jobs.run.batches import query_id
from penstock_spark.jobs.run.destinations import DDL, Destination, batch_size, describe, record_size
from penstock_spark.jobs.run.query_progress import QueryWithProgress
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
SKIP_OUTCOMES = (NO_ORIGIN, NO_TOPIC, NO_PARTITION, NO_KEY, TOO_LARGE)
"""Outcomes of letters that were selected but cannot be replayed."""
SKIPPED = "skipped"
"""Name of the sum of `SKIP_OUTCOMES` among the counts of a batch."""
TOPIC_NAME = r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}$"
MAX_TOPICS_BY_NAME = 10_000
"""Maximum number of topics described by name; beyond it all topics of the cluster are described."""
MAX_LOGGED = 100
"""Maximum number of skipped letters that a batch logs."""
MAX_KEPT_BATCHES = 1_000
"""Batches whose counts are kept; Spark keeps the progress of fewer."""


def start(spark: SparkSession, job: DlqReplay) -> ReplayQuery:
    """Start the job's query."""
    target = TopicTarget(
        brokers=job.brokers or job.source.brokers,
        options=job.options or (topics.security(job.source.options) if job.brokers is None else {}),
    )
    # Letters that fail again during the run are not replayed: the run ends at the topic's end at its start.
    once = msgspec.structs.replace(job, trigger=TriggerSpec(once=True))
    sink = ReplaySink(job, target)
    letters = reading.stream(spark, job.source, group(job))
    return ReplayQuery(writing.launch(letters.writeStream.foreachBatch(sink), once), sink.counts)


class ReplaySink:
    """Called by Spark for each batch of letters."""

    def __init__(self, job: DlqReplay, target: TopicTarget) -> None:
        self._job = job
        self._target = target
        self.counts: dict[int, dict[str, int]] = {}
        """Counts of outcomes by batch, for the last batches."""

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Classify and replay the letters of a batch."""
        job = self._job
        letters = select_letters(with_origin(rows), job).persist()
        try:
            destinations = self._destinations(letters)
            classified = classify(letters, job, destinations).persist()
            try:
                counts = dict.fromkeys((REPLAYED, NOT_CHOSEN, TOO_OFTEN, NO_ORIGIN), 0)
                counts |= {row[OUTCOME]: row["count"] for row in classified.groupBy(OUTCOME).count().collect()}
                counts[SKIPPED] = sum(counts.get(name, 0) for name in SKIP_OUTCOMES)
                if counts[SKIPPED]:
                    log_skipped(classified, counts[SKIPPED])
                self._write(classified, destinations)
            finally:
                classified.unpersist()
        finally:
            letters.unpersist()
        self.counts[number] = counts
        self.counts.pop(number - MAX_KEPT_BATCHES, None)

    def _destinations(self, letters: DataFrame) -> list[Destination]:
        """Return the letters' target topics. Raises `InvalidOption` if the job's own target topic does not exist."""
        link = topics.link(self._target.brokers, self._target.options)
        if self._job.to is not None:
            (found,) = describe(link, [self._job.to])
            if found.problem is not None:
                raise InvalidOption(f"to: {found.problem}; create it, or correct the name")
            return [found]
        named = letters.where(f"{OUTCOME} IS NULL").select(TARGET).distinct().limit(MAX_TOPICS_BY_NAME + 1).collect()
        names = [row[TARGET] for row in named]
        return describe(link, names if len(names) <= MAX_TOPICS_BY_NAME else sorted(link.topics(None)))

    def _write(self, classified: DataFrame, destinations: Sequence[Destination]) -> None:
        options = {
            "penstock.transactional.id": f"penstock-spark-{query_id(classified)}",
            "kafka.allow.auto.create.topics": "false",
            **batch_size(destinations, self._target.options),
            **writing.topic_options(self._target),
        }
        rows = replayed(classified, self._job)
        rows.write.format("penstock").mode("append").options(**options).save()


class ReplayQuery(QueryWithProgress):
    """A query whose progress includes the counts of `ReplaySink`."""

    def __init__(self, query: StreamingQuery, counts: Mapping[int, Mapping[str, int]]) -> None:
        super().__init__(query)
        self._counts = counts

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802
        """The query's recent progress, with the counts of outcomes as observed metrics."""
        return [
            {**progress, "observedMetrics": {"penstock": self._counts.get(progress["batchId"], {})}}
            for progress in self._query.recentProgress
        ]


def with_origin(records: DataFrame) -> DataFrame:
    """Return records with a column dlq (reason, topic, partition, offset, replays) from their headers. A header that is
    absent, without value or not UTF-8 is NULL."""
    from pyspark.sql import functions as F  # noqa: N812

    def header(name: str) -> Column:
        # The last of several headers with one name belongs to the latest failure.
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


def select_letters(letters: DataFrame, job: DlqReplay) -> DataFrame:
    """Return letters with their target topic, and with an outcome if it does not depend on the topic."""
    from pyspark.sql import functions as F  # noqa: N812

    is_chosen = conditions.holds(job.where if job.where is not None else "true")
    if job.reasons:
        reasons = F.array(*map(F.lit, job.reasons))
        overlap = F.arrays_overlap(F.split(F.col("dlq.reason"), ","), reasons)
        is_chosen = is_chosen & F.coalesce(overlap, F.lit(False))
    problems = [
        (~is_chosen, NOT_CHOSEN, F.lit("")),
        (F.col("dlq.replays") >= job.max_replays, TOO_OFTEN, F.lit("")),
    ]
    if job.to is None:
        name = F.col("dlq.topic")
        problems.append((name.isNull(), NO_ORIGIN, F.lit(f'no header "{TOPIC}" with a value in UTF-8')))
        is_no_name = ~name.rlike(TOPIC_NAME)
        # The name comes from an untrusted record: it is shortened, without control characters.
        shown = F.regexp_replace(F.substring(name, 1, 100), r"\p{C}", "?")
        problems.append((is_no_name, NO_ORIGIN, F.concat(F.lit('"'), shown, F.lit('" is not a valid topic name'))))
    if job.same_partition:
        is_none = F.coalesce(F.col("dlq.partition") < 0, F.lit(True))
        problems.append((is_none, NO_ORIGIN, F.lit(f'no header "{PARTITION}" with the number of a partition')))
    target = F.lit(job.to) if job.to is not None else F.col("dlq.topic")
    return letters.withColumns({TARGET: target, **first_problem(problems)})


def first_problem(problems: Sequence[tuple[Column, str, Column]]) -> dict[str, Column]:
    """Return the outcome of a letter's first problem, and the reason."""
    from pyspark.sql import functions as F  # noqa: N812

    cases = [(F.coalesce(condition, F.lit(False)), outcome, why) for condition, outcome, why in problems]
    outcome, why = F.lit(None).cast("string"), F.lit(None).cast("string")
    for condition, name, text in reversed(cases):
        outcome, why = F.when(condition, F.lit(name)).otherwise(outcome), F.when(condition, text).otherwise(why)
    return {OUTCOME: outcome, WHY: why}


def classify(letters: DataFrame, job: DlqReplay, destinations: Sequence[Destination]) -> DataFrame:
    """Return letters with their outcome (`replayed` or another) and the reason."""
    from pyspark.sql import functions as F  # noqa: N812

    known = letters.sparkSession.createDataFrame([tuple(destination) for destination in destinations], DDL)
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
            F.concat(topic, F.lit(" is compacted and rejects records without a key")),
        ),
        (
            record_size(F.col("key"), F.col("value"), replayed_headers()) > F.col("max_bytes"),
            TOO_LARGE,
            F.concat(topic, F.lit(" accepts at most "), F.col("max_bytes"), F.lit(" bytes (max.message.bytes)")),
        ),
    ]
    if job.same_partition:
        why = F.concat(topic, F.lit(" has no partition "), F.col("dlq.partition"))
        problems.insert(1, (F.col("dlq.partition") >= F.col("partitions"), NO_PARTITION, why))
    found = first_problem(problems)
    return joined.withColumns(
        {
            OUTCOME: F.coalesce(F.col(OUTCOME), found[OUTCOME], F.lit(REPLAYED)),
            WHY: F.coalesce(F.col(WHY), found[WHY]),
        }
    )


def log_skipped(classified: DataFrame, count: int) -> None:
    """Log skipped letters: topic, partition, offset and reason of each."""
    skipped = classified.where(classified[OUTCOME].isin(*SKIP_OUTCOMES)).select("topic", "partition", "offset", WHY)
    for row in skipped.orderBy("topic", "partition", "offset").limit(MAX_LOGGED).collect():
        log.warning("skipped: %s-%d offset %d: %s", row["topic"], row["partition"], row["offset"], row[WHY])
    if count > MAX_LOGGED:
        log.warning("skipped: %d more letters of this batch", count - MAX_LOGGED)


def replayed_headers() -> Column:
    """Return a letter's original headers, and one that counts its replays."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = F.expr(f"filter(coalesce(headers, array()), h -> NOT startswith(h.key, '{DLQ}'))")
    count = (F.col("dlq.replays") + 1).cast("string").cast("binary")
    return F.concat(
        kept.cast("array<struct<key:string,value:binary>>"),
        F.array(F.struct(F.lit(REPLAYS).alias("key"), count.alias("value"))),
    )


def replayed(rows: DataFrame, job: DlqReplay) -> DataFrame:
    """Return the original records, with a header that counts their replays."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = [F.col("key"), F.col("value"), replayed_headers().alias("headers"), F.col(TARGET).alias("topic")]
    if job.same_partition:
        columns.append(F.col("dlq.partition").alias("partition"))
    return rows.where(F.col(OUTCOME) == REPLAYED).select(*columns)
