"""Fixtures with a store of each implementation."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from etcd_process import EtcdCluster

from penstock.state.embedded import EmbeddedStore
from penstock.state.etcd.options import EtcdOptions
from penstock.state.etcd.store import EtcdStore
from penstock.state.store import DeleteOp, Store

ETCD_SECOND_S = 0.3
"""Real duration of one test second with etcd, whose leases expire in real time."""


class HastyEtcdStore(EtcdStore):
    """An etcd store with shorter leases, so that tests are faster."""

    async def grant_lease(self, ttl_s: float) -> int:
        return await super().grant_lease(ttl_s * ETCD_SECOND_S)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Yield one etcd for all tests that do not damage it."""
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@asynccontextmanager
async def emptied(etcd: EtcdCluster) -> AsyncIterator[EtcdStore]:
    """Yield a store without keys on the shared etcd; revisions continue from the previous test."""
    store = HastyEtcdStore(EtcdOptions(endpoints=etcd.endpoints))
    await store.txn([], [DeleteOp("/", prefix=True)])
    assert (await store.range("")).entries == [], "a test left something outside of /"
    yield store
    await store.close()


@pytest.fixture
async def etcd_store(etcd: EtcdCluster) -> AsyncIterator[EtcdStore]:
    """Yield a store on etcd, for tests that are specific to etcd."""
    async with emptied(etcd) as store:
        yield store


@pytest.fixture(params=["embedded in a file", "embedded in memory", "etcd"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Yield a store of each kind, without keys."""
    if request.param == "etcd":
        async with emptied(request.getfixturevalue("etcd")) as on_etcd:
            yield on_etcd
        return
    made = EmbeddedStore(str(tmp_path / "state.db") if request.param == "embedded in a file" else ":memory:")
    yield made
    await made.close()


@pytest.fixture
async def advance(request: pytest.FixtureRequest) -> Callable[[float], Awaitable[None]]:
    """Return a function that advances the loop's clock and runs due callbacks; with etcd, it waits."""
    if kind_of_store(request) == "etcd":

        async def wait(seconds: float) -> None:
            await asyncio.sleep(seconds * ETCD_SECOND_S)

        return wait
    loop = asyncio.get_running_loop()
    real_time, passed = loop.time, [0.0]
    loop.time = lambda: real_time() + passed[0]  # type: ignore[method-assign]

    async def advance(seconds: float) -> None:
        passed[0] += seconds
        for _ in range(3):
            await asyncio.sleep(0)

    return advance


def kind_of_store(request: pytest.FixtureRequest) -> str | None:
    spec = getattr(request.node, "callspec", None)
    return None if spec is None else spec.params.get("store")
