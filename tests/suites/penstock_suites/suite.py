"""The definition of a suite, which `tests/suites/run.py` runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from penstock_suites.brokers import Cluster, Layout
from penstock_suites.lists import Outcome
from penstock_suites.sources import Source

GROUP_PROTOCOL = "TEST_CONSUMER_GROUP_PROTOCOL"
"""Variable with the group protocol of the consumers, for the suites on librdkafka."""


class GroupProtocol(Enum):
    """The protocol by which consumers join groups: the classic one, or that of KIP-848."""

    CLASSIC = "classic"
    CONSUMER = "consumer"

    @property
    def suffix(self) -> str:
        """What follows the suite's name: empty for the classic protocol."""
        return "" if self is GroupProtocol.CLASSIC else f"-{self.value}"


@dataclass
class Run:
    """One run of a suite: its built sources, the cluster, a directory for its files, and the tests to run."""

    sources: Path
    cluster: Cluster
    work: Path
    left_out: Sequence[str] = ()
    only: Sequence[str] = ()
    """Test ids; empty: all tests."""
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.work / "suite.log"


class Suite(Protocol):
    """A client author's suite."""

    name: str

    @property
    def source(self) -> Source: ...

    def layout(self, brokers: int | None) -> Layout:
        """Return the cluster to run against; `brokers` is the number that the user requested."""
        ...

    def build(self) -> Path:
        """Download and build everything that does not depend on the brokers; return the value of `Run.sources`."""
        ...

    def around(self, cluster: Cluster, work: Path) -> AbstractContextManager[object]:
        """Return the context of other processes that run during the suite, such as proxies."""
        ...

    def run(self, run: Run) -> Mapping[str, Outcome]:
        """Return the outcome of each test by id; the tests' output goes to `run.log`."""
        ...


def nothing_else(cluster: Cluster, work: Path) -> AbstractContextManager[object]:
    """Return an empty context, for suites that need only brokers."""
    del cluster, work
    return nullcontext()


def logged(command: Sequence[str], run: Run, limit_s: float, cwd: Path, **variables: str) -> str:
    """Run the suite's command and return its output. It is stopped, with its children, after `limit_s`."""
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
