"""Spark writes topics of a real broker: batch and streaming, at least and exactly once; other clients read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock_spark_kit.batches_written import read_all, values_of, wanted
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import MakeTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter

from penstock.client.partitioner import murmur2
from penstock_spark.jobs.run.failures import may_pass

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark")]
LIMIT_S = 300


def numbers(spark: SparkSession, count: int, tasks: int = 3) -> DataFrame:
    return spark.range(0, count, 1, tasks).select(f.col("id").cast("string").alias("value"))


def write(rows: DataFrame, broker: Broker, topic: str | None, **more: str) -> None:
    writer = rows.write.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap).mode("append")
    if topic is not None:
        writer = writer.option("topic", topic)
    for name, value in more.items():
        writer = writer.option(name.replace("_", "."), value)
    writer.save()


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_each_row_of_a_batch_job_is_in_the_topic(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, delivery: str
) -> None:
    name = topic(3)
    write(numbers(spark, 30_000), penstock, name, penstock_delivery=delivery)
    found = read_all(penstock.bootstrap, name)
    assert sorted(m.value() for m in found) == wanted(30_000)
    assert {m.partition() for m in found} == {0, 1, 2}


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_keyed_rows_lie_where_javas_partitioner_would_put_them(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, delivery: str
) -> None:
    name = topic(4)
    rows = numbers(spark, 10_000).withColumn("key", f.concat(f.lit("k"), f.col("value")))
    write(rows, penstock, name, penstock_delivery=delivery, kafka_compression_type="zstd")
    found = read_all(penstock.bootstrap, name)
    assert sorted(m.value() for m in found) == wanted(10_000)
    assert all(m.partition() == (murmur2(m.key()) & 0x7FFFFFFF) % 4 for m in found)


def test_topic_partition_headers_and_time_come_from_columns(
    spark: SparkSession, penstock: Broker, topic: MakeTopic
) -> None:
    one, two = topic(2), topic(2)
    rows = spark.sql(
        f"""select '{one}' as topic, cast('a' as binary) as value, 1 as partition,
                   array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers,
                   timestamp '2013-01-01 10:00:00.5' as timestamp
            union all select '{two}', cast('b' as binary), 0, null, timestamp '2013-01-02 10:00:00'
            union all select '{two}', null, null, null, null"""
    )
    write(rows, penstock, None)
    (first,) = read_all(penstock.bootstrap, one)
    assert (first.partition(), first.value(), first.headers()) == (1, b"a", [("h", b"x")])
    assert first.timestamp()[1] == 1_357_034_400_500
    second = sorted(read_all(penstock.bootstrap, two), key=lambda m: m.value() or b"")
    assert [(m.value(), m.headers()) for m in second] == [(None, None), (b"b", None)]
    assert second[1].partition() == 0


@pytest.mark.parametrize(
    ("select", "options", "says"),
    [
        ("select 1 as value", {"topic": "x"}, 'column "value" is int'),
        ("select '1' as value, 2 as price", {"topic": "x"}, 'column "price" is not a field'),
        ("select '1' as value", {}, 'set option "topic"'),
        ("select '1' as value", {"topic": "x", "kafka.acsk": "all"}, "kafka.acsk"),
        ("select '1' as value", {"topic": "nowhere", "kafka.allow.auto.create.topics": "false"}, "does not exist"),
        ("select '1' as value", {"topic": "x", "penstock.delivery": "twice"}, "exactly-once"),
    ],
)
def test_what_cannot_be_written_is_an_error_that_names_it(
    spark: SparkSession, penstock: Broker, select: str, options: dict[str, str], says: str
) -> None:
    writer = spark.sql(select).write.format("penstock").option("kafka.bootstrap.servers", penstock.bootstrap)
    with pytest.raises(PySparkException, match=says):
        writer.options(**options).mode("append").save()


def test_a_topic_cannot_be_overwritten(spark: SparkSession, penstock: Broker, topic: MakeTopic) -> None:
    writer = numbers(spark, 1).write.format("penstock").option("kafka.bootstrap.servers", penstock.bootstrap)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.option("topic", topic()).mode("overwrite").save()


def files(folder: Path, count: int, rows: int) -> Path:
    """Return a folder of text files of numbers, one for each micro-batch."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        lines = "\n".join(str(n) for n in range(number * rows, (number + 1) * rows))
        (folder / f"{number:03}.txt").write_text(lines + "\n")
    return folder


def stream(spark: SparkSession, source: Path, broker: Broker, topic: str, checkpoint: Path) -> DataStreamWriter:
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    return (
        rows.writeStream.format("penstock")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, delivery: str
) -> None:
    name = topic(2)
    source, checkpoint = files(tmp_path / "in", 3, 100), tmp_path / "checkpoint"
    for count in (3, 5):
        files(source, count, 100)
        query = stream(spark, source, penstock, name, checkpoint).option("penstock.delivery", delivery).start()
        assert query.awaitTermination(LIMIT_S)
    assert values_of(penstock.bootstrap, name) == wanted(500)


def test_a_batch_that_was_written_but_not_checkpointed_is_not_written_again(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """The driver was killed between the end of the transaction and the checkpoint's commit log."""
    name = topic(2)
    source, checkpoint = files(tmp_path / "in", 2, 100), tmp_path / "checkpoint"

    def run() -> None:
        query = stream(spark, source, penstock, name, checkpoint).option("penstock.delivery", "exactly-once").start()
        assert query.awaitTermination(LIMIT_S)

    run()
    (last,) = (checkpoint / "commits").glob("1")
    last.unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    files(source, 3, 100)
    run()
    assert values_of(penstock.bootstrap, name) == wanted(300)


def test_a_checkpoint_that_was_set_back_is_refused_where_its_batch_has_other_rows_now(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """The checkpoint lost batch 1, and one more file arrived: the batch has more rows than were written."""
    name = topic(2)
    source, checkpoint = files(tmp_path / "in", 2, 100), tmp_path / "checkpoint"

    def run(at_once: int = 1, **more: str) -> None:
        rows = spark.readStream.option("maxFilesPerTrigger", at_once).text(str(source))
        writer = rows.writeStream.format("penstock").option("kafka.bootstrap.servers", penstock.bootstrap)
        writer = writer.option("topic", name).option("checkpointLocation", str(checkpoint))
        writer = writer.option("penstock.delivery", "exactly-once")
        for option, value in more.items():
            writer = writer.option(option.replace("_", "."), value)
        assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)

    run()
    for folder in ("commits", "offsets", "sources/0"):
        (checkpoint / folder / "1").unlink()
        (checkpoint / folder / ".1.crc").unlink(missing_ok=True)
    files(source, 3, 100)
    for _ in range(2):
        with pytest.raises(PySparkException, match=r"BatchDiffers: batch 1 .* with 100 rows and now has 200") as raised:
            run(at_once=2)
        assert not may_pass(raised.value)
    assert values_of(penstock.bootstrap, name) == wanted(200)
    run(at_once=2, penstock_repeated_batch="skip")
    files(source, 4, 100)
    run(at_once=2)
    assert values_of(penstock.bootstrap, name) == sorted(wanted(200) + wanted(100, first=300))


def test_a_task_that_fails_once_fails_the_batch_and_the_restart_writes_it_once(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(2)
    source, checkpoint = files(tmp_path / "in", 2, 20_000), tmp_path / "checkpoint"
    flag = str(tmp_path / "failed-once")

    def breaks_once(batches):  # type: ignore[no-untyped-def]
        from pathlib import Path

        for batch in batches:
            yield batch
            if "15000" in batch.column(0).to_pylist() and not Path(flag).exists():
                Path(flag).touch()
                raise OSError("a task that fails once")

    def run() -> None:
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
        query = (
            rows.mapInArrow(breaks_once, "value string")
            .writeStream.format("penstock")
            .option("kafka.bootstrap.servers", penstock.bootstrap)
            .option("topic", name)
            .option("checkpointLocation", str(checkpoint))
            .option("penstock.delivery", "exactly-once")
            .option("kafka.batch.size", "10000")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(LIMIT_S)

    with pytest.raises(PySparkException, match="a task that fails once"):
        run()
    assert values_of(penstock.bootstrap, name, "read_uncommitted") != []
    assert values_of(penstock.bootstrap, name) == []
    run()
    assert values_of(penstock.bootstrap, name) == wanted(40_000)
