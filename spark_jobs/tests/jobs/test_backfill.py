"""Files that come late, and files that are not what the job says: Spark's own defaults pass over both in silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.jobs import read_all, run_once
from pyspark.sql import SparkSession

from penstock_spark.jobs.failures import cause, may_pass

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]
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
    """A file as a copy that keeps times leaves it."""
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
