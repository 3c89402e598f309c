"""What each suite says of itself; `tests/suites/run.py` carries it out."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from penstock_suites.brokers import Cluster, Layout
from penstock_suites.lists import Outcome
from penstock_suites.sources import Source


@dataclass
class Run:
    """One run of a suite: its built sources, the cluster, a directory for its files, and the tests to run."""

    sources: Path
    cluster: Cluster
    work: Path
    left_out: Sequence[str] = ()
    only: Sequence[str] = ()
    """Tests by id; empty: all of them."""
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.work / "suite.log"


class Suite(Protocol):
    """A client author's suite."""

    name: str

    @property
    def source(self) -> Source: ...

    def layout(self, brokers: int | None) -> Layout:
        """The cluster to run against; `brokers` is how many the user asked for."""
        ...

    def build(self) -> Path:
        """Fetch and build what does not depend on the brokers; returns what `Run.sources` is."""
        ...

    def around(self, cluster: Cluster, work: Path) -> AbstractContextManager[object]:
        """What else has to run while the suite does, such as proxies."""
        ...

    def run(self, run: Run) -> Mapping[str, Outcome]:
        """The outcome of each test by its id; what the tests print goes to `run.log`."""
        ...


def nothing_else(cluster: Cluster, work: Path) -> AbstractContextManager[object]:
    """For suites that need only brokers."""
    del cluster, work
    return nullcontext()


def logged(command: Sequence[str], run: Run, limit_s: float, cwd: Path, **variables: str) -> str:
    """Run the suite's command and return what it printed. It is stopped, children included, after `limit_s`."""
    with run.log.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            log.write(f"\nstopped after {limit_s:.0f} s\n".encode())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    with run.log.open("rb") as printed:
        printed.seek(start)
        return printed.read().decode(errors="replace")
