"""Archives without a query: tasks write the fetched rows, and the result equals that of a query of all columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.jobs import build_job, run_once
from penstock_spark_kit.topics import MakeTopic, Rec, add_partitions, delete_records, produce
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock_spark.jobs.run.direct import read_plan
from penstock_spark.jobs.run.failures import cause, may_pass
from penstock_spark.jobs.spec.kinds import UTC, Archive

pytestmark = pytest.mark.integration

JOB = """
kind: archive
name: direct
source: {{brokers: "{brokers}", topics: [{topic}]}}
checkpoint: {home}/checkpoint-{format}
to: {{format: {format}, path: {home}/{format}}}
"""
AS_THEY_ARE = "transform.sql=SELECT key, value, topic, partition, offset, timestamp, timestampType, headers FROM source"
HOUR_MS = 3_600_000
NEW_YEAR_MS = 1_356_998_400_000
RECORDS = [
    Rec(b"before 1970", b"k", 0, 0 - 1),
    Rec(b"", b"", 0, NEW_YEAR_MS - 1),
    Rec(None, b"tombstone", 1, NEW_YEAR_MS),
    Rec(b"no key", None, 1, NEW_YEAR_MS + HOUR_MS),
    Rec(b"\xff\xfe no text", b"\xc3", 0, NEW_YEAR_MS + 5 * HOUR_MS, [("h", b"1"), ("h", None), ("", b"\xff")]),
    *(Rec(b"%d" % n, b"%d" % (n % 7), n % 2, NEW_YEAR_MS + n * HOUR_MS // 10) for n in range(400)),
]


@pytest.fixture
def records(penstock: Broker, topic: MakeTopic) -> str:
    """Fill a topic with records of all kinds: compressed, with and without headers, committed, aborted."""
    name = topic(2)
    produce(penstock.bootstrap, name, RECORDS[:200], compression="zstd")
    produce(
        penstock.bootstrap,
        name,
        [Rec(b"aborted", partition=n % 2) for n in range(50)],
        transactional_id=name,
        commit=False,
    )
    produce(penstock.bootstrap, name, RECORDS[200:], transactional_id=name, config={"batch.num.messages": 10})
    return name


def text_of(penstock: Broker, topic: str, home: Path, format_: str) -> str:
    return JOB.format(brokers=penstock.bootstrap, topic=topic, home=home, format=format_)


def table(home: Path, format_: str) -> pa.Table:
    """Return rows of the target as readers other than Spark read them."""
    if format_ == "delta":
        return DeltaTable(home / "delta").to_pyarrow_table()
    return ds.dataset(home / "parquet", format="parquet", partitioning="hive").to_table()


def rows(home: Path, format_: str) -> list[Mapping[str, Any]]:
    return sorted(table(home, format_).to_pylist(), key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.parametrize("format_", ["parquet", "delta"])
@pytest.mark.parametrize(
    "sets",
    [
        [],
        [f"transform.{name}.{what}" for name in ("key", "value") for what in ("format=string", "on_error='null'")],
        ["to.time.by=hour", "to.partition_by=[partition]"],
        ["to.time.by=day", "source.options.includeHeaders=false"],
        ["to.time.by=month", "to.partition_by=[topic]"],
    ],
    ids=["bytes", "text", "hour", "day", "month"],
)
def test_what_is_written_directly_is_what_a_query_of_all_columns_writes(
    spark: SparkSession, penstock: Broker, records: str, tmp_path: Path, format_: str, sets: list[str]
) -> None:
    query = AS_THEY_ARE.replace(", headers", "") if "source.options.includeHeaders=false" in sets else AS_THEY_ARE
    for path, more in ("direct", []), ("query", [query]):
        run_once(spark, text_of(penstock, records, tmp_path / path, format_), *sets, *more)
    direct = table(tmp_path / "direct", format_)
    assert direct.schema == table(tmp_path / "query", format_).schema
    assert rows(tmp_path / "direct", format_) == rows(tmp_path / "query", format_)
    assert direct.num_rows == len(RECORDS)


@pytest.mark.parametrize("sets", [[], [AS_THEY_ARE]], ids=["direct", "query"])
def test_what_is_no_text_fails_a_job_that_says_it_is_and_names_the_record(
    spark: SparkSession, penstock: Broker, records: str, tmp_path: Path, sets: list[str]
) -> None:
    text = text_of(penstock, records, tmp_path, "delta")
    with pytest.raises(StreamingQueryException) as caught:
        run_once(spark, text, "transform.value.format=string", *sets)
    assert (
        cause(caught.value)
        == f"{records}-0 offset 2: the value is not UTF-8 text; correct it, or set transform.value.on_error: null"
    )
    assert not may_pass(caught.value)


def test_the_rows_that_are_told_are_records_that_were_written(
    spark: SparkSession, penstock: Broker, records: str, tmp_path: Path
) -> None:
    """Spark counts a row per task, and offsets include aborted records."""
    done = run_once(spark, text_of(penstock, records, tmp_path, "delta"))
    assert [one.rows for one in done] == [len(RECORDS)]


def test_a_checkpoint_goes_on_from_one_way_to_the_other_and_back(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    text = text_of(penstock, name := topic(2), tmp_path, "parquet")
    for turn, sets in enumerate(([], [AS_THEY_ARE], [])):
        produce(penstock.bootstrap, name, [Rec(b"%d-%d" % (turn, n), partition=n % 2) for n in range(10)])
        assert sum(done.rows for done in run_once(spark, text, *sets)) == 10
    found = Counter(row["value"] for row in rows(tmp_path, "parquet"))
    assert found == Counter(b"%d-%d" % (turn, n) for turn in range(3) for n in range(10))


def test_new_partitions_are_read_and_batches_are_as_small_as_the_job_says(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    text = text_of(penstock, name := topic(1), tmp_path, "delta")
    produce(penstock.bootstrap, name, [Rec(b"%d" % n, partition=0) for n in range(30)])
    assert [done.rows for done in run_once(spark, text, "source.max_records_per_batch=20")] == [20, 10]
    add_partitions(penstock.bootstrap, name, 3)
    produce(penstock.bootstrap, name, [Rec(b"%d" % n, partition=n % 3) for n in range(30, 60)])
    run_once(spark, text)
    assert Counter(row["value"] for row in rows(tmp_path, "delta")) == Counter(b"%d" % n for n in range(60))


def test_what_retention_took_fails_the_job_or_is_left_behind_as_it_says(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    text = text_of(penstock, name := topic(1), tmp_path, "delta")
    produce(penstock.bootstrap, name, [b"%d" % n for n in range(10)])
    run_once(spark, text)
    produce(penstock.bootstrap, name, [b"%d" % n for n in range(10, 30)])
    delete_records(penstock.bootstrap, name, {0: 25})
    with pytest.raises(StreamingQueryException) as caught:
        run_once(spark, text)
    assert f'topic "{name}", partition 0: offsets 10 to 24 were deleted before they were read' in cause(caught.value)
    assert not may_pass(caught.value)
    run_once(spark, text, "source.fail_on_data_loss=false")
    assert [row["offset"] for row in rows(tmp_path, "delta")] == [*range(10), *range(25, 30)]


def test_a_batch_that_is_there_is_not_written_again_and_one_that_has_grown_is_refused(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """A checkpoint that lost its last commit repeats the batch; one that lost its last offsets plans it again, with
    more rows."""
    text = text_of(penstock, name := topic(1), tmp_path, "parquet")
    produce(penstock.bootstrap, name, [b"%d" % n for n in range(10)])
    run_once(spark, text)
    checkpoint = tmp_path / "checkpoint-parquet"
    forget(checkpoint / "commits" / "0")
    assert [done.rows for done in run_once(spark, text)] == [10]
    assert len(rows(tmp_path, "parquet")) == 10
    forget(checkpoint / "commits" / "0")
    forget(checkpoint / "offsets" / "0")
    produce(penstock.bootstrap, name, [b"late"])
    with pytest.raises(StreamingQueryException, match="has batch 0 with 10 rows, but now it has 11"):
        run_once(spark, text)


def forget(path: Path) -> None:
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def archive(*sets: str) -> Archive:
    job = build_job(JOB.format(brokers="b:9092", topic="t", home="/nowhere", format="delta"), *sets)
    assert isinstance(job, Archive)
    return job


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([], True),
        (["transform.value.format=string"], True),
        (["to.time.by=hour"], True),
        (["transform.sql=SELECT offset FROM source"], False),
        (["transform.value.format=json", "transform.value.schema=a INT"], False),
        (["to.time.column=value"], False),
    ],
)
def test_spark_sees_the_records_of_jobs_that_have_it_do_something_with_them(sets: list[str], expected: bool) -> None:
    assert archive(*sets).is_direct("UTC") is expected


def test_folders_by_time_are_the_sessions_and_so_sparks_where_that_is_not_utc() -> None:
    assert not archive("to.time.by=day").is_direct("Europe/Berlin")
    assert archive().is_direct("Europe/Berlin")
    assert all(archive("to.time.by=day").is_direct(zone) for zone in UTC)


def test_the_schema_is_known_without_spark() -> None:
    found = read_plan(archive("to.time.by=hour", "transform.value.format=string")).schema
    assert found.names[-3:] == ["headers", "date", "hour"]
    assert found.field("value").type == pa.string()
    assert found.field("hour").type == pa.int32()
