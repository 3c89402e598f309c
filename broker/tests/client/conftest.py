"""A real broker for the session (or the one at PENSTOCK_BOOTSTRAP), unique names, and a scripted broker."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.client import Admin, NewTopic

# pytest imports tests by file (importlib mode), so shared modules need this entry.
sys.path.insert(0, str(Path(__file__).parent))

from client_doubles.scripted import ScriptedBroker
from session_broker import address_of_broker

SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=500",
    "group.consumer.min.session.timeout.ms=500",
    "group.consumer.min.heartbeat.interval.ms=100",
    "group.consumer.heartbeat.interval.ms=100",
    "group.consumer.assignment.interval.ms=0",
    "group.share.min.heartbeat.interval.ms=100",
    "group.share.heartbeat.interval.ms=100",
    "group.share.assignment.interval.ms=0",
    # Retention would delete the records that tests write with old timestamps.
    "log.retention.check.interval.ms=2147483647",
)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Yield the address of a broker."""
    with address_of_broker(*SETTINGS) as address:
        yield address


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def name() -> str:
    """Return a unique name."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Admin]:
    async with Admin(bootstrap) as admin:
        yield admin


@pytest.fixture
async def topic(admin: Admin, name: str) -> AsyncIterator[str]:
    """Yield a topic with four partitions."""
    await admin.create_topics([NewTopic(name, 4)])
    yield name
    await admin.delete_topics([name])
