"""Clusters for the tests of the controller."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from controller_kit import World, opened_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Yield a cluster without brokers."""
    async with opened_world() as opened:
        yield opened


@pytest.fixture
async def three(world: World) -> World:
    """Yield brokers 1, 2 and 3; broker 1 is the controller."""
    await world.start(1, 2, 3)
    await world.time.until(lambda: world.controllers() == [1])
    return world
