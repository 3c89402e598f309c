"""Spark with topics whose records are scheduled."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.streams import Query
from penstock_spark_kit.topics import Rec, eventually, make_topic, produce
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from shrink_kit import GroupReader

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
