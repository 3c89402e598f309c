"""Clusters on an etcd that can be restored."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "log"))

from restored_kit import Cluster

from penstock.control.controller import election
from penstock.control.restored import restored


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """Yield a cluster without brokers and with short check intervals."""
    monkeypatch.setattr(restored, "CHECK_S", 0.05)
    monkeypatch.setattr(restored, "POLL_S", 0.02)
    monkeypatch.setattr(election, "RESTORED_POLL_S", 0.02)
    made = Cluster(tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def two(cluster: Cluster) -> Cluster:
    """Return a cluster of brokers 1 and 2, one of which is the controller."""
    await cluster.start(1, 2)
    await cluster.controlled()
    return cluster
