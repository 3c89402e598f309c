"""Spark's reader on Apache Kafka with a quota: it is throttled, and no read fails."""

from __future__ import annotations

import pytest
from penstock_java.secure_kafka import SecureKafka
from penstock_spark_kit.topics import make_topic, produce

from penstock_spark.link.link import Link
from penstock_spark.options.source import SourceOptions
from penstock_spark.source.batch import plan
from penstock_spark.source.reading import read_task

pytestmark = [pytest.mark.xdist_group("secure-kafka"), pytest.mark.timeout(300)]

COUNT, RECORD_BYTES = 8_000, 1_000
BYTES_A_SECOND = 500_000
"""Quota that Kafka averages over eleven seconds: about two thirds of the records pass at once."""


def test_a_client_that_is_over_its_quota_reads_on(kafka: SecureKafka) -> None:
    make_topic(kafka.address("PLAIN"), "of-much")
    values = [(b"%d " % number * RECORD_BYTES)[:RECORD_BYTES] for number in range(COUNT)]
    produce(kafka.address("PLAIN"), "of-much", values, config={"batch.num.messages": 50})
    kafka.limit("slow-reader", BYTES_A_SECOND)
    given = {"kafka.bootstrap.servers": kafka.address("PLAIN"), "subscribe": "of-much"}
    options = SourceOptions.parse({**given, "kafka.client.id": "slow-reader"}, streaming=False)
    (task,) = plan(Link.to(options.connection), options)
    read = [value for batch in read_task(options, task) for value in batch.column("value").to_pylist()]
    assert read == values
