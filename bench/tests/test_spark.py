"""Parts of the Spark suites, without Spark: values, commands, and requirements."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cramjam
import pytest

from bench import requirements
from bench.client import ClientFailed
from bench.spark import filling, process
from bench.spark.process import Flavour, Spark
from bench.suites import spark

ECHO = """
import json, os, sys
answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
for line in sys.stdin:
    command = json.loads(line)
    if command.get("do") == "die":
        sys.exit(3)
    answers.write(json.dumps(command.get("answer", {})) + "\\n")
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    """Return a process with scripted responses, in place of a session."""
    worker = tmp_path / "echo.py"
    worker.write_text(ECHO)
    monkeypatch.setattr(process, "WORKER", worker)
    made = Spark(Flavour("echo", "none", Path(sys.executable), "1"), {0}, tmp_path / "home")
    monkeypatch.setattr("os.sched_setaffinity", lambda _pid, _cores: None)
    made.start()
    return made


def test_values_have_their_size_and_none_is_like_another() -> None:
    for size in (100, 1024):
        made = filling.values(size, 500)
        assert {len(value) for value in made} == {size}
        assert len(set(made)) == 500
    assert filling.values(100, 10) == filling.values(100, 10)


def test_values_compress_as_text_does() -> None:
    text = b"".join(filling.values(100, 10_000))
    assert 0.15 < len(bytes(cramjam.zstd.compress(text))) / len(text) < 0.5


def test_a_command_is_answered_and_measured(session: Spark) -> None:
    try:
        found = session.measure({"answer": {"rows_per_s": 5}}, 1_000_000, 30)
        assert found["rows_per_s"] == 5.0
        assert found["cpu_s_per_million"] >= 0.0
        assert session.peak_mb() > 1
    finally:
        session.stop()


def test_a_command_that_failed_says_why(session: Spark) -> None:
    try:
        with pytest.raises(ClientFailed, match=r"echo: RuntimeError: 5 rows came out"):
            session.ask({"answer": {"error": "RuntimeError: 5 rows came out"}}, 30)
        assert session.ask({"answer": {"a": 1}}, 30) == {"a": 1.0}
    finally:
        session.stop()


def test_a_session_that_ended_is_told_with_its_log(session: Spark) -> None:
    with pytest.raises(ClientFailed, match="echo's session ended by itself"):
        session.ask({"do": "die"}, 30)
    session.stop()


def test_every_required_line_is_measured_by_a_suite() -> None:
    class Session:
        pass

    measured = set()
    running = {label: Session() for label in ("penstock", "connector", "penstock-untuned")}
    for size in requirements.SPARK_SIZES:
        for codec in requirements.SPARK_CODECS:
            for mode, sink, lanes in spark.read_cases(running):  # type: ignore[arg-type]
                name = spark.read_case(size, codec, mode, sink)
                measured |= {("spark-read", name, lane.name) for lane in lanes}
    lines = [line for line in requirements.SPARK if line.suite == "spark-read"]
    assert len(lines) == 20
    for line in lines:
        assert (line.suite, line.case, line.subject) in measured
        assert (line.suite, line.case, line.base) in measured


def test_the_worker_needs_nothing_of_the_bench() -> None:
    text = process.WORKER.read_text()
    assert "import bench" not in text
    assert "from bench" not in text
    assert json.loads(json.dumps(process.CONF)) == process.CONF
