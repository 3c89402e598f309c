"""Topics with scheduled records, and topics that get fewer partitions, under streaming queries."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.streams import Query
from penstock_spark_kit.topics import Rec, eventually, make_topic, produce
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from shrink_kit import GroupReader, LibrdkafkaWriter, set_partitions, shrink_of, wait_for_state, wait_until_received

import penstock_spark

pytestmark = pytest.mark.integration

DELAY_MS = 1_500
SCHEDULED = {"delivery.schedule.enable": "true"}


def after(value: bytes, ms: int = DELAY_MS, key: bytes = b"k") -> Rec:
    return Rec(value, key, 0, None, [("penstock-deliver-after-ms", b"%d" % ms)])


def test_a_stream_reads_scheduled_records_once_and_when_they_are_due(
    spark: SparkSession, own_broker: Broker, tmp_path: Path
) -> None:
    make_topic(own_broker.bootstrap, "orders", 1, SCHEDULED)
    begun_s = time.time()
    records = [after(b"later"), Rec(b"now", b"p", 0), after(b"cancelled", key=b"c"), after(b"tomorrow", 86_400_000)]
    produce(own_broker.bootstrap, "orders", [*records, Rec(b"", b"c", 0, None, [("penstock-cancel-scheduled", b"")])])
    query = Query(spark, tmp_path, own_broker, subscribe="orders")
    query.run()
    if time.time() < begun_s + DELAY_MS / 1000:
        assert query.values() == ["now"]

    def has_read_all() -> bool:
        query.run()
        return len(query.values()) >= 2

    eventually("the record is due", has_read_all)
    query.run()
    assert query.values() == ["later", "now"]


def test_a_batch_reads_what_is_due(spark: SparkSession, own_broker: Broker) -> None:
    make_topic(own_broker.bootstrap, "orders", 1, SCHEDULED)
    produce(own_broker.bootstrap, "orders", [Rec(b"now", b"p", 0), after(b"tomorrow", 86_400_000)])
    options = {"kafka.bootstrap.servers": own_broker.bootstrap, "subscribe": "orders"}
    rows = spark.read.format("penstock").options(**options).load()
    assert [bytes(row.value) for row in rows.select("value").collect()] == [b"now"]


SCHEDULED_ROW = """select cast('later' as binary) as value,
    array(named_struct('key', 'penstock-deliver-after-ms', 'value', cast('100' as binary))) as headers"""


def test_rows_with_a_time_are_scheduled(spark: SparkSession, own_broker: Broker) -> None:
    make_topic(own_broker.bootstrap, "orders", 1, SCHEDULED)
    options = {"kafka.bootstrap.servers": own_broker.bootstrap, "topic": "orders"}
    spark.sql(SCHEDULED_ROW).write.format("penstock").options(**options).mode("append").save()
    reader = GroupReader("g", own_broker.bootstrap, "orders")
    try:
        eventually("the row is delivered", lambda: list(reader.found.values()) == ["later"])
    finally:
        reader.stop()


def test_rows_with_a_time_cannot_be_in_a_transaction(spark: SparkSession, own_broker: Broker) -> None:
    make_topic(own_broker.bootstrap, "orders", 1, SCHEDULED)
    options = {"kafka.bootstrap.servers": own_broker.bootstrap, "topic": "orders"}
    writer = spark.sql(SCHEDULED_ROW).write.format("penstock").options(**options).mode("append")
    with pytest.raises(PySparkException, match="transaction"):
        writer.option("penstock.delivery", "exactly-once").save()


def test_each_row_is_copied_once_while_source_and_target_get_fewer_partitions(
    spark: SparkSession, own_broker: Broker, tmp_path: Path
) -> None:
    """The progress group of the query keeps the source's partitions until they are read."""
    penstock_spark.track(spark)
    bootstrap = own_broker.bootstrap
    make_topic(bootstrap, "source", 6)
    make_topic(bootstrap, "target", 4)
    options = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", "subscribe": "source"}
    reading = spark.readStream.format("penstock").options(**options).load().select("key", "value")
    copying = (
        reading.writeStream.format("penstock")
        .queryName("copy")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "target")
        .option("penstock.delivery", "exactly-once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    with ExitStack() as stack:
        query = copying.start()
        stack.callback(query.stop)
        writer = LibrdkafkaWriter("a", bootstrap, "source")
        stack.callback(writer.stop)
        reader = GroupReader("g", bootstrap, "target")
        stack.callback(reader.stop)
        eventually("the query copies", lambda: len(reader.found) > 100)
        set_partitions(bootstrap, "source", 2)
        set_partitions(bootstrap, "target", 3)
        for name in ("source", "target"):
            wait_for_state(bootstrap, name, "retired")
        writer.wait_for_more()
        assert query.exception() is None
        query.stop()
        set_partitions(bootstrap, "source", 6)
        query = copying.start()
        stack.callback(query.stop)
        writer.wait_for_more()
        writer.stop()
        counts = Counter(wait_until_received([writer], [reader]).values())
        assert query.exception() is None
    assert set(counts) == set(writer.acknowledged)
    assert max(counts.values()) == 1


def test_a_query_that_has_not_read_a_hidden_partition_ends_and_reads_it_after_it_is_opened_again(
    spark: SparkSession, own_broker: Broker, tmp_path: Path
) -> None:
    bootstrap = own_broker.bootstrap
    make_topic(bootstrap, "t", 3)
    produce(bootstrap, "t", [Rec(b"read %d" % n, partition=n) for n in range(3)])
    query = Query(spark, tmp_path, own_broker, subscribe="t")
    query.run()
    produce(bootstrap, "t", [Rec(b"unread %d" % n, partition=n) for n in range(3)])
    other = GroupReader("other", bootstrap, "t")
    try:
        set_partitions(bootstrap, "t", 2)
        wait_for_state(bootstrap, "t", "retired")
    finally:
        other.stop()
    with pytest.raises(PySparkException, match=r"partition 2 is hidden.*offsets 1 to 1 were not read"):
        query.run()
    set_partitions(bootstrap, "t", 3)
    eventually("the partition is open", lambda: shrink_of(bootstrap, "t") is None)
    query.run()
    assert query.values() == sorted([f"{what} {n}" for what in ("read", "unread") for n in range(3)])
