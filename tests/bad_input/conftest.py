"""A real broker for bad requests, and a well-behaved client that must not be affected."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file (importlib mode), so these entries make the packages shared with the fuzzer importable.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from bad_input_kit import Rude

from bench.fuzz.broker import Broker, started
from bench.fuzz.canary import Canary


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with started() as running:
        yield running


@pytest.fixture
def canary(broker: Broker) -> Iterator[Canary]:
    """A client that is served before and after each test, and reads the records it wrote."""
    with Canary(broker.host, broker.port, f"canary-{uuid.uuid4().hex}") as good:
        good.create(good.topic)
        good.sing(b"before")
        yield good
        good.sing(b"after")
        good.listen()


@pytest.fixture
def rude(broker: Broker, canary: Canary) -> Iterator[Rude]:
    with Rude(broker.host, broker.port) as client:
        yield client
