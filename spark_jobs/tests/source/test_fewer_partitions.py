"""Streaming queries over topics that get fewer partitions."""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.streams import Query
from penstock_spark_kit.topics import Rec, eventually, make_topic, produce
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from shrink_kit import GroupReader, set_partitions, shrink_of, wait_for_state

pytestmark = pytest.mark.integration


def test_a_query_that_has_not_read_a_hidden_partition_ends_and_reads_it_after_it_is_opened_again(
    spark: SparkSession, own_broker: Broker, tmp_path: Path
) -> None:
    bootstrap = own_broker.bootstrap
    make_topic(bootstrap, "t", 3)
    produce(bootstrap, "t", [Rec(b"read %d" % n, partition=n) for n in range(3)])
    # The query's progress group would keep the partition visible if it did not read on.
    query = Query(spark, tmp_path, own_broker, subscribe="t", **{"penstock.progress.group": "other"})
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
