"""Run jobs as `penstock-spark run --once` does, in the session of the tests."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql import SparkSession

from penstock_spark.jobs.launcher import start
from penstock_spark.jobs.run.figures import BatchDone, batch_of
from penstock_spark.jobs.spec import document
from penstock_spark.jobs.spec.specs import JobSpec
from penstock_spark_kit.topics import eventually

LIMIT_S = 300


def build_job(text: str, *sets: str) -> JobSpec:
    found = document.parse(text, "test.yaml")
    for assignment in sets:
        document.set_value(found, assignment)
    return document.build_job(found)


def run_once(spark: SparkSession, text: str, *sets: str) -> list[BatchDone]:
    """Process the existing data; return the reported batches. Raises the failure of the query."""
    job: Any = build_job(text, "trigger.once=true", *sets)
    query = start(spark, job)
    try:
        assert query.awaitTermination(LIMIT_S), f"not done after {LIMIT_S} s: {query.status}"
        return [done for progress in query.recentProgress if (done := batch_of(progress)) is not None]
    finally:
        query.stop()


def read_all(bootstrap: str, topic: str, at_least: int) -> list[Message]:
    """Return all committed records of a topic by partition and offset, as confluent-kafka reads them. Read again until
    at least `at_least` exist: the end of a transaction is visible a moment after it is acknowledged."""
    found: list[Message] = []

    def are_there() -> bool:
        nonlocal found
        found = read_once(bootstrap, topic)
        return len(found) >= at_least

    eventually(f"{at_least} records in {topic}", are_there)
    return found


def read_once(bootstrap: str, topic: str) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-all",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        found: list[Message] = []
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(30)
            assert message is not None, f"nothing more from {topic}, and no end of it"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ended.add(message.partition())
    finally:
        consumer.close()
    return sorted(found, key=lambda m: (m.partition(), m.offset()))
