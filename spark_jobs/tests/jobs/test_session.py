"""Settings of a job's session: defaults, overrides of the job, and fixed settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock_spark.jobs.examples import example
from penstock_spark.jobs.run.session import UNIX_SOCKETS, settings
from penstock_spark.jobs.spec import document

pytestmark = pytest.mark.integration

SPECULATION = "spark.speculation"
LIMIT_S = 120
ASK_A_WORKER = """
import os
from penstock_spark.jobs.spec import document
from penstock_spark.jobs.examples import example
from penstock_spark.jobs.run.session import session

def ask(_batches):
    import pyarrow as pa
    import pyspark
    answer = {"way": [os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED")], "package": [pyspark.__file__]}
    yield pa.RecordBatch.from_pydict(answer)

spark = session(document.build_job(document.parse(example("archive"), "archive.yaml")))
worker = spark.range(1).mapInArrow(ask, "way string, package string").first()
print("by Unix sockets:", worker.way)
print("pyspark:", worker.package)
spark.stop()
"""
LOSE_EXECUTORS = """
from penstock_spark.jobs.spec import document
from penstock_spark.jobs.examples import example
from penstock_spark.jobs.run.session import session

HOUR_MS = 3_600_000
spark = session(document.build_job(document.parse(example("archive"), "archive.yaml")))
clock = spark._jvm.org.apache.spark.util.ManualClock(0)
counted = spark._jvm.org.apache.spark.deploy.ExecutorFailureTracker(spark._jsc.sc().getConf(), clock)
for _ in range(3):
    counted.registerExecutorFailure()
at_once = counted.numFailedExecutors()
clock.advance(2 * HOUR_MS)
counted.registerExecutorFailure()
print("executors counted as lost:", at_once, counted.numFailedExecutors())
spark.stop()
"""


def settings_with(*sets: str) -> dict[str, str]:
    found = document.parse(example("archive"), "archive.yaml")
    for assignment in sets:
        document.set_value(found, assignment)
    return settings(document.build_job(found))


@pytest.mark.parametrize(("written", "spelt"), [("false", "false"), ("yes-please", "yes-please"), ("3", "3")])
def test_what_a_job_sets_goes_before_the_default_as_spark_spells_it(written: str, spelt: str) -> None:
    assert settings_with()[UNIX_SOCKETS] == "true"
    assert settings_with(f"spark.{UNIX_SOCKETS}={written}")[UNIX_SOCKETS] == spelt


def test_no_job_has_two_copies_of_a_task() -> None:
    assert settings_with(f"spark.{SPECULATION}=true")[SPECULATION] == "false"


def run(program: str, **variables: str) -> str:
    """Return the output of a script with a job's session in a separate process."""
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_workers_of_a_job_are_reached_past_tcp_however_long_the_path_to_temporary_files_is(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    assert "by Unix sockets: True" in run(ASK_A_WORKER, JAVA_TOOL_OPTIONS=f"-Djava.io.tmpdir={deep}")


def test_workers_of_a_job_import_the_package_that_is_installed_and_compiled(tmp_path: Path) -> None:
    told = run(ASK_A_WORKER, XDG_CACHE_HOME=str(tmp_path))
    assert f"pyspark: {Path(pyspark.__file__).resolve()}" in told


def test_executors_that_were_lost_long_ago_do_not_add_up_until_spark_ends_the_driver() -> None:
    assert "executors counted as lost: 3 1\n" in run(LOSE_EXECUTORS)
