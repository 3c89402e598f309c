"""Several brokers in one process, connected in memory."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "replica"))
sys.path.insert(0, str(Path(__file__).parent.parent / "log"))

from cluster_kit import Cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield brokers 1 to 3, registered and running."""
    made = Cluster(tmp_path)
    for broker_id in (1, 2, 3):
        await made.start(broker_id)
    yield made
    await made.close()
