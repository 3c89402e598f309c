"""Interfaces between the engine and the controllers. A controller observes, plans with `reconcile`, and executes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.brokers import BrokerAccess, BrokerGateway
from penstock_operator.ports.kube import KubeResource, Object


class Objects(Protocol):
    """The object cache: the newest known version of the custom resources and of owned objects. Lookups do no I/O."""

    def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""

    def list_objects(self, resource: KubeResource, namespace: str | None = None) -> Sequence[Object]:
        """Return the objects of one namespace, or of all."""

    def in_cluster(self, resource: KubeResource, namespace: str, cluster: str) -> Sequence[Object]:
        """Return topics, groups or users by clusterRef, and owned objects by the label `penstock.io/cluster`."""

    def is_listed(self, resource: KubeResource) -> bool:
        """Whether the first complete list was received; before that, absence means nothing."""

    def deleted(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        """Return the last version of an object whose latest event is DELETED, for 10 minutes. None if it is only
        missing in a list, or if another object has its name now."""

    def deleted_by_uid(self, resource: KubeResource, uid: str) -> Object | None:
        """As `deleted`, by UID; also if another object has its name now."""

    def has_same_cluster(self, resource: KubeResource, uid: str) -> bool:
        """Whether the `Cluster` of a deleted object exists and is the same one as when the DELETED event arrived.
        Otherwise the object may have been deleted together with the cluster, and the cluster recreated. False for
        events that arrived before this process became leader."""


class ConnectionPool(Protocol):
    """Broker gateways by cluster, connected on demand and cached."""

    def gateway_for(self, namespace: str, cluster: str) -> BrokerGateway | None:
        """Return the gateway of a cluster; None if the `Cluster` is unknown."""

    def set_access(self, namespace: str, cluster: str, access: BrokerAccess) -> None:
        """Set how to connect to a cluster with `listeners`. The controller of Clusters calls it with each observation;
        until then, the gateway of such a cluster raises `BrokersError`."""


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Result of reconciling one object. With `error` the key is retried with backoff; otherwise it is requeued after
    `requeue_after_s`, or by the next event or resync."""

    requeue_after_s: float | None = None
    error: str | None = None


class ResourceController(Protocol):
    """Reconciles objects of one kind in batches. Level-triggered: any key can come at any time, also of a deleted
    object. Does not raise because of a single object."""

    batch: int
    """Maximum number of keys per call."""

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        """Reconcile the objects with these keys. Return a result per key."""

    async def resync(self) -> None:
        """Find changes that cause no event (topics whose object is gone, drift) and queue their keys. Called every
        `resync_s` and when this process becomes leader."""


class Queue(Protocol):
    """Deduplicating work queue: a key waits once; a key in progress is reconciled again afterwards."""

    def put(self, key: ObjectKey, delay_s: float = 0.0) -> None:
        """Queue a key, due after `delay_s`."""
