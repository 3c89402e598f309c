"""Observes the etcd of a cluster, and the pods of the companion etcd. Used by `observer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock_operator.clusters.store_access import store_access
from penstock_operator.engine.ports import Objects
from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import CONFIG_MAPS, PODS, Kube, Object
from penstock_operator.ports.state_store import StateStoreClient, StateStoreError
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedStorePod, read_store_pod
from penstock_operator.specs import companion, names


class StoreObserver:
    """Builds `ObservedStore` from etcd, the API server and the cache."""

    def __init__(self, kube: Kube, objects: Objects, store: StateStoreClient) -> None:
        self._kube, self._objects, self._store = kube, objects, store

    async def observe(self, cluster: Cluster, *, fresh: bool) -> ObservedStore | None:
        """Observe the etcd of `etcd.endpoints`; None for a sidecar etcd, whose readiness is that of its pods. With
        `fresh`, pods are current instead of cached. Raises `KubeError`, only with `fresh`."""
        if not cluster.spec.etcd.endpoints:
            return None
        namespace, name = cluster.metadata.namespace, cluster.metadata.name
        report, error = None, ""
        try:
            access = await store_access(self._kube, cluster)
            report = await self._store.observe(cluster.spec.etcd.endpoints, access)
        except StateStoreError as e:
            error = str(e)
        found = self.refresh(cluster, ObservedStore(report, error))
        stateful_set = cluster.spec.etcd.stateful_set
        if not fresh or stateful_set is None:
            return found
        return replace(
            found,
            pods=store_pods(cluster, await self._kube.list(PODS, namespace, {names.CLUSTER_LABEL: name})),
            bootstrap=await self._kube.get(CONFIG_MAPS, namespace, companion.bootstrap_name(stateful_set)),
        )

    def refresh(self, cluster: Cluster, found: ObservedStore) -> ObservedStore:
        """Return the observed state with pods and ConfigMap from the cache."""
        namespace, stateful_set = cluster.metadata.namespace, cluster.spec.etcd.stateful_set
        if stateful_set is None:
            return found
        return replace(
            found,
            pods=store_pods(cluster, self._objects.in_cluster(PODS, namespace, cluster.metadata.name)),
            bootstrap=self._objects.get(CONFIG_MAPS, namespace, companion.bootstrap_name(stateful_set)),
        )


def store_pods(cluster: Cluster, bodies: Sequence[Object]) -> tuple[ObservedStorePod, ...]:
    """Return the pods of the companion etcd by ordinal."""
    stateful_set = cluster.spec.etcd.stateful_set or ""
    pods = [pod for body in bodies if (pod := read_store_pod(stateful_set, body)) is not None]
    return tuple(sorted(pods, key=lambda pod: pod.ordinal))
