"""A cluster of one broker, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from penstock.config.broker import BrokerConfig
from penstock.control.broker_availability import OnlyBroker
from penstock.control.config_admin import ConfigService
from penstock.control.membership import ensure_cluster, register_embedded
from penstock.control.topic_admin import TopicService
from penstock.control.topic_removal import TopicRemoval
from penstock.runtime.clock import SystemClock
from penstock.state.embedded import EmbeddedStore
from penstock.state.store import StoreChanges
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.state.watcher import Watcher


@dataclass
class Cluster:
    store: EmbeddedStore
    view: ClusterView
    watcher: Watcher
    config: BrokerConfig
    topics: TopicService
    removal: TopicRemoval
    configs: ConfigService

    async def close(self) -> None:
        await self.removal.close()
        await self.watcher.stop()
        await self.store.close()


class LaggingStore(EmbeddedStore):
    """A store whose watches deliver with a delay."""

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[StoreChanges]:
        async for changes in super().watch(prefix, from_revision):
            for _ in range(50):
                await asyncio.sleep(0)
            yield changes


async def open_cluster(path: str, lagging: bool = False, **settings: str) -> Cluster:
    store = LaggingStore(path) if lagging else EmbeddedStore(path)
    config = BrokerConfig.from_texts({name.replace("_", "."): text for name, text in settings.items()})
    await ensure_cluster(store, uuid4)
    await register_embedded(store, 0, [BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092)], None, UUID(int=7), 1)
    view = ClusterView()
    watcher = Watcher(store, view, config)
    await watcher.start()
    topics = TopicService(store, view, watcher, SystemClock(), config, uuid4, OnlyBroker())
    configs = ConfigService(store, view, watcher, config, SystemClock())
    return Cluster(store, view, watcher, config, topics, TopicRemoval(store, view, watcher), configs)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    opened = await open_cluster(":memory:")
    yield opened
    await opened.close()


@pytest.fixture
async def lagging_cluster() -> AsyncIterator[Cluster]:
    opened = await open_cluster(":memory:", lagging=True)
    yield opened
    await opened.close()


@pytest.fixture
def opener(tmp_path: Path):
    """Return a function that opens a cluster on the same data each time."""

    async def open_again(**settings: str) -> Cluster:
        return await open_cluster(str(tmp_path / "state.db"), **settings)

    return open_again
