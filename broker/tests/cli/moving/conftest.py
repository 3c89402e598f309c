"""Three real brokers in different zones on a real etcd, for the test session."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.root import app

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "state"))

from command_outcome import Outcome
from etcd_process import EtcdCluster
from trio_kit import Trio

GUARD = [sys.executable, "-m", "penstock.cli.local_cluster.guard", str(os.getpid()), signal.SIGKILL.name]
"""Command prefix that kills the broker when the test process dies."""
START = [*GUARD, sys.executable, "-m", "penstock.cli", "up", "--port=0", "--http-port=-1"]


@pytest.fixture(scope="session")
def trio() -> Iterator[Trio]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-trio-"))
    (directory / "etcd").mkdir()
    try:
        with EtcdCluster(directory / "etcd") as etcd:
            commands = {
                number: [
                    *(*START, "--etcd", etcd.endpoints[0], f"--id={number}", f"--data={directory}/{number}"),
                    *("--set", f"broker.failure.domain=zone-{number}"),
                ]
                for number in (1, 2, 3)
            }
            made = Trio(commands, directory)
            try:
                made.start(1, 2, 3)
                yield made
            finally:
                made.end()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def cli(trio: Trio) -> Callable[..., Outcome]:
    """Return a function that runs the command line in this process; a process per command would be slower."""

    def call(*arguments: str) -> Outcome:
        done = CliRunner().invoke(app, arguments, env={"PENSTOCK_BOOTSTRAP": trio.bootstrap}, catch_exceptions=False)
        return Outcome(done.exit_code, done.stdout, done.stderr)

    return call
