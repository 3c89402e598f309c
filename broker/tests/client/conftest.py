"""A real broker for the session (or the one at PENSTOCK_BOOTSTRAP), fresh names, and a broker that fails on demand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.client import Admin, NewTopic

# Tests are imported by file (importlib mode), so what they share is found by this entry.
sys.path.insert(0, str(Path(__file__).parent))

from client_doubles.scripted import ScriptedBroker


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """The address of a broker."""
    given = os.environ.get("PENSTOCK_BOOTSTRAP")
    if given:
        yield given
        return
    directory = Path(tempfile.mkdtemp(prefix="penstock-client-tests-"))
    log = directory / "log"
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "up",
        "--data",
        str(directory / "data"),
        "--port=0",
        "--http-port=0",
    ]
    for setting in ("group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=500"):
        command += ["--set", setting]
    with log.open("wb") as errors:
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert broker.stdout is not None
        ready = broker.stdout.readline().split()
        assert ready[:1] == ["ready"], log.read_text()
        yield ready[1].removeprefix("kafka=")
    finally:
        broker.terminate()
        broker.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def name() -> str:
    """A name that nothing else has."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Admin]:
    async with Admin(bootstrap) as admin:
        yield admin


@pytest.fixture
async def topic(admin: Admin, name: str) -> AsyncIterator[str]:
    """A topic of four partitions."""
    await admin.create_topics([NewTopic(name, 4)])
    yield name
    await admin.delete_topics([name])
