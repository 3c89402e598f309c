"""`spark.read.format("penstock")` on a real broker."""

from __future__ import annotations

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import MakeTopic, Rec, delete_records, produce
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.integration

TIME_MS = 1_700_000_000_123


def read(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
    for name, value in options.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader.load()


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def test_a_record_has_the_columns_of_the_kafka_connector(
    spark: SparkSession, penstock: Broker, topic: MakeTopic
) -> None:
    name = topic()
    produce(
        penstock.bootstrap,
        name,
        [
            Rec(b"v", b"k", timestamp_ms=TIME_MS, headers=[("h", b"1"), ("h", None)]),
            Rec(None, None, timestamp_ms=TIME_MS),
        ],
    )
    frame = read(spark, penstock, subscribe=name, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = frame.orderBy("offset").selectExpr("*", "unix_millis(timestamp) AS ms").drop("timestamp").collect()
    assert first == Row(
        key=b"k",
        value=b"v",
        topic=name,
        partition=0,
        offset=0,
        timestampType=0,
        headers=[Row(key="h", value=b"1"), Row(key="h", value=None)],
        ms=TIME_MS,
    )
    assert (second.key, second.value, second.headers) == (None, None, None)


def test_the_format_is_known_without_being_registered(spark: SparkSession, penstock: Broker, topic: MakeTopic) -> None:
    assert read(spark, penstock, subscribe=topic()).collect() == []


def test_a_partition_is_divided_among_tasks(spark: SparkSession, penstock: Broker, topic: MakeTopic) -> None:
    name = topic(2)
    produce(penstock.bootstrap, name, [Rec(b"%d" % number, partition=number % 2) for number in range(100)])
    frame = read(spark, penstock, subscribe=name, minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert values(frame) == sorted(str(number) for number in range(100))


def test_what_no_offset_is_left_for_is_a_loss_unless_that_is_allowed(
    spark: SparkSession, penstock: Broker, topic: MakeTopic
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"%d" % number for number in range(10)])
    delete_records(penstock.bootstrap, name, {0: 6})
    assert values(read(spark, penstock, subscribe=name)) == ["6", "7", "8", "9"]
    asked = {"subscribe": name, "startingOffsets": f'{{"{name}": {{"0": 4}}}}'}
    with pytest.raises(PySparkException, match=f'topic "{name}", partition 0: offsets 4 to 5 were deleted'):
        read(spark, penstock, **asked).collect()
    assert values(read(spark, penstock, **asked, failOnDataLoss="false")) == ["6", "7", "8", "9"]


def test_an_end_that_is_not_there_is_a_loss_unless_that_is_allowed(
    spark: SparkSession, penstock: Broker, topic: MakeTopic
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"a"])
    asked = {"subscribe": name, "endingOffsets": f'{{"{name}": {{"0": 9}}}}'}
    with pytest.raises(PySparkException, match="up to offset 9, but ends at offset 1"):
        read(spark, penstock, **asked).collect()
    assert values(read(spark, penstock, **asked, failOnDataLoss="false")) == ["a"]


def test_aborted_records_are_left_out_where_committed_ones_are_asked_for(
    spark: SparkSession, penstock: Broker, topic: MakeTopic
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"kept"], transactional_id=f"{name}-a")
    produce(penstock.bootstrap, name, [b"aborted"], transactional_id=f"{name}-b", commit=False)
    assert values(read(spark, penstock, subscribe=name)) == ["aborted", "kept"]
    assert values(read(spark, penstock, subscribe=name, kafka__isolation__level="read_committed")) == ["kept"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "there-is-no-such-topic"}, 'names what does not exist: "there-is-no-such-topic"'),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC": {"3": 1}}'}, "must name exactly the partitions"),
        ({"subscribe": "TOPIC", "startingTimestamp": "99999999999999"}, "no record is as new"),
        (
            {"subscribe": "TOPIC", "startOffset": "1"},
            'unknown option "startoffset"; did you mean "startingOffsets"',
        ),
    ],
)
def test_errors_name_the_option(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, options: dict[str, str], said: str
) -> None:
    name = topic()
    with pytest.raises(PySparkException, match=said):
        read(spark, penstock, **{key: value.replace("TOPIC", name) for key, value in options.items()}).collect()


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, penstock: Broker, topic: MakeTopic) -> None:
    options = {"kafka.bootstrap.servers": penstock.bootstrap, "subscribe": topic()}
    with pytest.raises(PySparkException, match=r"remove \.schema"):
        spark.read.format("penstock").options(**options).schema("value string").load().collect()


def test_a_query_that_needs_a_few_rows_ends_early(spark: SparkSession, penstock: Broker, topic: MakeTopic) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"x" * 1000] * 20_000)
    assert len(read(spark, penstock, subscribe=name).limit(3).collect()) == 3
    assert read(spark, penstock, subscribe=name).count() == 20_000
