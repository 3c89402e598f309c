"""Detection of invalid records, and the keys of valid ones, for each output path of valid records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.flights import flights
from penstock_spark_kit.jobs import read_all, run_once
from penstock_spark_kit.topics import MakeTopic, Rec, produce
from pyspark.sql import SparkSession

from penstock_spark.jobs.examples import example

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]
BAD = b'{"carrier": "LONG", "flight": 1, "dest": "IAH", "origin": "EWR", "distance": 5}'


@pytest.mark.parametrize(
    ("host", "options", "key"),
    [
        # With the same brokers, valid and invalid records share a transaction; with another name of the brokers, they
        # do not.
        ("127.0.0.1", ["to.key=value.carrier"], "carrier"),
        ("localhost", ["to.key=value.carrier"], "carrier"),
        ("127.0.0.1", ["to.key=value.flight"], "flight"),
        (
            "127.0.0.1",
            ["to.key=c", "transform.sql=SELECT value.carrier AS c, raw_value AS value FROM source"],
            "carrier",
        ),
        ("127.0.0.1", [], None),
        ("localhost", [], None),
    ],
    ids=["together", "apart", "a-number", "query", "own-key-together", "own-key-apart"],
)
def test_good_records_get_the_key_that_the_job_asks_for_and_bad_ones_keep_their_own(
    spark: SparkSession,
    penstock: Broker,
    topic: MakeTopic,
    host: str,
    options: list[str],
    key: str | None,
    tmp_path: Path,
) -> None:
    originals = [json.dumps(flight).encode() for flight in flights(40)]
    name = topic()
    produce(penstock.bootstrap, name, [Rec(value, b"as it \xff came") for value in (*originals, BAD)])
    sets = [f"source.brokers={penstock.bootstrap}", f"source.topics=[{name}]", f"dead_letters.topic={name}-dlq"]
    sets += [f"to.brokers={host}:{penstock.port}", f"to.topic={name}-good"]
    sets += [f"checkpoint={tmp_path}/checkpoint"]
    run_once(spark, example("validate"), *sets, *options)
    good = {m.value(): m.key() for m in read_all(penstock.bootstrap, f"{name}-good", len(originals))}
    wanted = {v: b"as it \xff came" if key is None else str(json.loads(v)[key]).encode() for v in originals}
    assert good == wanted
    assert [(m.value(), m.key()) for m in read_all(penstock.bootstrap, f"{name}-dlq", 1)] == [(BAD, b"as it \xff came")]


TEXT = """
kind: validate
name: texts
source: {{brokers: "{brokers}", topics: [{topic}]}}
transform: {{value: {{format: string}}}}
expectations: [{{name: is_short, sql: "value IS NULL OR length(value) < 10"}}]
dead_letters: {{topic: {topic}-dlq, create: {{partitions: 1}}}}
checkpoint: {home}/checkpoint
to: {{format: topic, brokers: "{brokers}", topic: {topic}-good, create: {{partitions: 1}}}}
"""


def test_a_value_that_is_no_text_is_a_dead_letter_with_its_bytes_and_a_tombstone_is_not(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [Rec(b"good"), Rec(b"\xff\xfe"), Rec(None, b"k"), Rec(b"much too long")])
    run_once(spark, TEXT.format(brokers=penstock.bootstrap, topic=name, home=tmp_path))
    assert [m.value() for m in read_all(penstock.bootstrap, f"{name}-good", 2)] == [b"good", None]
    letters = read_all(penstock.bootstrap, f"{name}-dlq", 2)
    reasons = {m.value(): dict(m.headers() or [])["penstock.dlq.reason"] for m in letters}
    assert reasons == {b"\xff\xfe": b"undecodable_value", b"much too long": b"is_short"}


def test_json_that_is_no_text_is_a_dead_letter_too(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic()
    good, bad = '{"name": "Köln"}'.encode(), b'{"name": "K\xf6ln"}'
    produce(penstock.bootstrap, name, [Rec(good), Rec(bad), Rec(None, b"k")])
    job = TEXT.format(brokers=penstock.bootstrap, topic=name, home=tmp_path)
    expected = "expectations=[{name: has_name, sql: value IS NULL OR value.name IS NOT NULL}]"
    run_once(spark, job, "transform.value={format: json, schema: name STRING}", expected)
    assert [m.value() for m in read_all(penstock.bootstrap, f"{name}-good", 2)] == [good, None]
    assert [m.value() for m in read_all(penstock.bootstrap, f"{name}-dlq", 1)] == [bad]
