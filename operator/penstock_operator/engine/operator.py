"""The parts of the operator, started and stopped in their order. `main` hands them in and runs this.

Watches and lists go on in every replica, so that a standby knows all when it takes over; only the leader looks at keys.
The first lists come before the lease is asked for: who leads can act.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.runtime.logging import get_logger
from penstock_operator.engine.freshness import Freshness
from penstock_operator.engine.health import OperatorHealth
from penstock_operator.engine.lease import LeaderLease
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.queue import WorkQueue
from penstock_operator.engine.routing import Routing
from penstock_operator.engine.runner import RESYNC_S, ReconcileRunner
from penstock_operator.engine.sweep import Sweep
from penstock_operator.engine.watching import Watching
from penstock_operator.ports.kube import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    CONSUMER_GROUPS,
    NODES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    TOPICS,
    Kube,
    KubeError,
    KubeResource,
)

OURS: tuple[KubeResource, ...] = (CLUSTERS, TOPICS, CONSUMER_GROUPS)
OWNED: tuple[KubeResource, ...] = (STATEFUL_SETS, SERVICES, CONFIG_MAPS, PODS, CLAIMS, BUDGETS)
"""Watched by the label `penstock.io/cluster`."""
STUCK_S = 400.0
"""A batch is cut off after `runner.BATCH_TIMEOUT_S`, once for itself and once more for each half of it."""
STOP_S = 5.0

log = get_logger("operator")


@dataclass(slots=True)
class OperatorParts:
    """`make_lease` is given what to call when leadership comes or goes."""

    kube: Kube
    queue: WorkQueue
    routing: Routing
    metrics: OperatorMetrics
    sweep: Sweep
    watching: Watching
    freshness: Freshness
    runners: Sequence[ReconcileRunner]
    make_lease: Callable[[Callable[[bool], None]], LeaderLease]
    background: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
    """What else goes on while this one leads, by name."""
    resync_s: float = RESYNC_S


class Operator:
    """One process of the operator."""

    def __init__(self, parts: OperatorParts) -> None:
        self._parts = parts
        parts.routing.acts = False
        self._lease = parts.make_lease(self._leadership_changed)
        self._leading: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] | None = None
        self.health = OperatorHealth(
            parts.metrics.text,
            live={"reconcile": self._stuck, "watch": parts.freshness.why_stale},
            ready={"lists": lambda: None if parts.sweep.is_complete else "the first lists have not come"},
        )

    async def run(self, stop: asyncio.Event, host: str, port: int) -> None:
        """Until `stop` is set. Raises what ends the process: a port that is taken, watches that cannot go on."""
        self._failed = asyncio.get_running_loop().create_future()
        await self.health.serve(host, port)
        resources = [*OURS, *OWNED, *([NODES] if await self._may_read_nodes() else [])]
        going: list[asyncio.Future[Any]] = [
            asyncio.create_task(self._parts.watching.run(resources), name="watches"),
            asyncio.create_task(self._list_then_lead(), name="lists and lease"),
        ]
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait([*going, stopping, self._failed], return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                if ended is not stopping:
                    ended.result()  # Raises: none of them ends by itself.
        finally:
            await self._stop([*going, stopping])

    async def _stop(self, going: Sequence[asyncio.Future[Any]]) -> None:
        await self._end(self._leading)
        await self._lease.release()
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        await self.health.close()
        if self._failed is not None:
            self._failed.cancel()

    async def _list_then_lead(self) -> None:
        await self._parts.sweep.once()
        log.info("the first lists have come", **{r.plural: len(self._parts.sweep.copies.of(r)) for r in OURS})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._parts.sweep.run(), name="sweeps")
            tasks.create_task(self._lease.run(), name="lease")

    def _leadership_changed(self, is_leader: bool) -> None:
        self._parts.metrics.leads(is_leader)
        self._parts.routing.acts = is_leader
        before = self._leading
        if is_leader:
            self._leading = asyncio.create_task(self._lead(before), name="leading")
            self._leading.add_done_callback(self._leading_ended)
        elif before is not None:
            before.cancel()

    async def _lead(self, before: asyncio.Task[None] | None) -> None:
        await self._end(before)
        self._parts.sweep.copies.distrust()
        self._parts.routing.put_all()
        async with asyncio.TaskGroup() as tasks:
            for runner in self._parts.runners:
                tasks.create_task(runner.run(self._parts.resync_s), name=f"runner {runner.kind}")
            for name, background in self._parts.background.items():
                tasks.create_task(background(), name=name)

    def _leading_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and self._failed and not self._failed.done():
            self._failed.set_exception(task.exception() or RuntimeError("unknown"))

    async def _end(self, task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.done():
            task.cancel()
            with contextlib.suppress(Exception):
                await asyncio.wait([task], timeout=STOP_S)

    def _stuck(self) -> str | None:
        for runner in self._parts.runners:
            if runner.stuck_for_s() > STUCK_S:
                return f"a batch of {runner.kind} has been under way for {runner.stuck_for_s():.0f} s"
        return None

    async def _may_read_nodes(self) -> bool:
        """Nodes are optional: they name zones and addresses. Asked once, at the start."""
        while True:
            try:
                async for _ in self._parts.kube.pages(NODES, None):
                    break
            except KubeError as error:
                if error.status == 403:
                    log.info("nodes may not be read: zones stay unknown (the chart's value rbac.nodes gives the right)")
                    return False
                log.warning("the API server does not answer: asked again", why=str(error))
                await asyncio.sleep(2.0)
            else:
                self._parts.sweep.add(NODES, {})
                return True
