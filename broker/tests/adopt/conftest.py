"""Import paths of the kits for adoptions, clusters, etcd and broker processes, and an empty store."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
sys.path.insert(0, str(Path(__file__).parent.parent / "state"))
sys.path.insert(0, str(Path(__file__).parent.parent / "node"))

from adopt_kit import Failing


@pytest.fixture
async def store() -> AsyncIterator[Failing]:
    """Yield an empty store for the cluster."""
    made = Failing()
    yield made
    await made.close()
