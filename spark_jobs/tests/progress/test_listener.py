"""The lag of a query, as its group shows it, on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import Rec, ask_admin, produce
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import penstock_spark
from penstock_spark.progress.listener import ProgressListener

MakeTopic = Callable[..., str]
LIMIT_S = 300


@pytest.fixture
def tracked(spark: SparkSession) -> Iterator[ProgressListener]:
    listener = penstock_spark.track(spark)
    assert penstock_spark.track(spark) is listener
    return listener


def lag(broker: Broker, group: str) -> dict[tuple[str, int], int | None]:
    found = ask_admin(broker.bootstrap, lambda admin: admin.group_lag(group))
    return {(one.topic, one.partition): found[one].lag for one in found}


def reading(spark: SparkSession, broker: Broker, topic: str, **options: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("penstock").options(**(given | options)).load()


def run(frame: DataFrame, home: Path, name: str) -> StreamingQuery:
    """Everything that is there now."""
    writer = frame.writeStream.format("noop").queryName(name).option("checkpointLocation", str(home / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)
    return query


def settled(spark: SparkSession, listener: ProgressListener) -> None:
    """Events come a little later than the batches they tell of."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(LIMIT_S * 1000)
    assert listener.flush(LIMIT_S)


def test_a_finished_batch_shows_in_the_group_of_the_querys_name(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, tracked: ProgressListener
) -> None:
    name = topic(2)
    produce(penstock.bootstrap, name, [Rec(b"a", partition=0), Rec(b"b", partition=1), Rec(b"c", partition=1)])
    run(reading(spark, penstock, name), tmp_path, name)
    settled(spark, tracked)
    group = f"penstock-spark-{name}"
    assert lag(penstock, group) == {(name, 0): 0, (name, 1): 0}
    produce(penstock.bootstrap, name, [Rec(b"d", partition=1)])
    assert lag(penstock, group) == {(name, 0): 0, (name, 1): 1}
    run(reading(spark, penstock, name), tmp_path, name)
    settled(spark, tracked)
    assert lag(penstock, group) == {(name, 0): 0, (name, 1): 0}


def test_after_a_restart_that_finds_nothing_new_the_group_is_right_again(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, tracked: ProgressListener
) -> None:
    """As when the driver died between the end of a batch and the commit."""
    name = topic()
    produce(penstock.bootstrap, name, [b"a", b"b"])
    run(reading(spark, penstock, name, **{"penstock.progress.group": f"{name}-1"}), tmp_path, name)
    run(reading(spark, penstock, name, **{"penstock.progress.group": f"{name}-2"}), tmp_path, name)
    settled(spark, tracked)
    assert lag(penstock, f"{name}-2") == {(name, 0): 0}


def test_two_sources_of_one_query_have_groups_of_their_own(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, tracked: ProgressListener
) -> None:
    one, two = topic(), topic()
    produce(penstock.bootstrap, one, [b"a"])
    produce(penstock.bootstrap, two, [b"b", b"c"])
    frames = [reading(spark, penstock, name, **{"kafka.group.id": f"{name}-group"}) for name in (one, two)]
    run(frames[0].union(frames[1]), tmp_path, one)
    settled(spark, tracked)
    assert lag(penstock, f"{one}-group") == {(one, 0): 0}
    assert lag(penstock, f"{two}-group") == {(two, 0): 0}
