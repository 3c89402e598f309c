"""Three real brokers with their etcd for this folder, and a gateway to them."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock_operator.brokers.admin_connection import AdminConnection
from penstock_operator.brokers.gateway import Gateway

BROKER_TESTS = Path(__file__).parents[3] / "broker" / "tests"
sys.path[:0] = [str(BROKER_TESTS / "node"), str(BROKER_TESTS / "state")]

if TYPE_CHECKING:
    from cluster_processes import Cluster


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start brokers 1 to 3."""
    from cluster_processes import Cluster, running

    with running(Cluster(tmp_path_factory.mktemp("trio"))) as made:
        yield made


@pytest.fixture
async def gateway(trio: Cluster) -> AsyncIterator[Gateway]:
    made = Gateway(AdminConnection(trio.bootstrap))
    yield made
    await made.close()


@pytest.fixture
def name() -> str:
    """Return a unique name."""
    return f"t-{uuid.uuid4().hex[:12]}"
