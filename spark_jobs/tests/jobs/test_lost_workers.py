"""Executors and workers are killed while a job writes: every row is in the Parquet folder exactly once.

The job runs on a local Spark cluster with an executor process, because only there Spark retries tasks.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.processes import descendants
from penstock_spark_kit.topics import Rec, produce

from penstock_spark.cli.common import SparkExitCode

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]
LIMIT_S = 300
ROWS_A_BATCH, BATCHES = 100, 3
EXECUTOR, WORKER = "CoarseGrainedExecutorBackend", "pyspark.daemon"
# Each row takes some milliseconds, rows reach the writer a few at a time, and they are too large for the JVM to buffer
# many: the writer's files stay open for a second.
JOB = """
kind: archive
name: on-a-cluster
source: {{brokers: "{brokers}", topics: [{topic}], max_records_per_batch: {rows}}}
transform:
  value: {{format: string}}
  sql: >-
    SELECT CAST(value AS INT) AS number, sha2(repeat(value, 900000), 512) AS slow, repeat(value, 30000) AS large
    FROM source
checkpoint: {home}/checkpoint
to: {{format: parquet, path: {home}/lake}}
trigger: {{once: true}}
spark:
  spark.master: "local-cluster[1,1,1024]"
  spark.driver.memory: 512m
  spark.executor.memory: 512m
  spark.executor.extraJavaOptions: "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
  spark.driver.host: 127.0.0.1
  spark.local.dir: {home}/local
  spark.sql.execution.arrow.maxRecordsPerBatch: 10
"""


@pytest.fixture
def job(penstock: Broker, topic: Callable[..., str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `penstock-spark run` on a topic of numbers."""
    produce(penstock.bootstrap, name := topic(), [Rec(b"%d" % n) for n in range(ROWS_A_BATCH * BATCHES)])
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(brokers=penstock.bootstrap, topic=name, rows=ROWS_A_BATCH, home=tmp_path))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock_spark.cli", "run", str(path)],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def kill_while_it_writes(job: subprocess.Popen[bytes], home: Path, batch: int, kind: str) -> None:
    """Kill processes of `kind` when the batch has a staged file."""
    deadline_s = time.monotonic() + LIMIT_S
    killed: list[int] = []
    while not list((home / "lake" / "_penstock").glob(f"*/staging/{batch}/*.parquet")):
        assert job.poll() is None, (home / "log").read_text(errors="replace")
        assert time.monotonic() < deadline_s, (home / "log").read_text(errors="replace")
        time.sleep(0.01)
        # The list is made before the file appears, because both listing and writing take time.
        killed = [pid for pid, command in descendants(job.pid).items() if kind in command]
    assert killed, f"no {kind} runs"
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_an_executor_and_then_a_worker_that_are_killed_at_work_lose_and_double_nothing(
    job: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    kill_while_it_writes(job, tmp_path, 0, EXECUTOR)
    kill_while_it_writes(job, tmp_path, 1, WORKER)
    code, log = job.wait(LIMIT_S), (tmp_path / "log").read_text(errors="replace")
    assert code == SparkExitCode.OK, log
    assert re.search(r"batchId = 0\] Lost task .*ExecutorLostFailure", log), "no executor was at work"
    assert re.search(r"batchId = 1\] Lost task ", log), "no worker was at work"
    table = ds.dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table()
    assert Counter(table["number"].to_pylist()) == Counter(range(ROWS_A_BATCH * BATCHES))
    assert not list((tmp_path / "lake" / "_penstock").rglob("*.parquet")), "files of lost attempts are left"
