"""The lag of a query, as its group shows it, on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import MakeTopic, Rec, ask_admin, eventually, produce
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import penstock_spark
from penstock_spark.progress.listener import ProgressListener

pytestmark = pytest.mark.integration

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
    """Process all existing data."""
    writer = frame.writeStream.format("noop").queryName(name).option("checkpointLocation", str(home / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)
    return query


def settled(spark: SparkSession, listener: ProgressListener) -> None:
    """Wait for the events, which follow their batches with a delay."""
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
    """Simulates a driver that died between the end of a batch and the commit."""
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


class Restarted:
    """A query whose driver died between the end of a batch and the commit: the group has offset 0, the checkpoint 2."""

    def __init__(self, spark: SparkSession, penstock: Broker, name: str, home: Path) -> None:
        self.spark, self.penstock, self.name, self.home = spark, penstock, name, home
        self.group = f"{name}-group"
        produce(penstock.bootstrap, name, [b"a", b"b"])
        # Under another group's name, because only a crash prevents the commit to the query's own group.
        run(reading(spark, penstock, name, **{"penstock.progress.group": f"{name}-other"}), home, name)

    def start(self, batch: Callable[[DataFrame, int], None] = lambda frame, batch: None) -> StreamingQuery:
        frame = reading(self.spark, self.penstock, self.name, **{"penstock.progress.group": self.group})
        writer = frame.writeStream.queryName(self.name).option("checkpointLocation", str(self.home / "checkpoint"))
        return writer.foreachBatch(batch).trigger(processingTime="1 hour").start()

    def has_more(self) -> None:
        produce(self.penstock.bootstrap, self.name, [b"c"])

    def shows(self, expected: int) -> None:
        eventually(
            f"a lag of {expected}, {lag(self.penstock, self.group)}",
            lambda: lag(self.penstock, self.group) == {(self.name, 0): expected},
        )


@pytest.fixture
def restarted(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, tracked: ProgressListener
) -> Restarted:
    return Restarted(spark, penstock, topic(), tmp_path)


def test_a_query_that_waits_for_new_data_shows_what_was_finished_before_its_restart(restarted: Restarted) -> None:
    """Its next event is an hour away."""
    query = restarted.start()
    try:
        restarted.shows(0)
        assert query.isActive
    finally:
        query.stop()


def test_a_query_in_its_first_batch_shows_what_was_finished_before_its_restart(restarted: Restarted) -> None:
    restarted.has_more()
    seen = threading.Event()
    query = restarted.start(lambda frame, batch: assert_(seen.wait(LIMIT_S)))
    try:
        restarted.shows(1)
        seen.set()
        restarted.shows(0)
    finally:
        seen.set()
        query.stop()


def test_a_query_that_fails_in_its_first_batch_shows_what_was_finished_before(restarted: Restarted) -> None:
    restarted.has_more()
    query = restarted.start(lambda frame, batch: assert_(False))
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(LIMIT_S)
    restarted.shows(1)


class Held(StreamingQueryListener):
    """Delays the events of completed batches for later listeners, until the test releases them."""

    def __init__(self) -> None:
        self.come = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802
    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.come.release()
        assert_(self.let_go.acquire(timeout=LIMIT_S))

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...  # noqa: N802
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802


@pytest.fixture
def held(spark: SparkSession, tracked: ProgressListener) -> Iterator[Held]:
    first = Held()
    spark.streams.removeListener(tracked)
    spark.streams.addListener(first)
    spark.streams.addListener(tracked)
    yield first
    first.let_go.release(100)
    spark.streams.removeListener(first)


def test_a_program_that_ends_with_its_query_shows_the_last_batch(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, tracked: ProgressListener, held: Held
) -> None:
    """Spark notifies listeners of it after the query has ended."""
    name = topic()
    options = {"penstock.progress.group": f"{name}-group", "maxOffsetsPerTrigger": "1"}
    produce(penstock.bootstrap, name, [b"a", b"b"])
    run(reading(spark, penstock, name, **options), tmp_path, name)
    assert held.come.acquire(timeout=LIMIT_S)
    assert tracked.flush(LIMIT_S)
    assert lag(penstock, f"{name}-group") == {(name, 0): 0}
    # The delayed event of the first batch must not lower the offset.
    held.let_go.release()
    assert held.come.acquire(timeout=LIMIT_S)
    assert tracked._publisher.flush(LIMIT_S)
    assert lag(penstock, f"{name}-group") == {(name, 0): 0}


def assert_(holds: bool) -> None:
    assert holds
