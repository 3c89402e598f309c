"""A cluster of one broker on an in-memory store; requests and responses pass through the codec."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.api.broker_state import BrokerState, ListenerCertificate
from penstock.api.client_quotas import ClientQuotasApi
from penstock.api.cluster import ClusterApi
from penstock.api.configs import ConfigsApi
from penstock.api.exchange import PeerInfo
from penstock.api.log_dirs import LogDirsApi, LogDirState
from penstock.api.metadata import MetadataApi
from penstock.api.pending_elections import PendingElections
from penstock.api.quorum import QuorumApi
from penstock.api.reassignments import ReassignmentsApi
from penstock.api.routes import RequestContext, Route
from penstock.api.topics import TopicsApi
from penstock.config.broker import BrokerConfig
from penstock.control.broker_availability import OnlyBroker
from penstock.control.client_quotas import ClientQuotaService
from penstock.control.config_admin import ConfigService
from penstock.control.controller.reassignment_requests import ReassignmentRequests
from penstock.control.membership import ensure_cluster, register_embedded
from penstock.control.topic_admin import TopicService
from penstock.control.topic_removal import TopicRemoval
from penstock.replica.lost_leaders import LostLeaders
from penstock.runtime.clock import SystemClock
from penstock.security.quotas.request_meter import RequestMeter
from penstock.state.embedded import EmbeddedStore
from penstock.state.store import StoreEntry
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.state.watcher import Watcher
from penstock.wire import codec
from penstock.wire.schema import Payload

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "replica"), str(HERE.parent / "log")]


@dataclass
class Disk:
    """The log directories for DescribeLogDirs."""

    states: list[LogDirState] = field(default_factory=lambda: [LogDirState("/data", False, 1000, 400)])
    sizes: dict[tuple[UUID, int], int] = field(default_factory=dict)

    def log_dirs(self) -> list[LogDirState]:
        return self.states

    def partition_bytes(self, path: str, topic_id: UUID, index: int) -> int | None:
        return self.sizes.get((topic_id, index))


class FixedClock:
    """A clock that does not advance."""

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def boot_ms(self) -> int:
        return 0


class Waits:
    """The exchange of a connected client that has sent another request."""

    is_followed = True
    is_disconnected = False


class Asker:
    """Sends requests of any version to the handlers, encoded and decoded as on the wire."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = {route.request: route for route in routes}
        self.meter: RequestMeter | None = None

    async def __call__(self, request: Payload, version: int, listener: str = "INSIDE") -> Any:
        route = self.routes[type(request)]
        assert route.first <= version <= route.last
        received = route.decode(version, memoryview(codec.encode(request, version)), 0)
        peer = PeerInfo(1, listener, "127.0.0.1", 5)
        context = RequestContext(version, 1, "test", peer, Waits(), self.meter)  # type: ignore[arg-type]
        answer = route.handler(received, context)
        response = await answer if inspect.isawaitable(answer) else answer
        assert type(response) is route.response
        return codec.decode(route.response, version, codec.encode(response, version))

    def failed(self, request: Payload, version: int, error: int) -> Any:
        route = self.routes[type(request)]
        assert route.failure is not None
        return codec.decode(route.response, version, codec.encode(route.failure(request, error), version))


class ObservedStore(EmbeddedStore):
    """A store that calls `on_get` with the key after each read of a single entry; what it raises, the read raises."""

    on_get: Callable[[str], Awaitable[None]] | None = None

    async def get(self, key: str) -> StoreEntry | None:
        entry = await super().get(key)
        if self.on_get is not None:
            await self.on_get(key)
        return entry


@dataclass
class Broker:
    ask: Asker
    store: ObservedStore
    view: ClusterView
    config: BrokerConfig
    admin: TopicService
    disk: Disk


@pytest.fixture
def settings() -> dict[str, str]:
    """Return the broker's settings; tests override them by parametrization."""
    return {}


@pytest.fixture
def certificates() -> list[ListenerCertificate]:
    """Return the certificates of the broker's ports; tests override them by parametrization."""
    return []


@pytest.fixture
async def broker(settings: dict[str, str], certificates: list[ListenerCertificate]) -> AsyncIterator[Broker]:
    store, view, config = ObservedStore(":memory:"), ClusterView(), BrokerConfig.from_texts(settings)
    await ensure_cluster(store, uuid4)
    endpoints = [BrokerEndpoint("INSIDE", "10.0.0.1", 9092), BrokerEndpoint("OUTSIDE", "example.org", 19092)]
    await register_embedded(store, 0, endpoints, "rack-1", UUID(int=7), 1)
    watcher = Watcher(store, view, config)
    await watcher.start()
    admin = TopicService(store, view, watcher, SystemClock(), config, uuid4, OnlyBroker())
    removal = TopicRemoval(store, view, watcher)
    await removal.start([])
    configs = ConfigService(store, view, watcher, config, SystemClock())
    disk = Disk()
    apis = [
        MetadataApi(view, admin, config, PendingElections(view, LostLeaders(view))),
        TopicsApi(view, admin, config),
        ConfigsApi(view, configs, config, BrokerState(view, config, certificates)),
        ClientQuotasApi(ClientQuotaService(store, view, watcher)),
        ClusterApi(view),
        ReassignmentsApi(view, ReassignmentRequests(store, view, watcher, SystemClock(), config)),
        QuorumApi(store, view, FixedClock()),
        LogDirsApi(view, disk),
    ]
    routes = [route for api in apis for route in api.routes()]
    yield Broker(Asker(routes), store, view, config, admin, disk)
    await removal.close()
    await watcher.stop()
    await store.close()
