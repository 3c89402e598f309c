"""Makes the kits importable."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE),
    *(str(HERE.parent / room) for room in ("api", "replica", "log", "replication", "node", "state")),
]

from brokers_kit import TxnCluster  # noqa: E402


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[TxnCluster]:
    """Yield brokers 1 to 3, registered and running; no broker owns a shard."""
    made = TxnCluster(tmp_path)
    for broker_id in (1, 2, 3):
        await made.start(broker_id)
    yield made
    for hold in made.holds:
        hold.let_go()
    await made.close()
