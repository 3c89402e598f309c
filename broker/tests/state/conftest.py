"""Stores to test: each implementation of `Store` is one way to open one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from penstock.state.embedded import EmbeddedStore
from penstock.state.store import Store

Opener = Callable[[], Store]


@pytest.fixture(params=["embedded in a file", "embedded in memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A new store of each kind. Later implementations are one more parameter here."""
    made = EmbeddedStore(str(tmp_path / "state.db") if request.param == "embedded in a file" else ":memory:")
    yield made
    await made.close()


@pytest.fixture
async def advance() -> Callable[[float], Awaitable[None]]:
    """Moves the loop's clock forward and lets what is then due happen."""
    loop = asyncio.get_running_loop()
    real_time, passed = loop.time, [0.0]
    loop.time = lambda: real_time() + passed[0]  # type: ignore[method-assign]

    async def advance(seconds: float) -> None:
        passed[0] += seconds
        for _ in range(3):
            await asyncio.sleep(0)

    return advance
