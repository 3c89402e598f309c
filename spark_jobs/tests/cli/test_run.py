"""`penstock-spark run` as a process: it archives, exports metrics and a consumer group, and stops on a signal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pyarrow.dataset as ds
import pytest
from node_kit import port_of, reserved_port
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.flights import flights, records
from penstock_spark_kit.topics import produce

from penstock.client import TopicPartition
from penstock_spark.cli.common import SparkExitCode
from penstock_spark.jobs.examples import example
from penstock_spark.link.link import Link
from penstock_spark.model.connection import ConnectionOptions

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]
COUNT = 500
LIMIT_S = 300


@pytest.fixture
def job(penstock: Broker, topic: Callable[..., str], tmp_path: Path) -> tuple[Path, str]:
    """Write a job file and fill the topic that it archives."""
    name = topic(2, {"retention.ms": "-1"})
    text = example("archive").replace("localhost:9092", penstock.bootstrap).replace("[flights]", f"[{name}]")
    text = text.replace("state/", f"{tmp_path}/state/").replace("lake/", f"{tmp_path}/lake/")
    text = text.replace("10 seconds", "200 ms")
    text = re.sub("format: delta.*", "format: parquet", text)
    text += f"spark: {{spark.driver.memory: 1g, spark.local.dir: {tmp_path}/local, spark.master: 'local[2]'}}\n"
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path, name


def run(*words: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock_spark.cli", "run", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def killed() -> Iterator[list[subprocess.Popen[str]]]:
    """Kill all processes in this list, with their children, at the end of the test."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@pytest.fixture
def metrics_port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield port_of(reserved)


def test_a_run_archives_until_sigterm_and_shows_metrics_and_lag(
    penstock: Broker, job: tuple[Path, str], tmp_path: Path, killed: list[subprocess.Popen[str]], metrics_port: int
) -> None:
    path, topic = job
    produce(penstock.bootstrap, topic, records(COUNT))
    process = run(str(path), "--metrics-port", str(metrics_port), folder=tmp_path)
    killed.append(process)
    lines: list[str] = []
    batch = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if " batch 0 " in line:
                batch.set()
        batch.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert batch.wait(LIMIT_S), "".join(lines)
    assert process.poll() is None, "".join(lines)
    text = urlopen(f"http://127.0.0.1:{metrics_port}/metrics").read().decode()
    assert f'penstock_spark_rows_total{{job="flights-archive",kind="archive"}} {COUNT}.0' in text
    link = Link.to(ConnectionOptions(penstock.bootstrap))
    partitions = [TopicPartition(topic, p) for p in range(2)]
    deadline = time.monotonic() + LIMIT_S
    while sum(offset for offset, _ in link.committed("spark-flights-archive", partitions).values()) < COUNT:
        assert time.monotonic() < deadline, "the group has not come to the topic's end"
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == SparkExitCode.OK, "".join(lines)
    reader.join()
    # Spark's Python processes, which also end, may log a line after it.
    assert f"stopped: {COUNT:,} rows in 1 batches\n" in lines, "".join(lines)
    table = ds.dataset(tmp_path / "lake" / "flights", format="parquet", partitioning="hive").to_table()
    assert Counter(table["carrier"].to_pylist()) == Counter(f["carrier"] for f in flights(COUNT))


def test_a_job_whose_query_is_wrong_ends_at_once_with_the_reason(
    job: tuple[Path, str], tmp_path: Path, killed: list[subprocess.Popen[str]]
) -> None:
    process = run(str(job[0]), "--once", "--set", "transform.sql=SELECT nothing FROM source", folder=tmp_path)
    killed.append(process)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == SparkExitCode.FAILED, said
    assert "error: [UNRESOLVED_COLUMN" in said
