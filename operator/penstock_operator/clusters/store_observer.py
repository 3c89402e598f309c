"""Observes the etcd of a cluster, and the pods of the companion etcd. Used by `observer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock_operator.clusters.store_access import store_access
from penstock_operator.engine.ports import Objects
from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import CLAIMS, CONFIG_MAPS, PODS, STATEFUL_SETS, Kube, KubeError, Object
from penstock_operator.ports.state_store import StateStoreClient, StateStoreError
from penstock_operator.reconcile.cluster.observed_store import (
    ObservedStore,
    ObservedStoreClaim,
    ObservedStorePod,
    ObservedTaskPod,
    read_store_claim,
    read_store_pod,
    read_task_pod,
)
from penstock_operator.reconcile.cluster.store_storage import is_settled
from penstock_operator.specs import companion, names
from penstock_operator.specs.cluster_annotations import FINAL_PHASES


class StoreObserver:
    """Builds `ObservedStore` from etcd, the API server and the cache."""

    def __init__(self, kube: Kube, objects: Objects, store: StateStoreClient) -> None:
        self._kube, self._objects, self._store = kube, objects, store

    async def observe(
        self, cluster: Cluster, *, before: ObservedStore | None = None, fresh: bool = False
    ) -> ObservedStore | None:
        """Observe the etcd of `etcd.endpoints`; None for a sidecar etcd, whose readiness is that of its pods. With
        `fresh`, pods are current instead of cached. `before` is the last observation: claims that need no change are
        not read again. Raises `KubeError`, only with `fresh`."""
        if not cluster.spec.etcd.endpoints:
            return None
        namespace, name = cluster.metadata.namespace, cluster.metadata.name
        report, error = None, ""
        try:
            access = await store_access(self._kube, cluster)
            report = await self._store.observe(observed_endpoints(cluster, before), access)
        except StateStoreError as e:
            error = str(e)
        replicas, pod_spec = await self._stateful_set(cluster)
        found = ObservedStore(report, error, replicas=replicas, pod_spec=pod_spec)
        found = self.refresh(cluster, replace(found, next_claim=await self._next_claim(cluster, replicas)))
        found = replace(found, claims=await self._claims(cluster, found.pods, before))
        if not fresh:
            return found
        bodies = await self._kube.list(PODS, namespace, {names.CLUSTER_LABEL: name})
        found = replace(found, tasks=task_pods(cluster, bodies))
        stateful_set = cluster.spec.etcd.stateful_set
        if stateful_set is None:
            return found
        return replace(
            found,
            pods=store_pods(cluster, bodies),
            bootstrap=await self._kube.get(CONFIG_MAPS, namespace, companion.bootstrap_name(stateful_set)),
        )

    async def _claims(
        self, cluster: Cluster, pods: Sequence[ObservedStorePod], before: ObservedStore | None
    ) -> tuple[ObservedStoreClaim, ...]:
        """Return the claims of the pods' volumes. They have no label of the cluster, so no watch reports them."""
        storage = cluster.spec.etcd.storage
        if storage is None:
            return ()
        known = before.claims if before is not None else ()
        owners = [(pod.claim, pod.uid) for pod in pods if pod.claim and not pod.is_terminating]
        if [(claim.name, claim.pod_uid) for claim in known] == owners and is_settled(storage.size, known):
            return known
        found = []
        for name, uid in owners:
            try:
                body = await self._kube.get(CLAIMS, cluster.metadata.namespace, name)
            except KubeError:
                return ()
            if body is not None:
                found.append(read_store_claim(uid, body))
        return tuple(found)

    async def _stateful_set(self, cluster: Cluster) -> tuple[int | None, Object]:
        """Return the replicas and the pod spec of the companion etcd if the cluster is or was hibernated, or if its
        etcd has to be restored or to get another number of members. A StatefulSet whose pods are not those of the
        Cluster does not count: the operator may have more rights than the author of the Cluster."""
        namespace, stateful_set = cluster.metadata.namespace, cluster.spec.etcd.stateful_set
        if stateful_set is None:
            return None, {}
        pods = self._objects.in_cluster(PODS, namespace, cluster.metadata.name)
        required = companion.required_pods(
            self._objects.get(CONFIG_MAPS, namespace, companion.bootstrap_name(stateful_set))
        )
        wanted = len(cluster.spec.etcd.endpoints)
        is_complete = len(store_pods(cluster, pods)) == wanted and required <= wanted
        if is_complete and names.HIBERNATE not in cluster.metadata.annotations and not is_restore_pending(cluster):
            return None, {}
        try:
            body = await self._kube.get(STATEFUL_SETS, namespace, stateful_set)
        except KubeError:
            return None, {}
        spec = (body or {}).get("spec") or {}
        template = spec.get("template") or {}
        labels, replicas = (template.get("metadata") or {}).get("labels") or {}, spec.get("replicas", 1)
        is_own = labels.get(names.CLUSTER_LABEL) == cluster.metadata.name
        return (replicas, template.get("spec") or {}) if is_own and isinstance(replicas, int) else (None, {})

    async def _next_claim(self, cluster: Cluster, replicas: int | None) -> str:
        """Return the claim that exists for the pod that the StatefulSet would add, or "". It has the data of an earlier
        member."""
        stateful_set = cluster.spec.etcd.stateful_set
        if stateful_set is None or not replicas or replicas >= len(cluster.spec.etcd.endpoints):
            return ""
        name = companion.claim_name(stateful_set, replicas)
        try:
            return name if await self._kube.get(CLAIMS, cluster.metadata.namespace, name) is not None else ""
        except KubeError:
            return name

    def refresh(self, cluster: Cluster, found: ObservedStore) -> ObservedStore:
        """Return the observed state with pods and ConfigMap from the cache."""
        namespace, stateful_set = cluster.metadata.namespace, cluster.spec.etcd.stateful_set
        bodies = self._objects.in_cluster(PODS, namespace, cluster.metadata.name)
        found = replace(found, tasks=task_pods(cluster, bodies))
        if stateful_set is None:
            return found
        return replace(
            found,
            pods=store_pods(cluster, bodies),
            bootstrap=self._objects.get(CONFIG_MAPS, namespace, companion.bootstrap_name(stateful_set)),
        )


def observed_endpoints(cluster: Cluster, before: ObservedStore | None) -> tuple[str, ...]:
    """Return the endpoints to observe: also those of members that have to be removed, by the last member list."""
    listed = before.report.members if before is not None and before.report is not None else None
    peer_urls = [url for member in listed or () for url in member.peer_urls]
    return (*cluster.spec.etcd.endpoints, *companion.surplus_endpoints(cluster, peer_urls).values())


def is_restore_pending(cluster: Cluster) -> bool:
    """Whether a restore of etcd is requested, or runs, by the last status."""
    wish, status = cluster.spec.etcd.restore, cluster.status.restore
    if status is not None and status.phase not in FINAL_PHASES:
        return True
    return wish is not None and (status is None or (status.snapshot, status.request) != (wish.snapshot, wish.request))


def store_pods(cluster: Cluster, bodies: Sequence[Object]) -> tuple[ObservedStorePod, ...]:
    """Return the pods of the companion etcd by ordinal."""
    stateful_set = cluster.spec.etcd.stateful_set or ""
    pods = [pod for body in bodies if (pod := read_store_pod(stateful_set, body)) is not None]
    return tuple(sorted(pods, key=lambda pod: pod.ordinal))


def task_pods(cluster: Cluster, bodies: Sequence[Object]) -> tuple[ObservedTaskPod, ...]:
    """Return the pods that take or restore snapshots."""
    found = (read_task_pod(cluster.metadata.uid, body) for body in bodies)
    return tuple(pod for pod in found if pod is not None)
