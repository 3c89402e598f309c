"""Spark on Apache Kafka's secured listeners, with the options of Spark's Kafka connector: it reads and writes as on a
plain listener, reports wrong credentials, and stores no password."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from penstock_java.secure_kafka import PASSWORD, USER, SecureKafka
from penstock_spark_kit.batches_written import values_of, wanted
from penstock_spark_kit.sessions import make_session
from penstock_spark_kit.topics import eventually, make_topic, produce
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock_spark import track
from penstock_spark.jobs.run.failures import cause, may_pass

pytestmark = [pytest.mark.xdist_group("secure-kafka"), pytest.mark.timeout(600), pytest.mark.flaky(reruns=2)]

LIMIT_S = 300
PARTITIONS = 2
KEY_PASSWORD, WRONG = "the-word-of-the-key", "the-wrong-word"
TELLTALES = (PASSWORD.partition("'")[2], KEY_PASSWORD, WRONG)
"""Texts that reveal a password, however a log or a JSON text escapes its apostrophe."""
WAYS = ("tls-and-scram", "tls-and-plain", "client-certificate")
Options = dict[str, str]
Fresh = Callable[[int], str]


@contextmanager
def standard_error_in(file: Path) -> Iterator[None]:
    """Redirect the standard error of processes started meanwhile, for their lifetime."""
    before = os.dup(2)
    with file.open("wb") as target:
        os.dup2(target.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory for all output of Spark: its complete log, events, checkpoints, results."""
    return tmp_path_factory.mktemp("left-behind")


@pytest.fixture(scope="module")
def spark(left_behind: Path) -> Iterator[SparkSession]:
    events = left_behind / "events"
    events.mkdir()
    with standard_error_in(left_behind / "spark.log"):
        session = make_session(
            left_behind,
            {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": events.as_uri(),
                "spark.eventLog.compress": "false",
            },
        )
    session.sparkContext.setLogLevel("DEBUG")
    track(session)
    yield session
    session.stop()


@pytest.fixture
def fresh(kafka: SecureKafka, request: pytest.FixtureRequest) -> Fresh:
    """`fresh(count)` creates a topic with that many records, whose values are numbers."""
    made = 0

    def make(count: int) -> str:
        nonlocal made
        made += 1
        name = "".join(c if c.isalnum() else "-" for c in f"{request.node.name}-{made}")
        make_topic(kafka.address("PLAIN"), name, PARTITIONS)
        produce(kafka.address("PLAIN"), name, (b"%d" % n for n in range(count)))
        return name

    return make


def options(kafka: SecureKafka, way: str, password: str = PASSWORD) -> Options:
    """Return connection options with the names of Spark's Kafka connector."""
    tls = {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(kafka.authority.file),
    }
    if way == "client-certificate":
        mine = kafka.authority.sign("spark", password=KEY_PASSWORD)
        return {
            **tls,
            "kafka.bootstrap.servers": kafka.address("MUTUAL"),
            "kafka.security.protocol": "SSL",
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.location": str(mine.together),
            "kafka.ssl.key.password": KEY_PASSWORD,
        }
    module, mechanism = {
        "tls-and-scram": ("scram.ScramLoginModule", "SCRAM-SHA-512"),
        "tls-and-plain": ("plain.PlainLoginModule", "PLAIN"),
    }[way]
    return {
        **tls,
        "kafka.bootstrap.servers": kafka.address("BOTH"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        f'username="{USER}" password="{password}";',
    }


def read_batch(spark: SparkSession, topic: str, reach: Options) -> list[bytes]:
    rows = spark.read.format("penstock").options(**reach).option("subscribe", topic).load()
    return sorted(bytes(row.value) for row in rows.select("value").collect())


def read_stream(spark: SparkSession, topic: str, reach: Options, home: Path) -> list[bytes]:
    """Read the records that are new since the last call; return these and all earlier ones."""
    rows = spark.readStream.format("penstock").options(**reach).option("subscribe", topic)
    rows = rows.option("startingOffsets", "earliest").option("penstock.progress.group", f"lag-of-{topic}")
    writing = rows.load().select("value").writeStream.format("parquet").trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(home / "checkpoint")).start(str(home / "out"))
    assert query.awaitTermination(LIMIT_S), "the query did not end"
    return sorted(bytes(row.value) for row in spark.read.parquet(str(home / "out")).collect())


def write_batch(spark: SparkSession, count: int, topic: str, reach: Options) -> None:
    rows = spark.range(0, count, 1, 3).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("penstock").mode("append").options(**reach).option("topic", topic).save()


def write_stream(spark: SparkSession, source: str, topic: str, reach: Options, home: Path) -> None:
    """Copy a topic to another, exactly once, up to the current end."""
    rows = spark.readStream.format("penstock").options(**reach).option("subscribe", source)
    rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "400")
    writing = rows.load().select("value").writeStream.format("penstock").options(**reach).option("topic", topic)
    writing = writing.option("penstock.delivery", "exactly-once").option("checkpointLocation", str(home / "checkpoint"))
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S), "the query did not end"


def committed(kafka: SecureKafka, group: str, topic: str) -> int:
    """Return the number of records that a group has committed; 0 while no broker answers for the group."""
    consumer = Consumer({"bootstrap.servers": kafka.address("PLAIN"), "group.id": group})
    try:
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return sum(max(one.offset, 0) for one in consumer.committed(places, LIMIT_S))
    except KafkaException:
        return 0
    finally:
        consumer.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_is_read(spark: SparkSession, kafka: SecureKafka, fresh: Fresh, way: str) -> None:
    assert read_batch(spark, fresh(2_000), options(kafka, way)) == wanted(2_000)


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_is_read_and_goes_on_from_its_checkpoint(
    spark: SparkSession, kafka: SecureKafka, fresh: Fresh, left_behind: Path, way: str
) -> None:
    topic = fresh(1_000)
    assert read_stream(spark, topic, options(kafka, way), left_behind / topic) == wanted(1_000)
    produce(kafka.address("PLAIN"), topic, (b"%d" % n for n in range(1_000, 1_500)))
    assert read_stream(spark, topic, options(kafka, way), left_behind / topic) == wanted(1_500)
    eventually("the lag is committed", lambda: committed(kafka, f"lag-of-{topic}", topic) == 1_500)


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_is_written_at_least_once(spark: SparkSession, kafka: SecureKafka, fresh: Fresh, way: str) -> None:
    topic = fresh(0)
    write_batch(spark, 2_000, topic, options(kafka, way))
    assert values_of(kafka.address("PLAIN"), topic) == wanted(2_000)


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_is_written_exactly_once(
    spark: SparkSession, kafka: SecureKafka, fresh: Fresh, left_behind: Path, way: str
) -> None:
    source, target = fresh(1_000), fresh(0)
    write_stream(spark, source, target, options(kafka, way), left_behind / target)
    last = max(int(path.name) for path in (left_behind / target / "checkpoint" / "commits").glob("[0-9]*"))
    assert last > 0, "one batch alone"
    # The state after the driver is killed between the end of the transaction and its entry in the checkpoint.
    (left_behind / target / "checkpoint" / "commits" / f"{last}").unlink()
    (left_behind / target / "checkpoint" / "commits" / f".{last}.crc").unlink(missing_ok=True)
    produce(kafka.address("PLAIN"), source, (b"%d" % n for n in range(1_000, 1_500)))
    write_stream(spark, source, target, options(kafka, way), left_behind / target)
    assert values_of(kafka.address("PLAIN"), target) == wanted(1_500)


@pytest.mark.parametrize("does", ["read_batch", "read_stream", "write_batch", "write_stream"])
def test_a_wrong_password_is_told_and_not_printed(
    spark: SparkSession, kafka: SecureKafka, fresh: Fresh, left_behind: Path, does: str
) -> None:
    source, target = fresh(10), fresh(0)
    wrong = options(kafka, "tls-and-scram", WRONG)
    calls: dict[str, Callable[[], object]] = {
        "read_batch": lambda: read_batch(spark, source, wrong),
        "read_stream": lambda: read_stream(spark, source, wrong, left_behind / target),
        "write_batch": lambda: write_batch(spark, 10, target, wrong),
        "write_stream": lambda: write_stream(spark, source, target, wrong, left_behind / target),
    }
    with pytest.raises(PySparkException) as raised:
        calls[does]()
    assert f'SCRAM-SHA-512 rejected user "{USER}"' in cause(raised.value)
    assert "check name and password" in cause(raised.value)
    assert not may_pass(raised.value), "a job would try again"
    assert WRONG not in str(raised.value)
    assert not any(values_of(kafka.address("PLAIN"), target))


def test_the_options_that_hold_passwords_show_in_no_plan(
    spark: SparkSession, kafka: SecureKafka, fresh: Fresh, left_behind: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = fresh(100), fresh(0)
    for way in ("tls-and-scram", "client-certificate"):
        reach, home = options(kafka, way), left_behind / f"{target}-{way}"
        rows = spark.read.format("penstock").options(**reach).option("subscribe", source).load()
        rows.explain("formatted")
        rows.explain(extended=True)
        stream = spark.readStream.format("penstock").options(**reach).option("subscribe", source)
        stream.option("startingOffsets", "earliest").load().explain(extended=True)
        writing = stream.option("startingOffsets", "earliest").load().select("value").writeStream.format("penstock")
        writing = writing.options(**reach).option("topic", target).option("penstock.delivery", "exactly-once")
        query = writing.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(LIMIT_S), "the query did not end"
        query.explain(extended=True)
        for progress in query.recentProgress:
            print(progress.json)
    shown = capfd.readouterr().out
    assert "penstock" in shown, "nothing was shown"
    assert "numInputRows" in shown
    assert not [word for word in TELLTALES if word in shown]


def test_no_password_is_left_in_logs_events_and_checkpoints(
    spark: SparkSession, kafka: SecureKafka, fresh: Fresh, left_behind: Path
) -> None:
    """No password is in the command lines of Spark's processes and of the transaction service either."""
    source = fresh(500)
    for way in WAYS:
        target = fresh(0)
        read_batch(spark, source, options(kafka, way))
        write_batch(spark, 10, target, options(kafka, way))
        write_stream(spark, source, target, options(kafka, way), left_behind / target)
    with pytest.raises(PySparkException):
        read_batch(spark, source, options(kafka, "tls-and-scram", WRONG))
    secrets = [word.encode() for word in TELLTALES]
    held = [path for path in left_behind.rglob("*") if path.is_file()]
    for name in ("spark.log", "events", "commits"):
        assert any(name in path.parts and path.stat().st_size for path in held), (
            f"no {name}: there is nothing to look at"
        )
    assert source.encode() in (left_behind / "spark.log").read_bytes(), "the log does not tell what was read"
    leaks = [path for path in held for secret in secrets if secret in path.read_bytes()]
    assert not leaks
    lines = [line for path in Path("/proc").glob("[0-9]*/cmdline") if (line := text_of(path))]
    assert any(b"penstock_spark.sink.service_main" in line for line in lines), "there is no transaction service"
    assert not [line for line in lines for word in (PASSWORD, KEY_PASSWORD, WRONG) if word.encode() in line]


JOB = """\
kind: archive
name: {topic}
source:
  brokers: {brokers}
  topics: [{topic}]
  options:
    kafka.security.protocol: SASL_SSL
    kafka.ssl.truststore.location: {authority}
    kafka.sasl.mechanism: SCRAM-SHA-512
    kafka.sasl.jaas.config: >-
      org.apache.kafka.common.security.scram.ScramLoginModule required
      username="${{file:{home}/kafka.properties:user}}" password="${{env:KAFKA_PASSWORD}}";
checkpoint: {home}/left/checkpoint
to: {{format: parquet, path: {home}/left/out}}
spark: {{spark.master: "local[2]", spark.driver.memory: 1g, spark.local.dir: {home}/local}}
"""


def test_a_job_has_its_password_from_the_environment_and_leaves_it_nowhere(
    kafka: SecureKafka, fresh: Fresh, tmp_path: Path
) -> None:
    topic, job = fresh(500), tmp_path / "job.yaml"
    (tmp_path / "kafka.properties").write_text(f"user={USER}\n")
    job.write_text(
        JOB.format(topic=topic, brokers=kafka.address("BOTH"), authority=kafka.authority.file, home=tmp_path)
    )
    command = [sys.executable, "-m", "penstock_spark.cli", "run", str(job), "--once"]
    environment = {**os.environ, "KAFKA_PASSWORD": PASSWORD}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    assert not done.returncode, done.stderr.decode(errors="replace")[-4000:]
    assert sorted(ds.dataset(tmp_path / "left" / "out").to_table()["value"].to_pylist()) == wanted(500)
    left = [path.read_bytes() for path in (tmp_path / "left").rglob("*") if path.is_file()]
    assert len(left) > 2
    assert not [text for text in (*left, done.stdout, done.stderr) if TELLTALES[0].encode() in text]


def text_of(path: Path) -> bytes:
    try:
        return path.read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""
