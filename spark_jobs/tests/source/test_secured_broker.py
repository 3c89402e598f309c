"""Spark on a secured broker, with the options of Spark's Kafka connector: SCRAM and client certificates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

sys.path.append(str(Path(__file__).parents[3] / "tests" / "e2e"))

from penstock_e2e.connections import CERTIFICATE, Connection
from penstock_e2e.secured import FORBIDDEN, SecuredBroker, secured_broker
from penstock_e2e.secured_clients import CLIENTS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]

LIMIT_S = 300
VALUES = [b"%d" % number for number in range(100)]
each_mechanism = pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", CERTIFICATE])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


def options(connection: Connection) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in connection.java().items()}


def read(spark: SparkSession, connection: Connection, topic: str) -> list[bytes]:
    rows = spark.read.format("penstock").options(**options(connection)).option("subscribe", topic).load()
    return [bytes(row.value) for row in rows.select("value").collect()]


@each_mechanism
def test_a_batch_is_written_and_read(spark: SparkSession, broker: SecuredBroker, mechanism: str, fresh_name) -> None:
    connection, topic = broker.connection(mechanism), f"ana-{fresh_name()}"
    CLIENTS["kcat"][0](connection, topic, VALUES[:1])
    rows = spark.range(1, len(VALUES), 1, 2).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("penstock").mode("append").options(**options(connection)).option("topic", topic).save()
    assert sorted(read(spark, connection, topic)) == sorted(VALUES)


@each_mechanism
def test_a_stream_is_copied_exactly_once(
    spark: SparkSession, broker: SecuredBroker, mechanism: str, fresh_name, tmp_path: Path
) -> None:
    connection, source, target = broker.connection(mechanism), f"ana-{fresh_name()}", f"ana-{fresh_name()}"
    produce, consume = CLIENTS["confluent-kafka"]
    produce(connection, source, VALUES[:50])
    produce(connection, target, [b"first"])
    produce(connection, source, VALUES[50:])
    rows = spark.readStream.format("penstock").options(**options(connection)).option("subscribe", source)
    rows = rows.option("startingOffsets", "earliest").load().select("value")
    writing = rows.writeStream.format("penstock").options(**options(connection)).option("topic", target)
    writing = writing.option("penstock.delivery", "exactly-once").option("penstock.transactional.id", f"{target}-sink")
    query = writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S), "the query did not end"
    assert consume(connection, target, 1 + len(VALUES)) == [b"first", *VALUES]


def test_refusals_name_their_reason(spark: SparkSession, broker: SecuredBroker) -> None:
    right = broker.connection("SCRAM-SHA-512")
    for connection, topic, reason in (
        (broker.refused("SCRAM-SHA-512"), "ana-refused", 'SCRAM-SHA-512 rejected user "ana"'),
        (broker.distrusting("SCRAM-SHA-512"), "ana-refused", "certificate is not trusted"),
        (broker.refused(CERTIFICATE), "ana-refused", "certificate"),
        (right, FORBIDDEN, "TOPIC_AUTHORIZATION_FAILED"),
    ):
        with pytest.raises(PySparkException, match=reason):
            read(spark, connection, topic)
