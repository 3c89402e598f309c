"""Each kind of job on real flights and a real broker."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.flights import departure_ms, flights, records
from penstock_spark_kit.jobs import read_all, run_once
from penstock_spark_kit.topics import MakeTopic, Rec, make_topic, produce
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock_spark.jobs.examples import example

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]
COUNT = 2_000


@pytest.fixture(scope="module")
def flights_topic(penstock: Broker) -> str:
    """Fill a topic with `COUNT` flights in three partitions."""
    make_topic(penstock.bootstrap, "jobs-flights", 3, {"retention.ms": "-1"})
    produce(penstock.bootstrap, "jobs-flights", records(COUNT))
    return "jobs-flights"


@pytest.fixture
def sets(penstock: Broker, tmp_path: Path) -> list[str]:
    """Return the settings with which examples run here."""
    return [f"source.brokers={penstock.bootstrap}", f"checkpoint={tmp_path}/checkpoint"]


def numbers(table: list[dict[str, object]]) -> Counter[tuple[object, object]]:
    return Counter((row["partition"], row["offset"]) for row in table)


def test_archive_puts_every_flight_into_a_delta_table_once_and_a_second_run_adds_what_is_new(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, sets: list[str]
) -> None:
    name = topic(3, {"retention.ms": "-1"})
    produce(penstock.bootstrap, name, records(COUNT))
    sets += [f"source.topics=[{name}]", f"to.path={tmp_path}/lake", "source.max_records_per_batch=900"]
    sets += ["to.compact.every_batches=2", "to.compact.min_files=2"]
    done = run_once(spark, example("archive"), *sets)
    assert sum(d.rows for d in done) == COUNT
    assert len(done) == 3
    produce(penstock.bootstrap, name, [Rec(b'{"carrier": "XX", "time_hour": "2013-01-01T05:00:00Z"}')])
    run_once(spark, example("archive"), *sets)
    table = DeltaTable(f"{tmp_path}/lake")
    rows = table.to_pyarrow_table().to_pylist()
    assert Counter(row["carrier"] for row in rows) == Counter(f["carrier"] for f in flights(COUNT)) + Counter(["XX"])
    assert set(numbers(rows).values()) == {1}
    assert table.metadata().partition_columns == ["date"]
    assert {str(row["date"]) for row in rows} == {f["time_hour"][:10] for f in flights(COUNT)}
    operations = [version["operation"] for version in table.history()]
    assert operations.count("WRITE") == 4
    assert "OPTIMIZE" in operations


def test_archive_puts_every_flight_into_a_parquet_folder_once(
    spark: SparkSession, flights_topic: str, tmp_path: Path, sets: list[str]
) -> None:
    sets += [f"source.topics=[{flights_topic}]", f"to.path={tmp_path}/lake", "source.max_records_per_batch=500"]
    sets += ["to.format=parquet", "to.time={column: departure, by: hour}", "to.partition_by=[origin]"]
    sets += ["to.compact={every_batches: 3, min_files: 2}"]
    run_once(spark, example("archive"), *sets)
    dataset = ds.dataset(f"{tmp_path}/lake", format="parquet", partitioning="hive")
    rows = dataset.to_table().to_pylist()
    assert set(numbers(rows).values()) == {1}
    expected = Counter((f["origin"], f["carrier"], f["time_hour"][:10]) for f in flights(COUNT))
    assert Counter((row["origin"], row["carrier"], str(row["date"])) for row in rows) == expected
    assert any("compact-" in file for file in dataset.files)


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_checkpoint_that_lost_its_last_batch_leaves_nothing_out_in_silence(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, sets: list[str], form: str
) -> None:
    """Spark does not sync its checkpoint: a loss of power may remove its last files. Spark then plans the batch again,
    with new records, under a number that the target has."""
    name = topic(1, {"retention.ms": "-1"})
    produce(penstock.bootstrap, name, records(30))
    sets += [f"source.topics=[{name}]", f"to.path={tmp_path}/lake", f"to.format={form}"]
    run_once(spark, example("archive"), *sets)
    for folder in ("offsets", "commits"):
        for file in (tmp_path / "checkpoint" / folder).glob("*0*"):
            file.unlink()
    produce(penstock.bootstrap, name, records(5))
    with pytest.raises(StreamingQueryException, match="has batch 0 with 30 rows, but now it has 35"):
        run_once(spark, example("archive"), *sets)


def test_aggregate_keeps_counts_by_carrier_and_hour_right_from_batch_to_batch(
    spark: SparkSession, flights_topic: str, tmp_path: Path, sets: list[str]
) -> None:
    sets += [f"source.topics=[{flights_topic}]", f"to.path={tmp_path}/lake", "source.max_records_per_batch=700"]
    run_once(spark, example("aggregate"), *sets)
    rows = DeltaTable(f"{tmp_path}/lake").to_pyarrow_table().to_pylist()
    found = {(r["carrier"], r["window_start"].strftime("%Y-%m-%dT%H:%M:%SZ")): r["flights"] for r in rows}
    assert len(found) == len(rows)
    assert found == Counter((f["carrier"], f["time_hour"]) for f in flights(COUNT))
    assert sum(r["delay_minutes"] or 0 for r in rows) == sum(f["dep_delay"] or 0 for f in flights(COUNT))


def test_dedup_lets_the_first_of_each_flight_through_as_it_came(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, sets: list[str]
) -> None:
    raw = topic(2, {"retention.ms": "-1"})
    twice = [record for record in records(300) for _ in range(2)]
    produce(penstock.bootstrap, raw, twice)
    sets += [f"source.topics=[{raw}]", f"to.brokers={penstock.bootstrap}", f"to.topic={raw}-clean"]
    sets += ["source.max_records_per_batch=250", "to.create.config={retention.ms: '-1'}", "within=365 days"]
    run_once(spark, example("dedup"), *sets)
    got = read_all(penstock.bootstrap, f"{raw}-clean", 300)
    once = list(records(300))
    assert Counter(m.value() for m in got) == Counter(r.value for r in once)
    assert {(m.key(), m.value()) for m in got} == {(r.key, r.value) for r in once}


@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_folders_by_time_take_the_place_of_no_column_of_the_result(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, sets: list[str], tmp_path: Path, format_: str
) -> None:
    name = topic(1, {"retention.ms": "-1"})
    produce(penstock.bootstrap, name, [Rec(b"{}", timestamp_ms=86_400_000)])
    sets += [f"source.topics=[{name}]", f"to={{format: {format_}, path: {tmp_path}/lake, time: {{by: day}}}}"]
    with pytest.raises(Exception, match='folders by day would replace the result\'s column "Date"'):
        run_once(spark, example("archive"), *sets, "transform.sql=SELECT 'monday' AS Date, timestamp FROM source")
    sets += ["to.time.column=date", f"checkpoint={tmp_path}/other"]
    run_once(spark, example("archive"), *sets, "transform.sql=SELECT to_date(timestamp) AS date, offset FROM source")
    assert [path.name for path in (tmp_path / "lake").glob("date*")] == ["date=1970-01-02"]


def test_dedup_counts_what_comes_too_late(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, sets: list[str]
) -> None:
    raw = topic(1, {"retention.ms": "-1"})
    sets += [f"source.topics=[{raw}]", f"to.brokers={penstock.bootstrap}", f"to.topic={raw}-clean"]
    sets += ["by={key: key}", "to.create.config={retention.ms: '-1'}"]
    now_ms, hour_ms = 1_700_000_000_000, 3_600_000
    produce(penstock.bootstrap, raw, [Rec(b"{}", b"new", 0, now_ms)])
    assert sum(done.observed.get("late", 0) for done in run_once(spark, example("dedup"), *sets)) == 0
    later = [Rec(b"{}", b"late", 0, now_ms - 2 * hour_ms), Rec(b"{}", b"newer", 0, now_ms + 1)]
    produce(penstock.bootstrap, raw, later)
    assert sum(done.observed.get("late", 0) for done in run_once(spark, example("dedup"), *sets)) == 1
    assert {m.key() for m in read_all(penstock.bootstrap, f"{raw}-clean", 2)} == {b"new", b"newer"}


def test_validate_parts_good_flights_from_bad_and_replay_brings_the_bad_back_once(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, sets: list[str]
) -> None:
    raw = topic(2)
    good = [json.dumps(f).encode() for f in flights(100)]
    bad = [b"{no json", b'{"carrier": "LONG", "dest": "IAH", "origin": "EWR", "distance": 5}']
    values = [*good[:50], *bad, *good[50:]]
    produce(penstock.bootstrap, raw, [Rec(v, headers=[("h", b"1")]) for v in values])
    names = [f"dead_letters.topic={raw}-dlq", f"to.topic={raw}-good", f"to.brokers={penstock.bootstrap}"]
    done = run_once(spark, example("validate"), f"source.topics=[{raw}]", *sets, *names)
    assert sum(d.observed["bad"] for d in done) == 2
    assert Counter(m.value() for m in read_all(penstock.bootstrap, f"{raw}-good", len(good))) == Counter(good)
    letters = read_all(penstock.bootstrap, f"{raw}-dlq", len(bad))
    assert sorted(m.value() for m in letters) == sorted(bad)
    headers = {m.value(): dict(m.headers()) for m in letters}
    assert headers[bad[0]]["penstock.dlq.reason"] == b"undecodable_value,has_carrier,goes_somewhere,has_distance"
    assert headers[bad[1]]["penstock.dlq.reason"] == b"has_carrier"
    assert headers[bad[1]]["penstock.dlq.topic"] == raw.encode()
    assert headers[bad[1]]["h"] == b"1"

    replay = [sets[0], f"checkpoint={tmp_path}/replay", f"source.topics=[{raw}-dlq]", "reasons=[has_distance]"]
    done = run_once(spark, example("dlq-replay"), *replay)
    assert {name: sum(d.observed[name] for d in done) for name in ("replayed", "not_chosen")} == {
        "replayed": 1,
        "not_chosen": 1,
    }
    assert not sum(d.rows for d in run_once(spark, example("dlq-replay"), *replay))
    came_back = read_all(penstock.bootstrap, raw, len(values) + 1)
    assert Counter(m.value() for m in came_back) == Counter([*values, bad[0]])
    assert sorted(m.headers() for m in came_back if m.value() == bad[0]) == [
        [("h", b"1")],
        [("h", b"1"), ("penstock.dlq.replays", b"1")],
    ]


def test_validate_into_a_table_writes_bad_records_once_though_the_good_ones_failed_the_batch(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, sets: list[str]
) -> None:
    raw = topic()
    good = [json.dumps(f).encode() for f in flights(50)]
    produce(penstock.bootstrap, raw, [*good, b"bad"])
    sets += [f"source.topics=[{raw}]", f"dead_letters.topic={raw}-dlq", f"to={{format: delta, path: {tmp_path}/lake}}"]
    sets += ["transform.sql=SELECT value.*, offset FROM source"]
    write_deltalake(tmp_path / "lake", pa.table({"other": [1]}))
    with pytest.raises(StreamingQueryException, match="the job has no column other"):
        run_once(spark, example("validate"), *sets)
    assert [m.value() for m in read_all(penstock.bootstrap, f"{raw}-dlq", 1)] == [b"bad"]
    shutil.rmtree(tmp_path / "lake")
    run_once(spark, example("validate"), *sets)
    assert [m.value() for m in read_all(penstock.bootstrap, f"{raw}-dlq", 1)] == [b"bad"]
    rows = DeltaTable(tmp_path / "lake").to_pyarrow_table()
    assert sorted(rows["offset"].to_pylist()) == list(range(50))
    assert Counter(rows["carrier"].to_pylist()) == Counter(f["carrier"] for f in flights(50))


def test_cdc_upsert_keeps_the_latest_row_of_each_plane_and_forgets_those_deleted(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, sets: list[str]
) -> None:
    planes = topic(2)
    latest: dict[str, int] = {}
    changes = []
    for number, flight in enumerate(flights(COUNT)):
        plane = flight["tailnum"]
        if plane is None:
            continue
        gone = number % 7 == 0
        latest.pop(plane, None)
        if not gone:
            latest[plane] = number
        changes.append(Rec(None if gone else json.dumps({"tailnum": plane, "seats": number}).encode(), plane.encode()))
    produce(penstock.bootstrap, planes, changes)
    sets += [f"source.topics=[{planes}]", f"to.path={tmp_path}/planes", "source.max_records_per_batch=700"]
    run_once(spark, example("cdc-upsert"), *sets)
    rows = DeltaTable(f"{tmp_path}/planes").to_pyarrow_table().to_pylist()
    assert {row["tailnum"]: row["seats"] for row in rows} == latest
    assert len(rows) == len(latest)


def test_backfill_writes_the_rows_of_files_once_with_their_times(
    spark: SparkSession, penstock: Broker, fresh_name: Callable[[], str], tmp_path: Path
) -> None:
    incoming = tmp_path / "incoming"
    incoming.mkdir()

    def put(name: str, part: Iterator[dict[str, object]] | list[dict[str, object]]) -> None:
        columns = ["carrier", "flight", "origin", "dest", "dep_delay", "time_hour"]
        lines = [",".join("NA" if f[c] is None else str(f[c]) for c in columns) for f in part]
        (incoming / name).write_text("\n".join([",".join(columns), *lines]) + "\n")

    rows = list(flights(400))
    topic = fresh_name()
    sets = [f"path={incoming}", f"checkpoint={tmp_path}/c", f"to.brokers={penstock.bootstrap}", f"to.topic={topic}"]
    put("a.csv", rows[:300])
    run_once(spark, example("backfill"), *sets)
    put("b.csv", rows[300:])
    run_once(spark, example("backfill"), *sets)
    got = read_all(penstock.bootstrap, topic, len(rows))
    keyed = Counter((json.loads(m.value())["flight"], m.key().decode()) for m in got)
    assert keyed == Counter((f["flight"], f["carrier"]) for f in rows)
    assert min(m.timestamp()[1] for m in got) == min(map(departure_ms, rows))
