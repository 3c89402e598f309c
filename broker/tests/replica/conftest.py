"""Makes the kits of this folder and of the log's tests importable; fixture of a data path in a real directory."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "log"))

from replica_kit import DataPath, opened_data_path


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[DataPath]:
    async with opened_data_path(tmp_path) as data_path:
        yield data_path
