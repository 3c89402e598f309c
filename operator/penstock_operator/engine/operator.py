"""Starts and stops the components of the operator in order. Built by `assembly`, run by `main`.

Every replica watches and lists, so that a standby has a complete cache when it takes over; only the leader reconciles.
A process requests the Lease after its first lists are complete.
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
from penstock_operator.engine.relist import PeriodicRelist
from penstock_operator.engine.routing import Routing
from penstock_operator.engine.runner import RESYNC_S, ReconcileRunner
from penstock_operator.engine.watching import WatchStreams
from penstock_operator.ports.kube import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    CONSUMER_GROUPS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    TOPICS,
    USERS,
    Kube,
    KubeError,
    KubeResource,
)

OURS: tuple[KubeResource, ...] = (CLUSTERS, TOPICS, CONSUMER_GROUPS, USERS)
OWNED: tuple[KubeResource, ...] = (STATEFUL_SETS, SERVICES, CONFIG_MAPS, PODS, CLAIMS, BUDGETS, NETWORK_POLICIES)
"""Watched by the label `penstock.io/cluster`."""
STUCK_S = 400.0
"""Duration after which a batch counts as stuck: a batch and its halves each time out after `runner.BATCH_TIMEOUT_S`."""
STOP_S = 5.0

log = get_logger("operator")


@dataclass(slots=True)
class OperatorComponents:
    """Components of the operator. `make_lease` receives the callback for leadership changes."""

    kube: Kube
    queue: WorkQueue
    routing: Routing
    metrics: OperatorMetrics
    sweep: PeriodicRelist
    watching: WatchStreams
    freshness: Freshness
    runners: Sequence[ReconcileRunner]
    make_lease: Callable[[Callable[[bool], None]], LeaderLease]
    background: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
    """Background tasks of the leader, by name."""
    resync_s: float = RESYNC_S


class Operator:
    """One process of the operator."""

    def __init__(self, parts: OperatorComponents) -> None:
        self._parts = parts
        parts.routing.is_active = False
        self._lease = parts.make_lease(self._leadership_changed)
        self._leading: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] | None = None
        self.health = OperatorHealth(
            parts.metrics.text,
            live={"reconcile": self._stuck, "watch": parts.freshness.why_stale},
            ready={"lists": lambda: None if parts.sweep.is_complete else "the first lists are not complete"},
        )

    async def run(self, stop: asyncio.Event, host: str, port: int) -> None:
        """Run until `stop` is set. Raises on fatal errors: the port is in use, or the watches fail."""
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
                    ended.result()  # Raises: these tasks never return.
        finally:
            await self._stop([*going, stopping])

    async def _stop(self, going: Sequence[asyncio.Future[Any]]) -> None:
        await self._cancel(self._leading)
        await self._lease.release()
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        await self.health.close()
        if self._failed is not None:
            self._failed.cancel()

    async def _list_then_lead(self) -> None:
        await self._parts.sweep.once()
        log.info("first lists are complete", **{r.plural: len(self._parts.sweep.cache.list_objects(r)) for r in OURS})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._parts.sweep.run(), name="sweeps")
            tasks.create_task(self._lease.run(), name="lease")

    def _leadership_changed(self, is_leader: bool) -> None:
        self._parts.metrics.set_leader(is_leader)
        self._parts.routing.is_active = is_leader
        before = self._leading
        if is_leader:
            self._leading = asyncio.create_task(self._lead(before), name="leading")
            self._leading.add_done_callback(self._leading_ended)
        elif before is not None:
            before.cancel()

    async def _lead(self, before: asyncio.Task[None] | None) -> None:
        await self._cancel(before)
        self._parts.sweep.cache.distrust_deletions()
        self._parts.routing.put_all()
        async with asyncio.TaskGroup() as tasks:
            for runner in self._parts.runners:
                tasks.create_task(runner.run(self._parts.resync_s), name=f"runner {runner.kind}")
            for name, background in self._parts.background.items():
                tasks.create_task(background(), name=name)

    def _leading_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and self._failed and not self._failed.done():
            self._failed.set_exception(task.exception() or RuntimeError("unknown"))

    async def _cancel(self, task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.done():
            task.cancel()
            with contextlib.suppress(Exception):
                await asyncio.wait([task], timeout=STOP_S)

    def _stuck(self) -> str | None:
        for runner in self._parts.runners:
            if runner.stuck_for_s() > STUCK_S:
                return f"a batch of {runner.kind} has been running for {runner.stuck_for_s():.0f} s"
        return None

    async def _may_read_nodes(self) -> bool:
        """Whether the operator can list nodes, which are optional (zones and addresses). Checked once, at the start."""
        while True:
            try:
                async for _ in self._parts.kube.pages(NODES, None):
                    break
            except KubeError as error:
                if error.status == 403:
                    log.info("cannot read nodes, zones are unknown; set rbac.nodes=true in the chart to grant access")
                    return False
                log.warning("API server does not answer; retrying", why=str(error))
                await asyncio.sleep(2.0)
            else:
                self._parts.sweep.add(NODES, {})
                return True
