"""Changes of topics and brokers during a query."""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.streams import Query
from penstock_spark_kit.topics import MakeTopic, delete_topic, eventually, make_topic, produce
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

AGAIN = pytest.mark.parametrize("again", [False, True], ids=["deleted", "recreated"])
QUICK = {"fetchOffset.retryIntervalMs": "100"}
LIMIT_S = 120


def make_anew(broker: Broker, name: str) -> None:
    make_topic(broker.bootstrap, name, 1)
    produce(broker.bootstrap, name, [b"anew 0", b"anew 1", b"anew 2", b"anew 3"])


@AGAIN
def test_a_topic_that_goes_under_a_running_query_ends_it(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, again: bool
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"1", b"2", b"3"])
    query = Query(spark, tmp_path, penstock, subscribe=name, **QUICK)
    running = query.start(available_now=False)
    try:
        running.processAllAvailable()
        delete_topic(penstock.bootstrap, name)
        if again:
            make_anew(penstock, name)
        said = (
            "deleted and created again|no longer exists"
            if again
            else "no longer exists; it had been read up to offset 3"
        )
        says = f'topic "{name}".* ({said}).*set option "failOnDataLoss"'
        with pytest.raises(StreamingQueryException, match=says):
            running.awaitTermination(LIMIT_S)
    finally:
        running.stop()
    with pytest.raises(StreamingQueryException, match=f'topic "{name}"'):
        query.run()
    assert query.values() == ["1", "2", "3"]


@AGAIN
def test_a_running_query_goes_on_without_a_topic_that_goes_where_that_is_allowed(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, again: bool
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"1", b"2", b"3"])
    query = Query(spark, tmp_path, penstock, subscribe=name, failOnDataLoss="false", **QUICK)
    running = query.start(available_now=False)
    try:
        running.processAllAvailable()
        delete_topic(penstock.bootstrap, name)
        if not again:
            eventually("the query leaves the topic behind", lambda: name not in query.offsets())
            assert running.isActive
        make_anew(penstock, name)
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.values() == ["1", "2", "3", *(f"anew {number}" for number in range(4))]


def test_a_broker_that_is_restarted_and_one_that_is_killed_are_waited_for(
    spark: SparkSession, own_broker: Broker, tmp_path: Path
) -> None:
    make_topic(own_broker.bootstrap, "t", 2)
    produce(own_broker.bootstrap, "t", [b"%03d" % n for n in range(100)])
    query = Query(spark, tmp_path, own_broker, subscribe="t", maxOffsetsPerTrigger="30")
    running = query.start(available_now=False)
    try:
        for first, end in ((100, own_broker.stop), (200, own_broker.kill)):
            end()
            own_broker.start()
            produce(own_broker.bootstrap, "t", [b"%03d" % n for n in range(first, first + 100)])
            running.processAllAvailable()
        assert running.isActive
    finally:
        running.stop()
    assert query.values() == [f"{n:03}" for n in range(300)]
