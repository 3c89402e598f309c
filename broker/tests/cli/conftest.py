"""A real broker for the session (or the one at PENSTOCK_BOOTSTRAP), and the command line as a process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "client"))

from command_outcome import Outcome
from forked_commands import ForkedCommands
from secrets_kit import search
from session_broker import address_of_broker

from penstock.client import Admin, NewTopic

Cli = Callable[..., Outcome]


LIMIT_S = 60.0


def environment_of(bootstrap: str) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_BOOTSTRAP": bootstrap, "COLUMNS": "100", "TERM": "dumb"}


def encoded(stdin: str | bytes) -> bytes:
    return stdin.encode() if isinstance(stdin, str) else stdin


def outcome_of(arguments: tuple[str, ...], code: int, out: bytes, err: bytes) -> Outcome:
    """Return the outcome, which contains no secret."""
    outcome = Outcome(code, out.decode(), err.decode())
    search(f"output of penstock {arguments[0]}", outcome.out)
    search(f"errors of penstock {arguments[0]}", outcome.err)
    return outcome


@pytest.fixture(scope="session")
def commands() -> Iterator[ForkedCommands]:
    """Yield the process that forks commands."""
    made = ForkedCommands()
    yield made
    made.close()


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Yield the address of a broker."""
    with address_of_broker("group.initial.rebalance.delay.ms=0") as address:
        yield address


@pytest.fixture
def cli(bootstrap: str, commands: ForkedCommands) -> Cli:
    """Return a function that runs the command line against the broker."""

    def call(*arguments: str, stdin: str | bytes = b"") -> Outcome:
        done = commands.run(arguments, encoded(stdin), environment_of(bootstrap), LIMIT_S)
        return outcome_of(arguments, *done)

    return call


@pytest.fixture
def alone() -> Cli:
    """Return a function that runs the command line without a broker, in a process that has imported nothing before."""

    def call(*arguments: str, stdin: str | bytes = b"", bootstrap: str = "127.0.0.1:1") -> Outcome:
        command = [sys.executable, "-m", "penstock.cli", *arguments]
        environment = environment_of(bootstrap)
        done = subprocess.run(command, input=encoded(stdin), capture_output=True, env=environment, timeout=LIMIT_S)
        return outcome_of(arguments, done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def name() -> str:
    """Return a unique name."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(bootstrap: str, name: str) -> Iterator[str]:
    """Yield a topic with two partitions."""

    async def create() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topics([NewTopic(name, 2)])

    async def delete() -> None:
        async with Admin(bootstrap) as admin:
            if name in await admin.list_topics():
                await admin.delete_topics([name])

    asyncio.run(create())
    yield name
    asyncio.run(delete())
