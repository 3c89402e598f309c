"""Makes clusters what their resources say. Run by `engine`, put together in `main`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from penstock.runtime.logging import get_logger
from penstock_operator.clusters.action_runner import ActionRunner
from penstock_operator.clusters.observer import LARGE, ClusterMemory, ClusterObserver
from penstock_operator.engine.ports import ConnectionPool, Objects, Queue, ReconcileResult
from penstock_operator.engine.refusals import tell_refused
from penstock_operator.model.cluster import Cluster, ClusterStatus
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.parse import InvalidResource, as_json, parse
from penstock_operator.ports.kube import CLUSTERS, Kube, KubeError, Object
from penstock_operator.reconcile.cluster.actions import ClusterAction, ResizeSet, RestartPod
from penstock_operator.reconcile.cluster.reconcile import Reconciled, reconcile
from penstock_operator.reconcile.plan import ReconcilePlan

log = get_logger("penstock.operator.clusters")


class ClusterController:
    """An `engine.ports.Controller`. `image` is the brokers', where a resource names none."""

    batch = 16

    def __init__(
        self,
        kube: Kube,
        objects: Objects,
        connections: ConnectionPool,
        queue: Queue,
        *,
        image: str,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._kube, self._objects, self._queue = kube, objects, queue
        self._observing, self._acting = ClusterObserver(kube, objects, connections), ActionRunner(kube, connections)
        self._image, self._now, self._wall = image, now, wall
        self._memories: dict[str, ClusterMemory] = {}
        """By UID."""

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        return dict(zip(keys, await asyncio.gather(*map(self._look, keys)), strict=True))

    async def resync(self) -> None:
        uids = set()
        for body in self._objects.of(CLUSTERS):
            uids.add(body["metadata"].get("uid"))
            self._queue.put(ObjectKey("Cluster", body["metadata"]["namespace"], body["metadata"]["name"]))
        self._memories = {uid: memory for uid, memory in self._memories.items() if uid in uids}

    async def _look(self, key: ObjectKey) -> ReconcileResult:
        body = self._objects.get(CLUSTERS, key.namespace, key.name)
        if body is None or body["metadata"].get("deletionTimestamp") is not None:
            return ReconcileResult()  # what it owns goes with it, its claims stay
        try:
            cluster = parse("Cluster", body)
        except InvalidResource as e:
            return await tell_refused(self._kube, CLUSTERS, body, e, self._stamp())
        memory = self._memories.setdefault(cluster.metadata.uid, ClusterMemory())
        try:
            return await self._reconcile(cluster, body, memory)
        except KubeError as e:
            return ReconcileResult(error=str(e))
        except Exception as e:  # one cluster's trouble is not the others'
            log.exception("a cluster could not be reconciled", namespace=key.namespace, name=key.name)
            return ReconcileResult(error=f"{type(e).__name__}: {e}")

    async def _reconcile(self, cluster: Cluster, body: Object, memory: ClusterMemory) -> ReconcileResult:
        found = await self._decide(cluster, memory, fresh=False)
        if any(isinstance(action, RestartPod | ResizeSet) for action in found.plan.actions):
            # What takes a broker away is decided by what is true now, not by copies that may be late.
            found = await self._decide(cluster, memory, fresh=True)
        memory.planned = found.planned
        plan = found.plan
        restarts = any(isinstance(action, RestartPod) for action in plan.actions)
        if restarts:  # What a restart means to clients is said before it happens.
            await self._say(cluster, body, plan)
        told, problem = await self._acting.act(cluster, plan.actions, memory, self._now())
        is_news = problem != memory.failure
        memory.failure = problem
        if told:
            await self._kube.tell(body, told)
        if not restarts:
            await self._say(cluster, body, plan)
        if problem:
            if is_news:
                log.warning("a cluster's plan failed", cluster=cluster.metadata.name, problem=problem)
            return ReconcileResult(error=problem)
        return ReconcileResult(0.0 if is_news else plan.look_again_s)

    async def _decide(self, cluster: Cluster, memory: ClusterMemory, *, fresh: bool) -> Reconciled:
        observed = await self._observing.look(cluster, memory, self._stamp(), self._now(), fresh=fresh)
        if observed.said is not None and len(observed.said.topics) > LARGE:
            return await asyncio.to_thread(reconcile, cluster, observed, image=self._image, planned=memory.planned)
        return reconcile(cluster, observed, image=self._image, planned=memory.planned)

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def _say(self, cluster: Cluster, body: Object, plan: ReconcilePlan[ClusterAction, ClusterStatus]) -> None:
        """Writes the status where it differs from what is there, and Events."""
        wanted = as_json(plan.status)
        if wanted != (body.get("status") or {}):
            meta = cluster.metadata
            await self._kube.patch_status(CLUSTERS, meta.namespace, meta.name, wanted, meta.uid)
        if plan.happenings:
            await self._kube.tell(body, plan.happenings)
