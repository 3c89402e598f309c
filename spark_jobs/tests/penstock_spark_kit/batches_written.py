"""Batches written without Spark, and their records as another client reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from penstock_spark.options.sink import SinkOptions
from penstock_spark.sink.columns import sink_columns
from penstock_spark.sink.messages import CommitMessage
from penstock_spark.sink.service_client import ServiceEndpoint, call_service
from penstock_spark.sink.task import TaskIdentity, TaskTransaction, TaskWriter, WriteResult

TIMEOUT_S = 60.0


@dataclass
class Run:
    """One run of a batch without Spark: the work of planning process, tasks and committing process."""

    endpoint: ServiceEndpoint
    name: str
    options: SinkOptions
    batch: int
    query: str
    ddl: str
    counts: list[int] = field(default_factory=list)
    """Row counts of each task."""

    def task(self, number: int, attempt_number: int = 0) -> TaskWriter:
        place = TaskIdentity(number, attempt_number, self.query, self.batch)
        columns = sink_columns(schema(self.ddl), self.options.topic)
        return TaskWriter(self.options, columns, place, TaskTransaction(self.endpoint, self.name))

    def write(self, number: int, batches: Iterator[pa.RecordBatch], attempt_number: int = 0) -> WriteResult:
        with self.task(number, attempt_number) as task:
            written = task.write(batches)
        self.counts.append(written.rows + written.skipped)
        return written

    def commit(self, *tasks: int) -> None:
        call_service(self.endpoint, CommitMessage(self.name, self.batch, list(tasks), sum(self.counts)), TIMEOUT_S)


def read_all(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """Return all messages of a topic from confluent-kafka's consumer, up to its current end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader-of-tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
        }
    )
    try:
        numbers = list(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        found, ended = [], set[int]()
        while len(ended) < len(numbers):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"nothing more of {topic}, which has not ended"
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise AssertionError(error)
        return found
    finally:
        consumer.close()


def values_of(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Return the sorted values, so that duplicates show."""
    return sorted(message.value() for message in read_all(bootstrap, topic, isolation))


def batches(count: int, first: int = 0, each: int = 1000, keys: int = 0) -> Iterator[pa.RecordBatch]:
    """Return rows whose values are numbers; with `keys` the keys are the numbers modulo that."""
    for start in range(first, first + count, each):
        numbers = range(start, min(start + each, first + count))
        columns = {"value": pa.array([b"%d" % n for n in numbers], pa.binary())}
        if keys:
            columns["key"] = pa.array([b"%d" % (n % keys) for n in numbers], pa.binary())
        yield pa.record_batch(columns)


def wanted(count: int, first: int = 0) -> list[bytes]:
    return sorted(b"%d" % n for n in range(first, first + count))


HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
KINDS: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "headers": HEADERS,
    "wrong headers": ArrayType(StructType().add("name", StringType()).add("value", BinaryType())),
    "map": MapType(StringType(), BinaryType()),
}


def schema(ddl: str) -> StructType:
    """Parse `name kind, name kind` without the JVM that Spark's parser needs."""
    found = StructType()
    for column in ddl.split(", "):
        name, _, kind = column.partition(" ")
        found.add(name, KINDS[kind])
    return found
