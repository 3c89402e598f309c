"""The demo end to end on a few thousand flights, and its report of errors."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from penstock_spark.cli import demo as command
from penstock_spark.cli.common import SparkExitCode
from penstock_spark.cli.root import app
from penstock_spark.demo.checks import CheckResult
from penstock_spark.jobs.run import java

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(900)]
FLIGHTS = 3_000
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Run:
    exit_code: int
    output: str
    result: CheckResult
    chart: bytes
    temporary: Path
    """Temporary directory of the demo."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run `penstock-spark demo --flights 3000` and collect its results."""
    home, temporary = tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("temporary")
    found: list[CheckResult] = []
    finish = command.finish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "finish", lambda result, chart: [found.append(result), finish(result, chart)][1])
        patch.setattr(tempfile, "tempdir", str(temporary))
        words = ["demo", "--flights", str(FLIGHTS), "--seconds", "2", "--chart", str(home / "charts" / "demo.png")]
        done = CliRunner().invoke(app, words)
    assert found, f"the demo came to no result: {done.output}"
    return Run(done.exit_code, done.output, found[0], (home / "charts" / "demo.png").read_bytes(), temporary)


def living(mark: str) -> list[str]:
    """Return processes with `mark` in their arguments or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if mark.encode() in words and int(entry.name) != os.getpid():
                found.append((entry / "cmdline").read_text(errors="replace").replace("\0", " "))
        except (OSError, ValueError):
            continue
    return found


def nothing_lives(mark: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while found := living(mark):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_every_check_holds_after_a_kill_in_the_middle_and_the_exit_code_is_0(run: Run) -> None:
    assert run.exit_code == 0, run.output
    assert "FAILED" not in run.output
    assert f"kill -9 {run.result.kill.pid if run.result.kill else None}: flights-archive was in batch" in run.output
    assert run.result.archive.num_rows == run.result.data_set.num_rows == sum(run.result.ends) == FLIGHTS
    assert len(run.result.ends) == 6
    assert {group: run.result.lag(group) for group in run.result.committed} == {
        "spark-flights-archive": 0,
        "spark-flights-by-hour": 0,
    }


def test_the_chart_is_a_png_of_1200_by_600(run: Run) -> None:
    assert run.chart[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", run.chart[16:24]) == (1200, 600)
    assert len(run.chart) < 150_000


def test_nothing_is_left_behind(run: Run) -> None:
    nothing_lives(str(run.temporary))
    assert list(run.temporary.iterdir()) == []


def failed(result: CheckResult) -> set[str]:
    return {check.what for check in result.checks() if not check.holds}


def test_an_archive_that_lacks_a_flight_ends_the_demo_with_exit_code_1(run: Run) -> None:
    lacking = replace(run.result, archive=run.result.archive.slice(1))
    with pytest.raises(typer.Exit) as ended:
        command.finish(lacking, Path("chart.png"))
    assert ended.value.exit_code == SparkExitCode.FAILED == 1
    assert failed(lacking) == {
        "no (partition, offset) is missing",
        "every flight is in the archive once",
        "the archive's rows equal the data set's",
    }


def test_a_flight_that_is_twice_in_the_archive_is_found(run: Run) -> None:
    double = pa.concat_tables([run.result.archive, run.result.archive.slice(5, 1)])
    assert failed(replace(run.result, archive=double)) == {
        "no (partition, offset) is duplicate",
        "every flight is in the archive once",
        "the archive's rows equal the data set's",
    }


def test_a_flight_that_took_the_place_of_another_is_found(run: Run) -> None:
    archive = run.result.archive
    place = archive.column_names.index("dep_delay")
    first = archive["dep_delay"][0].as_py() or 0
    changed = pa.chunked_array([[first + 1], *archive["dep_delay"].slice(1).chunks], archive["dep_delay"].type)
    assert failed(replace(run.result, archive=archive.set_column(place, "dep_delay", changed))) == {
        "the archive's rows equal the data set's"
    }


def test_a_sum_that_is_off_by_a_minute_is_found(run: Run) -> None:
    rows = run.result.hours.to_pylist()
    rows[0]["delay_minutes"] += 1
    assert failed(replace(run.result, hours=pa.Table.from_pylist(rows, run.result.hours.schema))) == {
        "each hour and carrier adds up as in the data set",
        "the table by carrier equals the data set's",
    }


def test_a_kill_that_interrupted_nothing_and_a_group_that_lags_are_found(run: Run) -> None:
    assert failed(replace(run.result, kill=None)) == {"the archive's driver was killed in the middle of a batch"}
    behind = {group: [offsets[0] - 1, *offsets[1:]] for group, offsets in run.result.committed.items()}
    assert failed(replace(run.result, committed=behind)) == {f"the lag of group {group} is 0" for group in behind}


def test_ctrl_c_ends_everything_that_was_started(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "penstock_spark.cli", "demo", "--chart", str(tmp_path / "none.png")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    while "flights-by-hour.yaml: process" not in (line := process.stdout.readline()):
        assert line, process.communicate()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == SparkExitCode.INTERRUPTED, (out, errors)
    assert "Traceback" not in errors
    nothing_lives(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_java_is_brought_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> java.Java:
        raise java.JavaMissing("none")

    assert command.java_line(missing, lambda: java.Java(Path("/cache/jdk-21"), 21)) == "Java 21 in /cache/jdk-21"
    assert capsys.readouterr().out == f"Java 17 or newer not found: installing Java 21 into {java.cache()}\n"
    assert command.java_line(lambda: java.Java(None, 17)) == "Java 17 on the PATH"
