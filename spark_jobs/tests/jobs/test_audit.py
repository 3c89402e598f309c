"""An audit waits while brokers are unavailable; a permanent error ends it at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.jobs import build_job
from penstock_spark_kit.topics import MakeTopic, Rec, make_topic, produce
from pyspark.sql import SparkSession

from penstock_spark.jobs.examples import example
from penstock_spark.jobs.kinds import audit
from penstock_spark.jobs.run.stopping import StopSignal
from penstock_spark.jobs.spec.kinds import Audit
from penstock_spark.model.errors import InvalidOption

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]
KEPT = "kept"


def job(broker: Broker, home: Path, *sets: str, topic: str = KEPT) -> Audit:
    """Return an audit of a topic and an empty folder."""
    (home / "lake").mkdir()
    own = [f"source.brokers={broker.bootstrap}", f"source.topics=[{topic}]", f"report={home}/report.json"]
    own += [f"archive={{format: parquet, path: {home}/lake}}", "until_checkpoint=null", "restart.backoff=1 ms"]
    found = build_job(example("audit"), *own, "source.options={kafkaConsumer.pollTimeoutMs: 2000}", *sets)
    assert isinstance(found, Audit)
    return found


@pytest.fixture
def away(own_broker: Broker) -> Broker:
    """Stop a broker that has three records in `KEPT`."""
    make_topic(own_broker.bootstrap, KEPT, 1)
    produce(own_broker.bootstrap, KEPT, [Rec(b"%d" % n) for n in range(3)])
    own_broker.kill()
    return own_broker


class Told:
    """Records reports, and calls `then` at each failure."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then = then
        self.failures: list[str] = []

    def __call__(self, text: str, again_in_s: float) -> None:
        self.failures.append(text)
        self._then()


def test_an_audit_goes_on_when_brokers_come_back(spark: SparkSession, away: Broker, tmp_path: Path) -> None:
    told = Told(lambda: away.start() if away.process is None else None)
    report = audit.run(spark, job(away, tmp_path), on_failure=told)
    assert told.failures
    assert [(f.records, f.missing) for f in report.partitions] == [(3, 3)]
    assert json.loads((tmp_path / "report.json").read_text())["clean"] is False


def test_an_audit_gives_up_when_brokers_stay_away_and_leaves_no_report(
    spark: SparkSession, away: Broker, tmp_path: Path
) -> None:
    told = Told()
    with pytest.raises(audit.AuditRetriesExhausted, match=r"gave up after 2000 ms.* \(2 times in a row\)"):
        audit.run(spark, job(away, tmp_path, "restart.attempts=1"), on_failure=told)
    assert len(told.failures) == 1
    assert not (tmp_path / "report.json").exists()


def test_an_audit_that_is_stopped_while_brokers_are_away_has_no_verdict(
    spark: SparkSession, away: Broker, tmp_path: Path
) -> None:
    stop = StopSignal()
    with pytest.raises(audit.AuditRetriesExhausted, match="stopped before the next attempt"):
        audit.run(spark, job(away, tmp_path, "restart.backoff=60 s"), stop, Told(stop.set))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("archive={format: parquet, path: /nowhere/lake}", 'archive.path: "/nowhere/lake" does not exist'),
        ("archive={format: delta, path: /nowhere/table}", 'archive.path: "/nowhere/table" does not exist'),
        ("until_checkpoint=/nowhere/checkpoint", 'until_checkpoint: "/nowhere/checkpoint" has no finished batch'),
    ],
)
def test_what_lasts_is_not_tried_again(
    spark: SparkSession, penstock: Broker, tmp_path: Path, option: str, said: str
) -> None:
    told = Told()
    with pytest.raises(InvalidOption, match=said):
        audit.run(spark, job(penstock, tmp_path, option), on_failure=told)
    assert not told.failures


def test_an_archive_that_lacks_a_column_is_not_tried_again(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = job(penstock, tmp_path, topic=topic())
    pq.write_table(pa.table({"offset": [1]}), tmp_path / "lake" / "part.parquet")
    told = Told()
    with pytest.raises(Exception, match="the archive has no column topic, partition, timestamp"):
        audit.run(spark, wanted, on_failure=told)
    assert not told.failures
