"""Brokers are killed while tasks write: no row is lost or duplicated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from cluster_processes import Cluster, running
from penstock_spark_kit.batches_written import Run, batches, schema, values_of, wanted
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import make_topic

from penstock.client.cluster import TRANSACTION
from penstock_spark.link.link import Link
from penstock_spark.model.errors import PenstockSparkError, Unavailable
from penstock_spark.options.sink import SinkOptions
from penstock_spark.sink.columns import sink_columns
from penstock_spark.sink.service_client import ServiceEndpoint
from penstock_spark.sink.task import TaskIdentity, TaskWriter

pytestmark = pytest.mark.integration


def own_writer(bootstrap: str, topic: str, **more: str) -> TaskWriter:
    """Return a writer with at-least-once delivery."""
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    options = SinkOptions.parse({**given, **{name.replace("_", "."): value for name, value in more.items()}})
    return TaskWriter(options, sink_columns(schema("value binary"), topic), TaskIdentity(0, 0))


def interrupted(count: int, outage: Callable[[], object], first: int = 0, keys: int = 0) -> Iterator[pa.RecordBatch]:
    half = count // 2
    yield from batches(half, first=first, keys=keys)
    outage()
    yield from batches(count - half, first=first + half, keys=keys)


def test_an_idempotent_task_survives_its_broker_without_doubles(own_broker: Broker) -> None:
    make_topic(own_broker.bootstrap, "t", 2)

    def outage() -> None:
        own_broker.kill()
        own_broker.start()

    with own_writer(own_broker.bootstrap, "t", kafka_batch_size="20000") as task:
        assert task.write(interrupted(40_000, outage)).rows == 40_000
    with own_writer(own_broker.bootstrap, "t") as task:  # reuses the same producer
        task.write(batches(1000, first=40_000))
    assert values_of(own_broker.bootstrap, "t") == wanted(41_000)


def test_a_broker_that_stays_away_is_given_up_with_the_partition_and_the_option(own_broker: Broker) -> None:
    make_topic(own_broker.bootstrap, "t", 1)
    writer = own_writer(own_broker.bootstrap, "t", kafka_batch_size="20000", kafka_delivery_timeout_ms="1500")
    with writer as task, pytest.raises(Unavailable, match=r"t-0: .* within 1500 ms \(kafka\.delivery\.timeout\.ms\)"):
        task.write(interrupted(400_000, own_broker.kill))


def test_a_batch_larger_than_the_topic_allows_names_what_to_change(penstock: Broker, topic: Callable[..., str]) -> None:
    name = topic(1, {"max.message.bytes": "5000"})
    says = r'lower "kafka\.batch\.size" or raise max\.message\.bytes'
    with own_writer(penstock.bootstrap, name) as task, pytest.raises(PenstockSparkError, match=says):
        task.write(batches(10_000))


def test_a_row_larger_than_the_topic_allows_is_not_told_to_lower_the_size_of_batches(
    penstock: Broker, topic: Callable[..., str]
) -> None:
    name = topic(1, {"max.message.bytes": "5000"})
    rows = pa.record_batch({"value": pa.array([b"1", bytes(6000), b"2"])})
    says = r"one row has 60[0-9]{2} bytes: raise the topic's max\.message\.bytes$"
    small = own_writer(penstock.bootstrap, name, kafka_batch_size="1000")
    with small as task, pytest.raises(PenstockSparkError, match=says):
        task.write(iter([rows]))


def test_a_time_that_a_broker_refuses_names_the_column_and_the_settings(
    penstock: Broker, topic: Callable[..., str]
) -> None:
    name = topic(1)
    options = SinkOptions.parse({"kafka.bootstrap.servers": penstock.bootstrap, "topic": name})
    columns = sink_columns(schema("value binary, timestamp timestamp"), name)
    rows = pa.record_batch({"value": pa.array([b"1"]), "timestamp": pa.array([10**18], pa.timestamp("us", tz="UTC"))})
    says = r'column "timestamp" .*message\.timestamp\.after\.max\.ms'
    with TaskWriter(options, columns, TaskIdentity(0, 0)) as task, pytest.raises(PenstockSparkError, match=says):
        task.write(iter([rows]))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_every_codec_and_every_acks_writes_what_other_clients_read(
    penstock: Broker, topic: Callable[..., str], codec: str, acks: str
) -> None:
    name = topic(2)
    with own_writer(penstock.bootstrap, name, kafka_compression_type=codec, kafka_acks=acks) as task:
        task.write(batches(5000))
    if acks == "0":  # acks=0 does not wait for the write; a second task on the same connection does
        with own_writer(penstock.bootstrap, name) as task:
            task.write(batches(2, first=5000))
    assert set(wanted(5000)) <= set(values_of(penstock.bootstrap, name))


@pytest.mark.timeout(180)
def test_a_coordinator_and_leaders_that_are_killed_cost_a_transaction_nothing(
    tmp_path: Path, service: ServiceEndpoint, start_run: Callable[..., Run]
) -> None:
    with running(Cluster(tmp_path)) as cluster:
        make_topic(cluster.bootstrap, "t", 6, replicas=3)
        run = start_run(service, cluster.bootstrap, "t", ddl="key binary, value binary", kafka_batch_size="20000")
        link = Link.to(run.options.connection)
        name = f"penstock-spark-{run.query}"

        def outage() -> None:
            victim = link.run(lambda brokers: brokers.coordinator(name, TRANSACTION))
            cluster.brokers[victim].kill()

        run.write(0, interrupted(40_000, outage, keys=60))
        run.commit(0)
        assert values_of(cluster.bootstrap, "t") == wanted(40_000)
