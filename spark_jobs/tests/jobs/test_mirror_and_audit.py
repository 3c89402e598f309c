"""Mirror between two clusters with an interrupted link; audit of an archive with missing records."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from penstock_spark_kit.broker import SETTINGS, Broker
from penstock_spark_kit.flights import records
from penstock_spark_kit.jobs import build_job, read_all, run_once
from penstock_spark_kit.relay import Relay
from penstock_spark_kit.topics import MakeTopic, Rec, add_partitions, make_topic, produce
from pyspark.sql import SparkSession

from penstock.client import TopicPartition
from penstock_spark.jobs.examples import example
from penstock_spark.jobs.kinds import audit
from penstock_spark.jobs.launcher import start
from penstock_spark.jobs.run.figures import BatchDone, RunStatistics
from penstock_spark.jobs.run.stopping import StopSignal
from penstock_spark.jobs.run.supervisor import EndReason, JobSupervisor
from penstock_spark.jobs.spec.kinds import Audit, Mirror
from penstock_spark.jobs.spec.specs import RestartSpec
from penstock_spark.link.link import Link
from penstock_spark.model.connection import ConnectionOptions

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-mirrors"), pytest.mark.timeout(600)]
COUNT = 3_000
SHORT = "kafka.delivery.timeout.ms: 2000, kafka.request.timeout.ms: 2000"


@pytest.fixture
def east(tmp_path: Path) -> Iterator[tuple[Broker, Relay]]:
    """Start another cluster behind a link that can be cut."""
    relay = Relay()
    home = tmp_path / "east"
    home.mkdir()
    broker = Broker(home, (*SETTINGS, f"advertised.listeners=PLAINTEXT://127.0.0.1:{relay.port}"))
    relay.upstream = broker.port
    try:
        broker.start()
        yield broker, relay
    finally:
        broker.stop()
        relay.close()


class Show:
    """Cuts the link after the first batch, and restores it after a reported failure."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.failures: list[str] = []

    def started(self, attempt: int) -> None: ...

    def batch(self, done: BatchDone, figures: RunStatistics) -> None:
        if not self.failures:
            self._relay.cut()

    def idle(self, figures: RunStatistics) -> None: ...

    def failed(self, text: str, again_in_s: float) -> None:
        self.failures.append(text)
        self._relay.mend()

    def stopping(self) -> None: ...


def test_a_mirror_with_its_link_cut_in_the_middle_loses_and_doubles_nothing_and_groups_go_on_where_they_were(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, east: tuple[Broker, Relay], tmp_path: Path
) -> None:
    broker, relay = east
    name = topic(3, {"retention.ms": "-1"})
    placed = produce(penstock.bootstrap, name, records(COUNT))
    read = placed[: COUNT // 2]
    committed: dict[int, int] = defaultdict(int)
    for partition, offset in read:
        committed[partition] = max(committed[partition], offset + 1)
    here = Link.to(ConnectionOptions(penstock.bootstrap))
    here.commit("reports", {TopicPartition(name, p): offset for p, offset in committed.items()})

    sets = [f"source.brokers={penstock.bootstrap}", "source.pattern=null", f"source.topics=[{name}]"]
    sets += [f"to.brokers=127.0.0.1:{relay.port}", f"to.options={{{SHORT}}}", "source.max_records_per_batch=1000"]
    sets += [f"checkpoint={tmp_path}/checkpoint", "trigger={once: true}"]
    job = build_job(example("mirror"), *sets)
    assert isinstance(job, Mirror)
    show = Show(relay)
    figures = RunStatistics("mirror", "mirror", lambda: 0.0)
    supervisor = JobSupervisor(lambda: start(spark, job), RestartSpec(), figures, show, StopSignal(), 30.0)
    outcome = supervisor.run()
    assert outcome.ended is EndReason.FINISHED, outcome
    assert show.failures, "the link was cut in the middle"

    def seen(bootstrap: str, of: str) -> dict[int, list[tuple[object, ...]]]:
        found = defaultdict(list)
        for m in read_all(bootstrap, of, COUNT):
            found[m.partition()].append((m.key(), m.value(), m.timestamp(), m.headers()))
        return found

    assert seen(broker.bootstrap, f"west.{name}") == seen(penstock.bootstrap, name)

    there = Link.to(ConnectionOptions(broker.bootstrap))
    moved = there.committed("reports", [TopicPartition(f"west.{name}", p) for p in range(3)])
    unread = [
        m.value()
        for m in read_all(broker.bootstrap, f"west.{name}", COUNT)
        if m.offset() >= moved[TopicPartition(f"west.{name}", m.partition())][0]
    ]
    expected = [r.value for r, place in zip(records(COUNT), placed, strict=True) if place[1] >= committed[place[0]]]
    assert set(expected) <= set(unread)
    assert len(unread) - len(expected) <= 3


@pytest.mark.parametrize(
    ("chosen", "prefix"), [("topics=[{}]", "''"), ("pattern={}", "west."), ("assign={{{}: [0]}}", "''")]
)
def test_a_mirror_within_one_cluster_never_copies_its_copies(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path, chosen: str, prefix: str
) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [b"1"])
    sets = [f"source.brokers={penstock.bootstrap}", "source.pattern=null", f"source.{chosen.format(name)}"]
    sets += [f"prefix={prefix}", f"to.brokers=localhost:{penstock.port}", f"checkpoint={tmp_path}/checkpoint"]
    with pytest.raises(Exception, match="source and target are one cluster"):
        run_once(spark, example("mirror"), *sets)
    assert len(read_all(penstock.bootstrap, name, 1)) == 1
    if prefix == "west.":
        run_once(spark, example("mirror"), *sets, f"source.pattern=^{name}", f"checkpoint={tmp_path}/other")
        assert [m.value() for m in read_all(penstock.bootstrap, prefix + name, 1)] == [b"1"]


@pytest.fixture
def archived(spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path) -> Audit:
    """Return a job that audits a topic in a Parquet folder."""
    name = topic(2, {"retention.ms": "-1"})
    produce(penstock.bootstrap, name, records(1_000), transactional_id=f"{name}-writer")
    read_all(penstock.bootstrap, name, 1_000)
    sets = [f"source.brokers={penstock.bootstrap}", f"source.topics=[{name}]"]
    run_once(
        spark,
        example("archive"),
        *sets,
        f"checkpoint={tmp_path}/checkpoint",
        "to={format: parquet, path: %s, partition_by: [partition]}" % (tmp_path / "lake"),
    )
    produce(penstock.bootstrap, name, [Rec(b"{}", partition=0)])
    sets += [f"archive={{format: parquet, path: {tmp_path}/lake}}", f"until_checkpoint={tmp_path}/checkpoint"]
    job = build_job(example("audit"), *sets, f"report={tmp_path}/report.json")
    assert isinstance(job, Audit)
    return job


def test_an_audit_finds_nothing_then_what_was_taken_and_what_was_doubled(
    spark: SparkSession, archived: Audit, tmp_path: Path
) -> None:
    report = audit.run(spark, archived)
    assert report.is_clean
    assert sum(c.records for c in report.counts) == sum(c.rows for c in report.counts) == 1_000
    assert report.counts[0].begin == "2013-01-01T00:00:00Z"

    (path, *_) = ds.dataset(tmp_path / "lake" / "partition=0", format="parquet").files
    table = pq.read_table(path, partitioning=None)
    pq.write_table(pa.concat_tables([table.slice(3), table.slice(10, 2)]), path)
    report = audit.run(spark, archived)
    (first, second) = report.partitions
    offsets = table["offset"].to_pylist()
    assert (first.missing, first.duplicates, first.unknown) == (3, 2, 0)
    assert (first.first_missing, first.first_duplicate) == (offsets[0], offsets[10])
    assert (second.missing, second.duplicates) == (0, 0)
    assert not report.is_clean
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["clean"] is False
    assert written["partitions"][0]["missing"] == 3


def test_an_archive_without_offsets_cannot_be_audited_and_says_which_column_lacks(
    spark: SparkSession, archived: Audit
) -> None:
    other = msgspec.structs.replace(archived, columns=msgspec.structs.replace(archived.columns, offset="position"))
    with pytest.raises(Exception, match="the archive has no column position"):
        audit.run(spark, other)


@pytest.fixture
def two_topics(spark: SparkSession, penstock: Broker, tmp_path: Path) -> tuple[list[str], list[str]]:
    """Archive topics with a folder for each. Return their number-like names, and the options of an audit."""
    names = [f"0{first}{uuid.uuid4().int % 1_000_000:06}" for first in (0, 1)]
    for name in names:
        make_topic(penstock.bootstrap, name)
        produce(penstock.bootstrap, name, [b"1", b"2"])
    brokers = f"source.brokers={penstock.bootstrap}"
    lake = f"{{format: parquet, path: {tmp_path}/lake, partition_by: [topic]}}"
    sets = [f"source.topics=['{names[0]}', '{names[1]}']", f"checkpoint={tmp_path}/checkpoint", f"to={lake}"]
    run_once(spark, example("archive"), brokers, "transform={}", *sets)
    told = [brokers, sets[0], f"archive={lake}", f"until_checkpoint={tmp_path}/checkpoint", "report="]
    return names, told


def test_an_audit_takes_the_names_of_folders_as_they_are_written(
    spark: SparkSession, two_topics: tuple[list[str], list[str]]
) -> None:
    names, sets = two_topics
    report = audit.run(spark, audited(*sets))
    assert [(f.topic, f.records, f.rows) for f in report.partitions] == [(name, 2, 2) for name in sorted(names)]
    assert report.is_clean


def test_an_audit_up_to_a_checkpoint_looks_at_those_partitions_that_its_job_has_read(
    spark: SparkSession, penstock: Broker, two_topics: tuple[list[str], list[str]]
) -> None:
    (grown, other), sets = two_topics
    add_partitions(penstock.bootstrap, grown, 2)
    produce(penstock.bootstrap, grown, [Rec(b"new", partition=1), Rec(b"new", partition=0)])
    for chosen in (f"source.topics=['{grown}']", f"source.assign={{{grown}: [0]}}"):
        whole = ["source.topics=[]"] if "assign" in chosen else []
        report = audit.run(spark, audited(*sets, *whole, chosen))
        assert [f.records for f in report.partitions if f.topic == grown] == [2]
        assert report.is_clean
    assert audit.run(spark, audited(*sets)).is_clean
    with pytest.raises(Exception, match=f"has read topics .*{other}.* none of which the audit's source selects"):
        audit.run(spark, audited(*sets, "source.topics=[elsewhere]"))


def audited(*sets: str) -> Audit:
    found = build_job(example("audit"), *sets)
    assert isinstance(found, Audit)
    return found
