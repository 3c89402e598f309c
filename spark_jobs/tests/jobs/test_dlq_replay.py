"""A dead letter that cannot be replayed is skipped, counted and named; it does not block other letters."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.jobs import read_all, run_once
from penstock_spark_kit.topics import MakeTopic, Rec, produce
from pyspark.sql import SparkSession

from penstock_spark.cli.common import SparkExitCode
from penstock_spark.cli.run import report_outcome
from penstock_spark.jobs.run.figures import BatchDone, RunStatistics
from penstock_spark.jobs.run.supervisor import EndReason, JobOutcome

pytestmark = pytest.mark.integration

JOB = """
kind: dlq-replay
name: replays
source: {{brokers: "{brokers}", topics: [{topic}], starting: earliest}}
checkpoint: {home}/checkpoint
"""
Headers = list[tuple[str, bytes | None]]
BATCH_BYTES = 61
"""Size of a batch header, message format 2."""


def of(topic: str | bytes | None, partition: bytes = b"0", *more: tuple[str, bytes | None]) -> Headers:
    """Return the headers of a dead letter."""
    name = topic.encode() if isinstance(topic, str) else topic
    told: Headers = [("penstock.dlq.reason", b"r"), ("penstock.dlq.topic", name), ("penstock.dlq.partition", partition)]
    return [*told, ("penstock.dlq.offset", b"7"), *more]


def replayed_bytes(value: bytes) -> int:
    """Return the size of a batch with one replayed letter without a key: penstock.dlq.replays is its only header."""
    header = 1 + len("penstock.dlq.replays") + 1 + len("1")
    body = 1 + 1 + 1 + 1 + 2 + len(value) + 1 + header
    return BATCH_BYTES + 2 + body


@pytest.mark.xdist_group("spark-jobs")
@pytest.mark.timeout(600)
def test_letters_that_cannot_be_replayed_are_skipped_and_named_and_the_others_are_replayed(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    letters, here, compacted = topic(1), topic(2), topic(1, {"cleanup.policy": "compact"})
    most = b"x" * 900
    small = topic(1, {"max.message.bytes": str(replayed_bytes(most))})
    found = [
        Rec(b"first", headers=of(here)),
        Rec(b"gone", headers=of(f"{here}-gone")),
        Rec(b"no headers"),
        Rec(b"not UTF-8", headers=of(b"\xff\xfe")),
        Rec(b"no value", headers=[("penstock.dlq.topic", None), ("penstock.dlq.reason", None)]),
        Rec(b"no name", headers=of("a topic")),
        Rec(b"dots", headers=of("..")),
        Rec(b"no key", headers=of(compacted)),
        Rec(most, headers=of(small)),
        Rec(most + b"x", headers=of(small)),
        Rec(b"partition 2", headers=of(here, b"2")),
        Rec(b"odd header", headers=of(here, b"1", ("own", None), ("penstock.dlq.reason", b"\xff"))),
        Rec(b"key", key=b"k", headers=of(compacted)),
        Rec(b"often", headers=of(here, b"0", ("penstock.dlq.replays", b"3"))),
        Rec(b"last", headers=of(here, b"1")),
    ]
    produce(penstock.bootstrap, letters, found)
    job = JOB.format(brokers=penstock.bootstrap, topic=letters, home=tmp_path)
    with caplog.at_level(logging.WARNING):
        done = run_once(spark, job, "same_partition=true", "max_replays=3")
    counts = {name: sum(d.observed.get(name, 0) for d in done) for d in done for name in d.observed}
    assert counts == {
        "replayed": 5, "not_chosen": 0, "too_often": 1, "no_origin": 5, "no_topic": 1, "no_partition": 1, "no_key": 1,
        "too_large": 1, "skipped": 9,
    }  # fmt: skip
    assert [(m.partition(), m.value()) for m in read_all(penstock.bootstrap, here, 3)] == [
        (0, b"first"),
        (1, b"odd header"),
        (1, b"last"),
    ]
    assert [m.value() for m in read_all(penstock.bootstrap, small, 1)] == [most]
    assert [m.value() for m in read_all(penstock.bootstrap, compacted, 1)] == [b"key"]
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("skipped: ")]
    assert [line.removeprefix(f"skipped: {letters}-0 offset ") for line in told] == [
        f'1: topic "{here}-gone" does not exist',
        '2: no header "penstock.dlq.topic" with a value in UTF-8',
        '3: no header "penstock.dlq.topic" with a value in UTF-8',
        '4: no header "penstock.dlq.topic" with a value in UTF-8',
        '5: "a topic" is not a valid topic name',
        '6: ".." is not a valid topic name',
        f'7: topic "{compacted}" is compacted and rejects records without a key',
        f'9: topic "{small}" accepts at most {replayed_bytes(most)} bytes (max.message.bytes)',
        f'10: topic "{here}" has no partition 2',
    ]
    assert not run_once(spark, job, "same_partition=true"), "a letter is looked at once"


@pytest.mark.parametrize(
    ("how", "skipped", "code"),
    [
        (EndReason.FINISHED, 0, SparkExitCode.OK),
        (EndReason.FINISHED, 2, SparkExitCode.SKIPPED),
        (EndReason.STOPPED, 2, SparkExitCode.SKIPPED),
    ],
)
def test_the_exit_code_and_the_last_line_tell_of_letters_that_were_skipped(
    how: EndReason, skipped: int, code: SparkExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = RunStatistics("replays", "dlq-replay", lambda: 0.0)
    figures.batch_done(BatchDone(0, 5, 10, {"replayed": 3, "skipped": skipped}))
    assert report_outcome(JobOutcome(how), figures) is code
    assert f"{how.value}: 5 rows in 1 batches, replayed 3, skipped {skipped}\n" in capsys.readouterr().err
