"""Processes of `worker`: one session each for all rounds, so that each JVM warms up only once.

Two kinds exist: the project's own Spark with Penstock's data source, and an older Spark with its own Kafka connector
(see `bench.spark_peer`). Both get the same cores and memory. Neither uses CPU while idle.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from bench import procfs, spark_peer
from bench.client import ClientFailed
from penstock_spark.jobs.run import spark_home

WORKER = Path(__file__).with_name("worker.py")
START_LIMIT_S = 180.0
STOP_LIMIT_S = 30.0
LOG_TAIL_LINES = 30
CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
"""Spark passes rows from Python to the JVM without TCP. The guide recommends this and a SPARK_HOME without Spark's
archive of pyspark; jobs have both by default."""
PYTHON = {"PYSPARK_PYTHON": sys.executable}
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@dataclass(frozen=True)
class Flavour:
    """How to start one kind of session."""

    label: str
    format: str
    python: Path
    version: str
    conf: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def penstock() -> Flavour:
    spark = f"penstock-spark {version('penstock-spark')} on Spark {version('pyspark')}"
    home = spark_home.folder()
    if home is None:
        raise ClientFailed("the folder for SPARK_HOME could not be made in the cache (XDG_CACHE_HOME)")
    variables = {**PYTHON, "SPARK_HOME": str(home)}
    return Flavour("penstock", "penstock", Path(sys.executable), spark, UNIX_SOCKETS, variables)


def penstock_untuned() -> Flavour:
    """Return the flavour with Spark's own defaults."""
    return replace(penstock(), label="penstock-untuned", conf={}, variables=PYTHON)


def connector() -> Flavour:
    """Return the flavour of Spark's connector; create its environment if needed. Raises PeerUnavailable."""
    peer = spark_peer.environment(delta=True)
    conf = {"spark.jars": ",".join(map(str, peer.jars)), **DELTA_CONF}
    name = f"Spark {spark_peer.SPARK_VERSION} with its Kafka connector and Delta {spark_peer.DELTA_VERSION}"
    return Flavour("connector", "kafka", peer.python, name, conf, spark_peer.variables(peer))


class Spark:
    """One process, which runs one command at a time. Raises ClientFailed if a command fails or the process ends."""

    def __init__(self, flavour: Flavour, cores: set[int], home: Path) -> None:
        self.flavour = flavour
        self._cores = cores
        self._home = home
        self._log = home / f"{flavour.label}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the session is not running"
        return self._process.pid

    def start(self) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.flavour.python), str(WORKER), str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._home,
                env={**environment, **self.flavour.variables},
                pass_fds=(writing,),
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, self._cores),
            )
        os.close(writing)
        self._answers = os.fdopen(reading, "rb")
        local = {"spark.local.dir": str(self._home / "local"), "spark.sql.warehouse.dir": str(self._home / "warehouse")}
        conf = {**CONF, **local, **self.flavour.conf}
        self.ask({"conf": conf, "format": self.flavour.format}, START_LIMIT_S)

    def ask(self, command: Mapping[str, Any], limit_s: float) -> dict[str, float]:
        """Send a command and return its response."""
        assert self._process is not None, "the session is not running"
        assert self._process.stdin is not None, "it was started with one"
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise ClientFailed(self._failure("ended by itself")) from None
        answer = json.loads(self._line(limit_s))
        if "error" in answer:
            raise ClientFailed(f"{self.flavour.label}: {answer['error']}")
        return {name: float(value) for name, value in answer.items()}

    def _line(self, limit_s: float) -> bytes:
        assert self._answers is not None, "the session is not running"
        if not select.select([self._answers], [], [], limit_s)[0]:
            raise ClientFailed(self._failure(f"did not answer in {limit_s:.0f} s"))
        line = self._answers.readline()
        if not line:
            raise ClientFailed(self._failure("ended by itself"))
        return line

    def measure(self, command: Mapping[str, Any], rows: int, limit_s: float) -> dict[str, float]:
        """Return a command's metrics with its cost: CPU seconds of the JVM and all Python processes."""
        before = procfs.cpu_s(self.pid)
        figures = self.ask(command, limit_s)
        spent = procfs.cpu_s(self.pid) - before
        return {**figures, "cpu_s_per_million": 1e6 * spent / rows}

    def peak_mb(self) -> float:
        """Return the sum of each living process's maximum resident size."""
        return procfs.peak_resident_bytes(self.pid) / 1e6

    def _failure(self, what: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"{self.flavour.label}'s session {what}; the end of its log:", *lines])

    def stop(self) -> None:
        """Close its input, which ends it; kill remaining processes."""
        if self._process is None:
            return
        members = procfs.tree(self._process.pid)
        assert self._process.stdin is not None, "it was started with one"
        try:
            self._process.stdin.close()
            self._process.wait(STOP_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            self._process = None
            if self._answers is not None:
                self._answers.close()
        time.sleep(0.1)
        for pid in members[1:]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
