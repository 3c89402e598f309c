"""Fixtures: the broker with the data, and the rows that each of the two Sparks reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

# Tests are imported by file (importlib mode), so these entries make their common packages importable.
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "spark_jobs" / "tests"), str(ROOT / "broker" / "tests" / "node")]

from equivalence_kit.cases import CASES  # noqa: E402
from equivalence_kit.data import fill  # noqa: E402
from penstock_spark_kit.broker import Broker  # noqa: E402

from bench.spark_peer import environment, variables  # noqa: E402

PROGRAM = HERE / "equivalence_kit" / "reading_program.py"
LIMIT_S = 1500
Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers: PENSTOCK_BOOTSTRAP, such as an Apache Kafka without these topics, or an embedded broker."""
    given = os.environ.get("PENSTOCK_BOOTSTRAP")
    if given:
        fill(given)
        yield given
        return
    broker = Broker(tmp_path_factory.mktemp("broker"))
    try:
        running = broker.start()
        fill(running.bootstrap)
        yield running.bootstrap
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def found(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Found]:
    """The results of the Kafka connector and of `penstock`, by names of the cases."""
    peer = environment()
    theirs = [str(peer.python), "kafka", [str(jar) for jar in peer.jars], variables(peer)]
    ours = [sys.executable, "penstock", [], {"PYSPARK_PYTHON": sys.executable}]
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(run, *one, bootstrap, tmp_path_factory.mktemp(name))  # type: ignore[arg-type]
            for one, name in ((theirs, "connector"), (ours, "ours"))
        ]
        return runs[0].result(), runs[1].result()


def run(python: str, name: str, jars: list[str], more: dict[str, str], bootstrap: str, work: Path) -> Found:
    (work / "cases.json").write_text(json.dumps([case.as_json() for case in CASES]))
    command = [python, str(PROGRAM), name, bootstrap, str(work / "cases.json"), str(work / "found.json"), str(work)]
    done = subprocess.run(
        [*command, *jars], env=os.environ | more, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert not done.returncode, f"{name} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    result: Found = json.loads((work / "found.json").read_text())
    return result
