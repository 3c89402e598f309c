"""A real broker for the session (or the one at PENSTOCK_BOOTSTRAP), fresh names, and a broker that fails on demand."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.client import Admin, NewTopic

# Tests are imported by file (importlib mode), so what they share is found by this entry.
sys.path.insert(0, str(Path(__file__).parent))

from client_doubles.scripted import ScriptedBroker
from session_broker import address_of_broker

SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=500",
    # Tests write records with old timestamps.
    "log.retention.check.interval.ms=2147483647",
)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """The address of a broker."""
    with address_of_broker(*SETTINGS) as address:
        yield address


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
