"""The client with the API server double and, if PENSTOCK_TEST_CLUSTER is a namespace to use, with the API server of
KUBECONFIG."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from doubles.api_server import ApiServer

from penstock.runtime.clock import SystemClock
from penstock_operator.kube.client import KubeClient
from penstock_operator.kube.events import EventRecorder
from penstock_operator.kube.http import Requests, configuration

REAL = os.environ.get("PENSTOCK_TEST_CLUSTER", "")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    running = await ApiServer().start()
    yield running
    await running.stop()


class Client:
    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.written: list[tuple[str, str, str]] = []
        self.failed: list[Exception] = []
        self.requests = Requests(configuration(), timeout_s=10)
        self.events = EventRecorder(self.requests, SystemClock(), "test", self.failed.append)
        self.kube = KubeClient(self.requests, self.events, self._written)

    def _written(self, method: str, resource: object, body: dict[str, object] | None) -> None:
        self.written.append((method, resource.plural, body["metadata"]["name"] if body else ""))  # type: ignore[attr-defined,index]


@pytest.fixture(params=["simulated", "real"] if REAL else ["simulated"])
async def client(
    request: pytest.FixtureRequest, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Client]:
    if request.param == "simulated":
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    made = Client(REAL if request.param == "real" else "ns")
    yield made
    made.requests.close()
