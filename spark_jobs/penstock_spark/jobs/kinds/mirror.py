"""mirror: copies topics to another cluster, where only the offsets differ, and translates committed group offsets.

A batch is one transaction in the target cluster. Records keep partition, order, key, headers and timestamp: one task
reads a partition and one task writes it. While one of the clusters is unreachable, batches wait, then fail, and run
again from the checkpoint; the sink recognises a batch that is committed already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs.kinds.translation import OffsetPoints, Translator
from penstock_spark.jobs.run import checkpoint, reading, topics, writing
from penstock_spark.jobs.run.batches import query_id
from penstock_spark.jobs.spec.kinds import Mirror
from penstock_spark.jobs.spec.naming import group
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.source import SourceOptions
from penstock_spark.progress.offsets import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock_spark.link.ports import BrokerLink


def start(spark: SparkSession, job: Mirror) -> StreamingQuery:
    """Start the job's query."""
    records = reading.stream(spark, job.source, group(job))
    return writing.launch(records.writeStream.foreachBatch(MirrorSink(job)), job)


class MirrorSink:
    """Writes a batch, then translates the groups' committed offsets."""

    def __init__(self, job: Mirror) -> None:
        self._job = job
        self._translator: Translator | None = None
        self._is_one_cluster: bool | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write a batch and translate the groups."""
        job = self._job
        source = topics.link(job.source.brokers, job.source.options)
        target = topics.link(job.to.brokers, job.to.options)
        ends = StreamOffset.from_json(checkpoint.offsets(rows.sparkSession, job.checkpoint, batch)).offsets
        if self._is_one_cluster is None:
            self._is_one_cluster = topics.cluster_id(source) == topics.cluster_id(target) != ""
        if self._is_one_cluster:
            check_no_copy_loop(job, {tp.topic for tp in ends})
        if job.create_topics:
            ensure_topics(job, source, target, {tp.topic for tp in ends})
        identity = {"penstock.transactional.id": f"penstock-spark-{query_id(rows)}"}
        options = {**identity, **writing.topic_options(job.to)}
        mirrored(rows, job.prefix).write.format("penstock").mode("append").options(**options).save()
        if job.groups:
            if self._translator is None:
                self._translator = Translator(source, target, OffsetPoints(target, f"{job.name}.offsets"), job.prefix)
            self._translator.translate_groups(ends, job.groups)


def mirrored(rows: DataFrame, prefix: str) -> DataFrame:
    """Return the records to write to the target cluster."""
    from pyspark.sql import functions as F  # noqa: N812

    topic = F.concat(F.lit(prefix), F.col("topic")) if prefix else F.col("topic")
    return rows.select("key", "value", "headers", topic.alias("topic"), "partition", "timestamp")


def check_no_copy_loop(job: Mirror, names: set[str]) -> None:
    """Raise `InvalidOption` if source and target are one cluster and the job would copy its own copies forever."""
    read = SourceOptions.parse(reading.options(job.source), streaming=True).selection
    for name in sorted(names):
        copy = job.prefix + name
        if read.selects(copy):
            raise InvalidOption(
                f'source and target are one cluster, and the copy "{copy}" of topic "{name}" would be copied again, '
                "forever; give the mirror a prefix, and a pattern (^flights) that its copies do not match"
            )


def ensure_topics(job: Mirror, source: BrokerLink, target: BrokerLink, names: set[str]) -> None:
    """Create missing topics and partitions in the target cluster."""
    found = source.topics(names)
    topics.mirror_partitions(
        target, {job.prefix + name: topic.partitions for name, topic in found.items()}, job.replication
    )
