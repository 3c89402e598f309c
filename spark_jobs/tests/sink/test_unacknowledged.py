"""Unacknowledged batches (acks=0): all are sent regardless of their number, and the wait for them is bounded."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from penstock_spark_kit.batches_written import batches, schema, values_of, wanted
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import eventually, make_topic

from penstock.client.cluster import ClusterConnections
from penstock_spark.encode.batches import encode
from penstock_spark.encode.ports import ProducerId
from penstock_spark.link.link import Link
from penstock_spark.model.errors import Unavailable
from penstock_spark.options.sink import SinkOptions
from penstock_spark.sink.batch_sender import BatchSender, SenderSettings
from penstock_spark.sink.columns import encodable_rows, sink_columns
from penstock_spark.sink.partition_lanes import EncodedBytesBudget
from penstock_spark.sink.task import TaskIdentity, TaskWriter

pytestmark = pytest.mark.integration

COLUMNS = schema("value binary")


def options_of(bootstrap: str, topic: str, **more: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.acks": "0"}
    return SinkOptions.parse({**given, **{name.replace("_", "."): value for name, value in more.items()}})


def test_any_number_of_batches_may_wait_for_a_connection(penstock: Broker, topic: Callable[..., str]) -> None:
    name, count = topic(1), 3000
    (rows,) = batches(count, each=count)
    encoded = list(encode(encodable_rows(rows, sink_columns(COLUMNS, name), 0), 0, 1, ProducerId(-1, -1, False), -1))
    assert len(encoded) == count, "each row is a batch"
    options = options_of(penstock.bootstrap, name)

    async def send(cluster: ClusterConnections) -> None:
        await cluster.topic(name)
        budget = EncodedBytesBudget(1 << 30)
        settings = SenderSettings(None, 0, options.request_bytes, 5, 30_000, 30_000)
        sending = BatchSender(cluster, settings, budget, None)
        for batch in encoded:
            budget.acquire(len(batch.data))
            sending.put((name, 0), batch)
        await sending.finish()
        await sending.close()

    Link.to(options.connection).run(send)
    eventually("all are in the topic", lambda: values_of(penstock.bootstrap, name) == wanted(count))


def test_a_broker_that_does_not_read_is_given_up_with_the_option(own_broker: Broker) -> None:
    make_topic(own_broker.bootstrap, "t", 1)
    options = options_of(own_broker.bootstrap, "t", kafka_delivery_timeout_ms="4000")
    assert own_broker.process is not None
    broker = own_broker.process.pid

    def writer() -> TaskWriter:
        return TaskWriter(options, sink_columns(COLUMNS, "t"), TaskIdentity(0, 0))

    def more_than_sockets_hold() -> Iterator[pa.RecordBatch]:
        for _ in range(20):
            yield pa.record_batch({"value": pa.array([bytes(100_000)] * 100, pa.binary())})

    with writer() as task:  # connects the process
        task.write(batches(100))
    os.kill(broker, signal.SIGSTOP)
    says = r"has not read the requests sent to it within 4000 ms \(kafka\.delivery\.timeout\.ms\)"
    try:
        with writer() as task, pytest.raises(Unavailable, match=says):
            task.write(more_than_sockets_hold())
    finally:
        os.kill(broker, signal.SIGCONT)
