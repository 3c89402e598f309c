"""Two replicas as processes: after the leader is killed, the standby takes over. `test_lease` measures how soon."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from doubles.api_server import ApiServer

from penstock_operator.ports.kube import CONSUMER_GROUPS, LEASES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

REPLICA = Path(__file__).parent / "replica.py"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    running = await ApiServer().start()
    running.kubeconfig(tmp_path)
    yield running
    await running.stop()


class Replicas:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str) -> None:
        env = {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig"), "WATCH_NAMESPACES": "ns"}
        log = (self.folder / f"{name}.log").open("wb")
        self.processes[name] = await asyncio.create_subprocess_exec(
            sys.executable, str(REPLICA), name, "0", env=env, stderr=log, stdout=log
        )

    async def end(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    await made.end()


def holder(server: ApiServer) -> str:
    lease = server.kube.read(LEASES, "ns", "test-operator")
    return lease["spec"].get("holderIdentity", "") if lease else ""


async def start_standby(replicas: Replicas, server: ApiServer, name: str) -> None:
    """Start a replica and wait until it watches objects, which it has then listed."""
    watch = "WATCH", CONSUMER_GROUPS.plural
    watches = server.requests[watch]
    await replicas.start(name)
    async with asyncio.timeout(60):
        while server.requests[watch] == watches:
            await asyncio.sleep(0.05)


async def signed_by(server: ApiServer, name: str, by: str, within_s: float) -> float:
    """Create an object and wait until `by` has written its status. Return the duration in seconds."""
    body = {"metadata": {"name": name, "namespace": "ns"}, "spec": {"clusterRef": {"name": "c"}}}
    server.kube.put(CONSUMER_GROUPS, body)
    loop = asyncio.get_running_loop()
    began = loop.time()

    def state() -> Any:
        return (server.kube.read(CONSUMER_GROUPS, "ns", name) or {}).get("status", {}).get("state")

    async with asyncio.timeout(within_s):
        while state() != by:
            assert state() in (None, by), f"signed by {state()}"
            await asyncio.sleep(0.05)
    return loop.time() - began


async def test_the_standby_leads_after_a_kill_9_of_the_leader_and_after_its_sigterm(
    server: ApiServer, replicas: Replicas
) -> None:
    await replicas.start("a")
    await signed_by(server, "first", "a", 60)
    await start_standby(replicas, server, "b")
    assert holder(server) == "a"
    replicas.processes["a"].send_signal(signal.SIGKILL)
    # The lease expires after 15 s and the standby checks every 2 s; the rest allows for a slow machine.
    took = await signed_by(server, "second", "b", 90)
    assert took > 5, "a Lease that another process holds is not acquired"
    await start_standby(replicas, server, "a")
    replicas.processes["b"].send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(replicas.processes["b"].wait(), 60) == 0
    took = await signed_by(server, "third", "a", 90)
    print("after SIGTERM", took)  # noqa: T201
    assert server.kube.read(LEASES, "ns", "test-operator")["spec"]["leaseTransitions"] == 2
