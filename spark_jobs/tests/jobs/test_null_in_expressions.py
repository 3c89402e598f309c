"""NULL in the expressions of each kind of job: nothing is silently dropped or kept because of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.jobs import read_all, run_once
from penstock_spark_kit.topics import MakeTopic, Rec, produce
from pyspark.sql import SparkSession

from penstock_spark.jobs.examples import example
from penstock_spark.jobs.kinds.audit import SCHEMA, findings, join
from penstock_spark.jobs.spec import conditions

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]


def test_records_without_a_part_of_what_identifies_them_are_no_repetitions_of_each_other(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    full = b'{"carrier": "UA", "flight": 1, "origin": "EWR", "time_hour": "2013-01-01T10:00:00Z"}'
    partial = b'{"carrier": "UA", "flight": 1, "time_hour": "2013-01-01T10:00:00Z"}'
    values = [full, partial, partial, b"{}", full, b"{}", None, None]
    produce(penstock.bootstrap, name, [Rec(value, b"k") for value in values])
    sets = [f"source.brokers={penstock.bootstrap}", f"source.topics=[{name}]", f"checkpoint={tmp_path}/c"]
    sets += [f"to.brokers={penstock.bootstrap}", f"to.topic={name}-clean"]
    run_once(spark, example("dedup"), *sets)
    got = Counter(m.value() for m in read_all(penstock.bootstrap, f"{name}-clean", 7))
    assert got == Counter({full: 1, partial: 2, b"{}": 2, None: 2})


def test_rows_without_a_time_are_counted_by_an_aggregation(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    produce(penstock.bootstrap, name, [b'{"carrier": "UA"}', b'{"carrier": "AA", "time_hour": "2013-01-01T10:00:00Z"}'])
    sets = [f"source.brokers={penstock.bootstrap}", f"source.topics=[{name}]", f"checkpoint={tmp_path}/c"]
    done = run_once(spark, example("aggregate"), *sets, "to={format: console}")
    assert sum(d.observed.get("without_time", 0) for d in done) == 1


def test_a_row_of_an_archive_that_names_no_record_is_unknown_to_an_audit(spark: SparkSession) -> None:
    records = spark.sql("SELECT 't' topic, 0 partition, id offset, TIMESTAMP '2024-01-01' timestamp FROM range(2)")
    of_no_record = [("t", 0, None, None), (None, 0, 1, None)]
    rows = spark.createDataFrame([("t", 0, 0, None), ("t", 0, 1, None), *of_no_record], SCHEMA)
    found = {f.topic: f for f in findings(join(records, rows))}
    assert (found["t"].missing, found["t"].unknown, found["t"].before, found["t"].beyond) == (0, 1, 0, 0)
    assert sum(f.unknown for f in found.values()) == 2


def test_a_condition_that_is_null_does_not_hold(spark: SparkSession) -> None:
    rows = spark.sql("SELECT * FROM VALUES (1, 'd'), (2, 'u'), (3, NULL) AS changes(id, op)")
    held = rows.select("id", conditions.holds("op = 'd'").alias("deletes"), conditions.holds(None).alias("never"))
    assert {tuple(row) for row in held.collect()} == {(1, True, False), (2, False, False), (3, False, False)}
