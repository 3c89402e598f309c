"""Reconciles `Cluster` objects. Created by `main`, called by `engine.runner`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from penstock.runtime.logging import get_logger
from penstock_operator.clusters.action_runner import ActionRunner
from penstock_operator.clusters.certificate_issuer import CertificateIssuer
from penstock_operator.clusters.certificate_observer import CertificateObserver
from penstock_operator.clusters.observer import LARGE_TOPIC_COUNT, ClusterMemory, ClusterObserver
from penstock_operator.clusters.store_actions import StoreActionRunner
from penstock_operator.clusters.store_observer import StoreObserver
from penstock_operator.engine.invalid_objects import report_invalid
from penstock_operator.engine.ports import ConnectionPool, Objects, Queue, ReconcileResult
from penstock_operator.model.cluster import Cluster, ClusterStatus
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.parse import InvalidResource, as_json, parse
from penstock_operator.ports.brokers import BrokerProber
from penstock_operator.ports.kube import CLUSTERS, Kube, KubeError, Object
from penstock_operator.ports.state_store import StateStoreClient
from penstock_operator.reconcile.cluster.actions import (
    AddStoreMember,
    ClusterAction,
    CreateRestorePod,
    MovePod,
    MoveStoreLeader,
    PromoteStoreMember,
    RemoveStoreMember,
    RestartPod,
    RestartStorePod,
    ScaleDownStatefulSet,
    ScaleStore,
)
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.reconcile import ReconcileOutcome, reconcile
from penstock_operator.reconcile.plan import ReconcilePlan

NEED_FRESH_DATA = (
    RestartPod, MovePod, ScaleDownStatefulSet, RemoveStoreMember, AddStoreMember, RestartStorePod, ScaleStore,
    CreateRestorePod, PromoteStoreMember, MoveStoreLeader,
)  # fmt: skip

log = get_logger("penstock.operator.clusters")


class ClusterController:
    """The `engine.ports.ResourceController` of Clusters. `image` is the default image of the brokers, `operator_image`
    that of pods that take snapshots."""

    batch = 16

    def __init__(
        self,
        kube: Kube,
        objects: Objects,
        connections: ConnectionPool,
        queue: Queue,
        *,
        image: str,
        operator_image: str = "",
        prober: BrokerProber,
        store: StateStoreClient,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._kube, self._objects, self._queue = kube, objects, queue
        self._observer, self._action_runner = (
            ClusterObserver(
                kube, objects, connections, CertificateObserver(kube, prober), StoreObserver(kube, objects, store)
            ),
            ActionRunner(
                kube,
                connections,
                CertificateIssuer(kube, lambda: datetime.fromtimestamp(wall(), UTC)),
                StoreActionRunner(kube, store),
            ),
        )
        self._image, self._operator_image, self._now, self._wall = image, operator_image, now, wall
        self._memories: dict[str, ClusterMemory] = {}
        """By UID of the Cluster."""

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        """Reconcile each Cluster once. One that fails does not affect the others."""
        return dict(zip(keys, await asyncio.gather(*map(self._reconcile_key, keys)), strict=True))

    async def resync(self) -> None:
        """Queue all Clusters and drop the memory of deleted ones."""
        uids = set()
        for body in self._objects.list_objects(CLUSTERS):
            uids.add(body["metadata"].get("uid"))
            self._queue.put(ObjectKey("Cluster", body["metadata"]["namespace"], body["metadata"]["name"]))
        self._memories = {uid: memory for uid, memory in self._memories.items() if uid in uids}

    async def _reconcile_key(self, key: ObjectKey) -> ReconcileResult:
        body = self._objects.get(CLUSTERS, key.namespace, key.name)
        if body is None or body["metadata"].get("deletionTimestamp") is not None:
            return ReconcileResult()  # Kubernetes deletes owned objects; claims are retained
        try:
            cluster = parse("Cluster", body)
        except InvalidResource as e:
            return await report_invalid(self._kube, CLUSTERS, body, e, self._stamp())
        memory = self._memories.setdefault(cluster.metadata.uid, ClusterMemory())
        try:
            return await self._reconcile(cluster, body, memory)
        except KubeError as e:
            return ReconcileResult(error=str(e))
        except Exception as e:  # must not affect the other clusters of the batch
            log.exception("failed to reconcile a cluster", namespace=key.namespace, name=key.name)
            return ReconcileResult(error=f"{type(e).__name__}: {e}")

    async def _reconcile(self, cluster: Cluster, body: Object, memory: ClusterMemory) -> ReconcileResult:
        found = await self._decide(cluster, memory, fresh=False)
        if any(isinstance(action, NEED_FRESH_DATA) for action in found.plan.actions):
            # Actions that stop a pod or change etcd's members need current data: the cache may be late.
            found = await self._decide(cluster, memory, fresh=True)
        memory.planned = found.planned
        plan = found.plan
        restarts = any(isinstance(action, RestartPod) for action in plan.actions)
        if restarts:  # The status states the effect on clients before the restart.
            await self._write_status(cluster, body, plan)
        events, problem = await self._action_runner.act(cluster, plan.actions, memory, self._now())
        is_new_problem = problem != memory.failure
        memory.failure = problem
        if events:
            await self._kube.record_events(body, events)
        if not restarts:
            await self._write_status(cluster, body, plan)
        if problem:
            if is_new_problem:
                log.warning("failed to execute the plan of a cluster", cluster=cluster.metadata.name, problem=problem)
            return ReconcileResult(error=problem)
        return ReconcileResult(0.0 if is_new_problem else plan.requeue_after_s)

    async def _decide(self, cluster: Cluster, memory: ClusterMemory, *, fresh: bool) -> ReconcileOutcome:
        observed = await self._observer.observe(cluster, memory, self._stamp(), self._now(), fresh=fresh)
        if observed.reported is not None and len(observed.reported.topics) > LARGE_TOPIC_COUNT:
            return await asyncio.to_thread(self._plan, cluster, observed, memory)
        return self._plan(cluster, observed, memory)

    def _plan(self, cluster: Cluster, observed: ObservedCluster, memory: ClusterMemory) -> ReconcileOutcome:
        return reconcile(
            cluster, observed, image=self._image, operator_image=self._operator_image, planned=memory.planned
        )

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def _write_status(
        self, cluster: Cluster, body: Object, plan: ReconcilePlan[ClusterAction, ClusterStatus]
    ) -> None:
        """Write the status if it changed, and record the plan's Events."""
        status = as_json(plan.status)
        if status != (body.get("status") or {}):
            meta = cluster.metadata
            await self._kube.patch_status(CLUSTERS, meta.namespace, meta.name, status, meta.uid)
        if plan.events:
            await self._kube.record_events(body, plan.events)
