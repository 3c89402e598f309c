"""`spark.readStream.format("penstock")` on a real broker: offsets, restarts, limits, losses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.streams import Query
from penstock_spark_kit.topics import MakeTopic, Rec, add_partitions, delete_records, delete_topic, make_topic, produce
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.integration


def sizes(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_each_run_reads_what_came_since_the_last(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(2)
    produce(penstock.bootstrap, name, [Rec(b"a", partition=0), Rec(b"b", partition=1)])
    query = Query(spark, tmp_path, penstock, subscribe=name)
    query.run()
    assert query.values() == ["a", "b"]
    produce(penstock.bootstrap, name, [Rec(b"c", partition=0)])
    query.run()
    query.run()
    assert query.values() == ["a", "b", "c"]
    offsets = query.offsets()
    assert offsets.pop("@topics").keys() == {name}
    assert offsets == {name: {"0": 2, "1": 1}}


def test_a_limit_makes_more_batches_and_loses_nothing(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(2)
    produce(penstock.bootstrap, name, [Rec(b"%d" % number, partition=int(number < 10)) for number in range(40)])
    query = Query(spark, tmp_path, penstock, subscribe=name, maxOffsetsPerTrigger="16")
    assert sizes(query.run()) == [16, 16, 8]
    assert query.values() == sorted(str(number) for number in range(40))


def test_partitions_and_topics_that_appear_are_read_from_their_beginning(
    spark: SparkSession, penstock: Broker, fresh_name: Callable[[], str], tmp_path: Path
) -> None:
    prefix = fresh_name()
    make_topic(penstock.bootstrap, f"{prefix}-one", 1)
    query = Query(spark, tmp_path, penstock, subscribePattern=f"^{prefix}-", startingOffsets="latest")
    running = query.start(available_now=False)
    try:
        running.processAllAvailable()
        add_partitions(penstock.bootstrap, f"{prefix}-one", 2)
        make_topic(penstock.bootstrap, f"{prefix}-two", 1)
        produce(penstock.bootstrap, f"{prefix}-one", [Rec(b"new partition", partition=1)])
        produce(penstock.bootstrap, f"{prefix}-two", [b"new topic"])
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.values() == ["new partition", "new topic"]


def test_a_first_batch_that_is_repeated_begins_where_it_began(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """Spark requests the start offsets again, and `latest` has moved since."""
    name = topic()
    produce(penstock.bootstrap, name, [b"before"])
    query = Query(spark, tmp_path, penstock, subscribe=name, startingOffsets="latest")
    query.run()
    assert query.offsets()["@from"] == {name: {"0": 1}}
    produce(penstock.bootstrap, name, [b"of the first batch"])
    # Simulate a driver that died in the first batch after planning it: up to offset 2, not committed.
    planned = query.offsets() | {name: {"0": 2}}
    journal = tmp_path / "checkpoint" / "offsets" / "0"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:-1], json.dumps(planned)]))
    (tmp_path / "checkpoint" / "offsets" / ".0.crc").unlink(missing_ok=True)
    for left in ("checkpoint/commits", "out"):
        shutil.rmtree(tmp_path / left)
    produce(penstock.bootstrap, name, [b"after"])
    query.run()
    assert query.values() == ["after", "of the first batch"]


def test_a_first_batch_is_repeated_though_its_query_could_not_begin_any_more(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"left out", b"of the first batch"])
    query = Query(spark, tmp_path, penstock, subscribe=name, startingOffsets=json.dumps({name: {"0": 1}}))
    query.run()
    # Simulate a driver that died in the first batch; since then the option lacks a partition.
    for left in ("checkpoint/commits", "out"):
        shutil.rmtree(tmp_path / left)
    add_partitions(penstock.bootstrap, name, 2)
    produce(penstock.bootstrap, name, [Rec(b"after", partition=1)])
    query.run()
    assert query.values() == ["after", "of the first batch"]


def test_a_batch_that_is_repeated_has_the_topics_that_it_was_planned_with(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    kept, left = topic(), topic()
    for name in (kept, left):
        produce(penstock.bootstrap, name, [f"of {name}".encode()])
    Query(spark, tmp_path, penstock, subscribe=f"{kept},{left}").run()
    # Simulate a driver that died in the batch; the restarted query has one of the topics.
    for lost in ("checkpoint/commits", "out"):
        shutil.rmtree(tmp_path / lost)
    query = Query(spark, tmp_path, penstock, subscribe=kept, failOnDataLoss="false")
    query.run()
    assert query.values() == sorted([f"of {kept}", f"of {left}"])


def test_too_little_data_waits_for_more_but_not_for_ever(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"1"])
    query = Query(spark, tmp_path, penstock, subscribe=name, minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    running = query.start(available_now=False)
    try:
        running.processAllAvailable()  # the first batch does not wait
        produce(penstock.bootstrap, name, [b"2", b"3"])
        running.processAllAvailable()
        assert query.values() == ["1"]
        produce(penstock.bootstrap, name, [b"4"])
        running.processAllAvailable()
    finally:
        running.stop()
    assert query.values() == ["1", "2", "3", "4"]
    produce(penstock.bootstrap, name, [b"5"])
    query.run()
    assert query.values() == ["1", "2", "3", "4", "5"]


def lose_by_deleting(broker: Broker, name: str) -> None:
    delete_topic(broker.bootstrap, name)


def lose_by_making_anew(broker: Broker, name: str) -> None:
    delete_topic(broker.bootstrap, name)
    make_topic(broker.bootstrap, name, 1)
    produce(broker.bootstrap, name, [b"anew %d" % number for number in range(5)])


def lose_by_retention(broker: Broker, name: str) -> None:
    produce(broker.bootstrap, name, [b"lost", b"kept"])
    delete_records(broker.bootstrap, name, {0: 4})


@pytest.mark.parametrize(
    ("lose", "said", "left"),
    [
        (lose_by_deleting, 'topic "{name}", partition 0 no longer exists; it had been read up to offset 3', []),
        (
            lose_by_making_anew,
            'topic "{name}" was deleted and created again',
            [f"anew {number}" for number in range(5)],
        ),
        (lose_by_retention, 'topic "{name}", partition 0: offsets 3 to 3 were deleted before they were read', ["kept"]),
    ],
)
def test_a_loss_ends_the_query_unless_it_is_allowed(
    spark: SparkSession,
    penstock: Broker,
    topic: MakeTopic,
    tmp_path: Path,
    lose: Callable[[Broker, str], None],
    said: str,
    left: list[str],
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"1", b"2", b"3"])
    query = Query(spark, tmp_path, penstock, subscribe=name)
    query.run()
    lose(penstock, name)
    with pytest.raises(StreamingQueryException, match=said.format(name=name)):
        query.run()
    assert query.values() == ["1", "2", "3"]
    query.run(failOnDataLoss="false")
    assert query.values() == ["1", "2", "3", *left]


def test_a_stream_reads_committed_records_only_where_asked_to(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"kept"], transactional_id=f"{name}-a")
    produce(penstock.bootstrap, name, [b"aborted"], transactional_id=f"{name}-b", commit=False)
    query = Query(spark, tmp_path, penstock, subscribe=name, **{"kafka.isolation.level": "read_committed"})
    query.run()
    assert query.values() == ["kept"]
    assert query.offsets()[name] == {"0": 4}


def test_an_option_of_batches_is_refused(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, penstock, subscribe=topic(), endingOffsets="latest")
    with pytest.raises(Exception, match='option "endingOffsets" is for batch queries'):
        query.run()
