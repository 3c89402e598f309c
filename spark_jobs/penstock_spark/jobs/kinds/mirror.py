"""mirror: topics to another cluster, where nothing but offsets differs; and groups' offsets, translated.

A batch is one transaction there. Records keep partition, order, key, headers and timestamp: a partition is read by one
task and written by one task. While the link to either cluster is cut, batches wait, then fail, and are run again from
the checkpoint; a batch that had come through is recognised by the sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_spark.jobs.kinds.translation import Points, Translator
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

    from penstock_spark.link.ports import Link


def start(spark: SparkSession, job: Mirror) -> StreamingQuery:
    records = reading.stream(spark, job.source, group(job))
    return writing.launch(records.writeStream.foreachBatch(MirrorSink(job)), job)


class MirrorSink:
    """Writes a batch, then says to groups there where they are."""

    def __init__(self, job: Mirror) -> None:
        self._job = job
        self._translator: Translator | None = None
        self._is_one_cluster: bool | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        job = self._job
        source = topics.link(job.source.brokers, job.source.options)
        target = topics.link(job.to.brokers, job.to.options)
        ends = StreamOffset.from_json(checkpoint.offsets(rows.sparkSession, job.checkpoint, batch)).offsets
        if self._is_one_cluster is None:
            self._is_one_cluster = topics.cluster_id(source) == topics.cluster_id(target) != ""
        if self._is_one_cluster:
            check_copies(job, {tp.topic for tp in ends})
        if job.create_topics:
            ensure_topics(job, source, target, {tp.topic for tp in ends})
        identity = {"penstock.transactional.id": f"penstock-spark-{query_id(rows)}"}
        options = {**identity, **writing.topic_options(job.to)}
        mirrored(rows, job.prefix).write.format("penstock").mode("append").options(**options).save()
        if job.groups:
            if self._translator is None:
                self._translator = Translator(source, target, Points(target, f"{job.name}.offsets"), job.prefix)
            self._translator.batch_ended(ends, job.groups)


def mirrored(rows: DataFrame, prefix: str) -> DataFrame:
    """Records as they go to the other cluster."""
    from pyspark.sql import functions as F  # noqa: N812

    topic = F.concat(F.lit(prefix), F.col("topic")) if prefix else F.col("topic")
    return rows.select("key", "value", "headers", topic.alias("topic"), "partition", "timestamp")


def check_copies(job: Mirror, names: set[str]) -> None:
    """Within one cluster: a copy that the job would read too, and copy again, would grow for ever. Raises
    `InvalidOption`."""
    read = SourceOptions.parse(reading.options(job.source), streaming=True).selection
    for name in sorted(names):
        copy = job.prefix + name
        if read.takes(copy):
            raise InvalidOption(
                f"source and target are one cluster, and the copy of topic {name}, {copy}, would be copied again, for "
                "ever: give the mirror a prefix, and a pattern (^flights) that its copies do not match"
            )


def ensure_topics(job: Mirror, source: Link, target: Link, names: set[str]) -> None:
    """Topics there with as many partitions as here."""
    found = source.topics(names)
    topics.mirror_partitions(
        target, {job.prefix + name: topic.partitions for name, topic in found.items()}, job.replication
    )
