"""Late files, and files that do not match the job: Spark's defaults skip both silently."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.jobs import read_all, run_once
from pyspark.sql import SparkSession

from penstock_spark.jobs.run.failures import cause, may_pass

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]
DAY_S = 86_400
JOB = """
kind: backfill
name: late-files
format: json
path: {home}/incoming
schema: n INT
sql: SELECT CAST(n AS STRING) AS value FROM source
checkpoint: {home}/checkpoint
to: {{format: topic, brokers: "{brokers}", topic: {topic}, create: {{partitions: 1}}}}
"""


def put(folder: Path, name: str, number: int, days_old: int) -> None:
    """Write a file with an old modification time, like a copy that preserves times."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'{{"n": {number}}}\n')
    then = time.time() - days_old * DAY_S
    os.utime(path, (then, then))


@pytest.mark.parametrize("days_old", [30, 15_000])
def test_a_file_that_comes_later_with_an_old_time_is_read_unless_the_job_says_otherwise(
    spark: SparkSession, penstock: Broker, fresh_name: Callable[[], str], tmp_path: Path, days_old: int
) -> None:
    topic = fresh_name()
    job = JOB.format(home=tmp_path, brokers=penstock.bootstrap, topic=topic)
    put(tmp_path / "incoming", "new.json", 1, 0)
    run_once(spark, job)
    put(tmp_path / "incoming", "old.json", 2, days_old)
    assert not run_once(spark, job, "read_options.maxfileage=7d"), "the job's own option counts, however it is spelled"
    run_once(spark, job)
    assert sorted(m.value() for m in read_all(penstock.bootstrap, topic, 2)) == [b"1", b"2"]
    assert not run_once(spark, job), "nothing is read twice"


@pytest.mark.parametrize(
    ("sets", "text", "told"),
    [
        (("format=csv", "read_options={header: true}"), "b,n\nx,1\n", "CSV header does not conform to the schema"),
        (("format=csv", "read_options={header: true}"), "n,b\n1,x\none,x\n", "Malformed records are detected"),
        (("format=csv",), "1,x\n2,x,3\n", "Malformed records are detected"),
        ((), '{"n": 1}\n{"n": "one"}\n', "Malformed records are detected"),
        ((), '{"n": 1}\nn: 2\n', "Malformed records are detected"),
    ],
)
def test_a_file_that_is_not_of_the_schema_fails_the_job_unless_it_says_otherwise(
    spark: SparkSession,
    penstock: Broker,
    fresh_name: Callable[[], str],
    tmp_path: Path,
    sets: tuple[str, ...],
    text: str,
    told: str,
) -> None:
    topic = fresh_name()
    job = JOB.format(home=tmp_path, brokers=penstock.bootstrap, topic=topic)
    schema = ("schema=n INT, b STRING", "sql=SELECT concat_ws('-', n, b) AS value FROM source")
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "some file").write_text(text)
    with pytest.raises(Exception, match="FAILED_READ_FILE") as raised:
        run_once(spark, job, *sets, *schema)
    assert not may_pass(raised.value)
    assert told in cause(raised.value)
    assert "some%20file" in cause(raised.value)
    assert not read_all(penstock.bootstrap, topic, 0)
    run_once(spark, job, *sets, *schema, "read_options.Mode=PERMISSIVE", "read_options.enforceschema=true")
    assert read_all(penstock.bootstrap, topic, 1)


CSV = """
kind: backfill
name: tables
format: csv
path: {home}/incoming
schema: id STRING, name STRING
read_options: {{header: true}}
sql: SELECT id AS key, name AS value FROM source
checkpoint: {home}/checkpoint
to: {{format: topic, brokers: "{brokers}", topic: {topic}, create: {{partitions: 1}}}}
"""
RFC_4180 = {
    "1": ('"the ""old"" one"', b'the "old" one'),
    "2": ('"""quoted"""', b'"quoted"'),
    "3": ("plain", b"plain"),
    "4": ('"first\nsecond, with a comma"', b"first\nsecond, with a comma"),
    "5": ("back\\slash", b"back\\slash"),
    "6": ('"back\\"', b"back\\"),
    "7": ('""', b""),
    "8": ("", None),
    "9": ("  blanks ", b"  blanks "),
    "10": ("NA", b"NA"),
    "11": ("#no comment", b"#no comment"),
}


def test_csv_is_read_as_rfc_4180_has_it_in_every_folder_below(
    spark: SparkSession, penstock: Broker, fresh_name: Callable[[], str], tmp_path: Path
) -> None:
    topic = fresh_name()
    incoming = tmp_path / "incoming"
    (incoming / "2024" / "01").mkdir(parents=True)
    lines = [f"{number},{written}" for number, (written, _) in RFC_4180.items()]
    (incoming / "rfc.csv").write_text("\n".join(["id,name", *lines]) + "\n")
    # As spreadsheets write it: a byte order mark, and CR LF line ends.
    (incoming / "2024" / "01" / "mark.csv").write_bytes('\ufeffid,name\r\n20,"Köln\r\nDeutz"\r\n21,x\r\n'.encode())
    run_once(spark, CSV.format(home=tmp_path, brokers=penstock.bootstrap, topic=topic))
    expected = {number.encode(): meant for number, (_, meant) in RFC_4180.items()}
    # Spark's parser converts the file's line ends to LF.
    expected |= {b"20": "Köln\nDeutz".encode(), b"21": b"x"}
    assert {m.key(): m.value() for m in read_all(penstock.bootstrap, topic, len(expected))} == expected


@pytest.mark.parametrize(
    ("data", "sets", "told", "cure", "meant"),
    [
        (
            "id,name\n1,Köln\n".encode("iso-8859-1"),
            (),
            "the file is not UTF-8; set read_options.encoding",
            "read_options.encoding=ISO-8859-1",
            {b"1": "Köln".encode()},
        ),
        (
            b"id,name\n1,x\n",
            ("read_options={}",),
            "a row equals the column names; set read_options.header",
            "read_options.header=true",
            {b"1": b"x"},
        ),
        (
            b"id,name\none,x\n",
            ("schema=id INT, name STRING", "sql=SELECT 'k' AS key, name AS value FROM source"),
            "Malformed records are detected",
            "schema=id STRING, name STRING",
            {b"k": b"x"},
        ),
    ],
    ids=["encoding", "header", "unused-column"],
)
def test_a_file_that_spark_would_read_as_something_else_fails_the_job_with_a_cure(
    spark: SparkSession,
    penstock: Broker,
    fresh_name: Callable[[], str],
    tmp_path: Path,
    data: bytes,
    sets: tuple[str, ...],
    told: str,
    cure: str,
    meant: dict[bytes, bytes],
) -> None:
    topic = fresh_name()
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "table.csv").write_bytes(data)
    job = CSV.format(home=tmp_path, brokers=penstock.bootstrap, topic=topic)
    with pytest.raises(Exception, match=r"table\.csv") as raised:
        run_once(spark, job, *sets)
    assert not may_pass(raised.value)
    assert told in cause(raised.value)
    assert "table.csv" in cause(raised.value)
    run_once(spark, job, *sets, cure)
    assert {m.key(): m.value() for m in read_all(penstock.bootstrap, topic, len(meant))} == meant


def test_folders_that_are_named_for_a_column_of_the_schema_give_its_values(
    spark: SparkSession, penstock: Broker, fresh_name: Callable[[], str], tmp_path: Path
) -> None:
    topic = fresh_name()
    for day in ("a", "b"):
        folder = tmp_path / "incoming" / f"name={day}"
        folder.mkdir(parents=True)
        (folder / "x.csv").write_text(f"id\n{day}{day}\n")
    run_once(spark, CSV.format(home=tmp_path, brokers=penstock.bootstrap, topic=topic))
    assert {m.key(): m.value() for m in read_all(penstock.bootstrap, topic, 2)} == {b"aa": b"a", b"bb": b"b"}
