"""Files that come late: Spark's own default passes over those that are a week older than the newest one seen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.jobs import read_all, run_once
from pyspark.sql import SparkSession

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
