"""Spark with its own Kafka connector in a separate environment, for comparison with Penstock's.

Used by the suites of `bench/spark` and by `tests/spark_equivalence`. The release is the newest one whose jars are all
on Maven Central, so it lives beside the project's own Spark: a virtual environment with that pyspark, and a folder of
jars, both created once in the user's cache (`PENSTOCK_SPARK_PEER_CACHE` selects another directory).

    peer = environment()
    subprocess.run([peer.python, script], env={**os.environ, **variables(peer)})

and in the script `SparkSession.builder.config("spark.jars", ",".join(map(str, peer.jars)))`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

SPARK_VERSION = "4.0.0"
DELTA_VERSION = "4.0.0"
CONNECTOR = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_VERSION)
DELTA = ("io.delta", "delta-spark_2.13", DELTA_VERSION)
LIMIT_S = 900
# Spark includes these itself.
_EXCLUDED_GROUPS = (
    "org.apache.hadoop,org.scala-lang,org.slf4j,com.google.code.findbugs,org.xerial.snappy,com.github.luben"
)
_EXCLUDED_ARTIFACTS = "spark-tags_2.13"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>spark-peer</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>
  </dependencies>
</project>
"""


class PeerUnavailable(Exception):
    """Spark's connector cannot be installed here; the message names what is missing and the fix."""


class Peer(NamedTuple):
    python: Path
    """Interpreter with pyspark."""
    jars: list[Path]
    """Values for `spark.jars`."""
    home: Path
    """Directory of pyspark: `SPARK_HOME`."""


def cache_dir() -> Path:
    chosen = os.environ.get("PENSTOCK_SPARK_PEER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else base / "penstock-spark-peer"


def environment(*, delta: bool = False) -> Peer:
    """Return the environment. The first call creates it, with Maven and the package index; `delta` adds the Delta jars.

    Raises `PeerUnavailable`.
    """
    home = cache_dir()
    home.mkdir(parents=True, exist_ok=True)
    with _alone(home):
        python = _interpreter(home / "venv")
        jars = _jars(home / "jars", CONNECTOR) + (_jars(home / "jars-delta", DELTA) if delta else [])
    found = sorted(home.glob("venv/lib/python*/site-packages/pyspark"))
    if not found:
        raise PeerUnavailable(f"there is no pyspark in {home / 'venv'}; remove that folder and try again")
    return Peer(python, jars, found[0])


def variables(peer: Peer) -> dict[str, str]:
    """Return the environment variables for a program of that interpreter, so that it does not find another Spark."""
    return {"SPARK_HOME": str(peer.home), "PYSPARK_PYTHON": str(peer.python), "PYTHONPATH": ""}


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _interpreter(venv: Path) -> Path:
    python = venv / "bin" / "python"
    if (venv / "complete").exists():
        return python
    shutil.rmtree(venv, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(venv)], venv.parent, "making a virtual environment")
    install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", f"pyspark=={SPARK_VERSION}"]
    _run([str(python), *install], venv.parent, f"installing pyspark {SPARK_VERSION}")
    (venv / "complete").touch()
    return python


def _jars(folder: Path, artifact: tuple[str, str, str]) -> list[Path]:
    if not folder.is_dir():
        maven = shutil.which("mvn")
        if maven is None or shutil.which("java") is None:
            raise PeerUnavailable("Spark's connector needs a JDK of 17 or newer and Maven, which are not on the PATH")
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            (Path(work) / "pom.xml").write_text(_POM.format(*artifact))
            copy = [
                maven,
                "-q",
                "-B",
                "dependency:copy-dependencies",
                "-DoutputDirectory=jars",
                "-DincludeScope=runtime",
            ]
            _run(
                [*copy, f"-DexcludeGroupIds={_EXCLUDED_GROUPS}", f"-DexcludeArtifactIds={_EXCLUDED_ARTIFACTS}"],
                Path(work),
                f"resolving {':'.join(artifact)}",
            )
            (Path(work) / "jars").rename(folder)
    return sorted(folder.glob("*.jar"))


def _run(command: list[str], folder: Path, what: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{what} took longer than {LIMIT_S} s") from None
    if done.returncode:
        raise PeerUnavailable(f"{what} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    print(environment(delta="--delta" in sys.argv))
