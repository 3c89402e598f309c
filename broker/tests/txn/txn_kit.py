"""A broker in the test process, for blocking clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

from penstock.config.options import UpOptions
from penstock.node.broker import BrokerNode
from penstock.node.environment import SystemEnvironment

T = TypeVar("T")
DEADLINE_S = 60.0


@contextlib.asynccontextmanager
async def running(home: Path, **settings: str) -> AsyncIterator[tuple[BrokerNode, str]]:
    """Yield a started node and its address."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    given.setdefault("group.initial.rebalance.delay.ms", "0")
    options = UpOptions(data_dir=str(home), host="127.0.0.1", port=0, http_port=None, settings=given)
    node = BrokerNode(options, dict(os.environ), SystemEnvironment())
    listeners, _ = await node.start()
    try:
        yield node, f"127.0.0.1:{listeners[0].port}"
    finally:
        await node.stop()


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking client call in a thread."""
    return await asyncio.wait_for(asyncio.to_thread(work, *arguments), DEADLINE_S)
