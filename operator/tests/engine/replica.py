"""One replica of the operator as a process, with a controller that signs each object's status, for tests of the kopf
integration and of failover. Run as `python replica.py NAME PORT`, with KUBECONFIG set; PORT 0 is any."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from penstock.runtime.clock import SystemClock
from penstock.runtime.logging import configure
from penstock_operator.engine.assembly import (
    ControllerSet,
    OperatorIdentity,
    OperatorRuntime,
    build_operator,
    create_runtime,
)
from penstock_operator.engine.freshness import Freshness
from penstock_operator.engine.operator import Operator
from penstock_operator.engine.ports import ReconcileResult
from penstock_operator.engine.watching import quiet_kopf
from penstock_operator.kube.client import KubeClient
from penstock_operator.kube.events import EventRecorder
from penstock_operator.kube.http import Requests, configuration
from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.kube import CONSUMER_GROUPS, Kube


class Signing:
    """Writes the replica's name into the status if it differs."""

    batch = 100

    def __init__(self, made: OperatorRuntime, name: str) -> None:
        self._made, self.name = made, name
        self.looks: list[ObjectKey] = []
        self.deleted: list[str] = []

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        self.looks.extend(keys)
        return {key: result for key in keys for result in [await self._look(key)]}

    async def _look(self, key: ObjectKey) -> ReconcileResult:
        body = self._made.cache.get(CONSUMER_GROUPS, key.namespace, key.name)
        if body is None:
            if self._made.cache.deleted(CONSUMER_GROUPS, key.namespace, key.name) is not None:
                self.deleted.append(key.name)
            return ReconcileResult()
        wanted = {"state": self.name, "observedGeneration": body["metadata"]["generation"]}
        if body.get("status") != wanted:
            await self._made.kube.patch_status(CONSUMER_GROUPS, key.namespace, key.name, wanted)
        return ReconcileResult()

    async def resync(self) -> None:
        return


def make(name: str, namespaces: tuple[str, ...]) -> tuple[Operator, OperatorRuntime, Signing, list[Requests]]:
    clock, ends = SystemClock(), [Requests(configuration()), Requests(configuration(), threads=2)]

    def connect(freshness: Freshness) -> tuple[Kube, Kube]:
        events = EventRecorder(ends[0], clock, name, lambda error: None)
        return KubeClient(ends[0], events, freshness.written), KubeClient(ends[1], events)

    made = create_runtime(clock, connect)
    controller = Signing(made, name)
    home = namespaces[0] if namespaces else "ns"
    who = OperatorIdentity(namespaces, name, home, "test-operator")
    return build_operator(who, made, ControllerSet({"ConsumerGroup": controller}), resync_s=1.0), made, controller, ends


async def main(name: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    namespaces = tuple(filter(None, os.environ.get("WATCH_NAMESPACES", "").split(",")))
    operator, _, _, ends = make(name, namespaces)
    await operator.run(stop, "127.0.0.1", port)
    for requests in ends:
        requests.close()


if __name__ == "__main__":
    configure("info", "json")
    quiet_kopf()
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
