"""The exit code of an audit without a verdict, for a supervisor such as a CronJob."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from node_kit import port_of, reserved_port

from penstock_spark.cli.common import SparkExitCode

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]
LIMIT_S = 300
JOB = """
kind: audit
name: kept
source:
  brokers: 127.0.0.1:{port}
  topics: [kept]
  options: {{kafkaConsumer.pollTimeoutMs: 500}}
archive: {{format: parquet, path: {archive}}}
restart: {{attempts: 1, backoff: 1 ms}}
spark: {{spark.driver.memory: 512m, spark.local.dir: {home}/local, spark.master: "local[1]"}}
"""


@pytest.mark.parametrize(
    ("archive", "code", "said"),
    [
        ("lake", SparkExitCode.GAVE_UP, "gave up after 500 ms"),
        ("nowhere", SparkExitCode.FAILED, 'archive.path: "'),
    ],
)
def test_brokers_that_are_away_may_come_back_and_a_wrong_path_stays_wrong(
    tmp_path: Path, archive: str, code: SparkExitCode, said: str
) -> None:
    (tmp_path / "lake").mkdir()
    path = tmp_path / "job.yaml"
    command = [sys.executable, "-m", "penstock_spark.cli", "run", str(path), "--once"]
    with reserved_port() as reserved:
        path.write_text(JOB.format(port=port_of(reserved), archive=tmp_path / archive, home=tmp_path))
        done = subprocess.run(
            command,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == code, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said in error
    assert ("restarting in" in done.stderr) is (code is SparkExitCode.GAVE_UP)
