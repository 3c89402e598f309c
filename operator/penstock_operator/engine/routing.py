"""Maps cache changes to the keys to reconcile."""

from __future__ import annotations

from collections.abc import Iterable

from penstock_operator.engine.object_cache import Change, ObjectCache, cluster_of
from penstock_operator.engine.ports import Queue
from penstock_operator.engine.queue import Lane
from penstock_operator.model.common import Kind, ObjectKey
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, NODES, TOPICS, USERS, KubeResource, Object

KINDS: dict[KubeResource, Kind] = {
    CLUSTERS: "Cluster",
    TOPICS: "Topic",
    CONSUMER_GROUPS: "ConsumerGroup",
    USERS: "User",
}
RESOURCES: dict[Kind, KubeResource] = {kind: resource for resource, kind in KINDS.items()}


class Routing:
    """Cache listener that queues keys: a custom resource queues itself, an owned object its Cluster, a node all
    Clusters, and a Cluster that appears, disappears or changes its readiness its topics, groups and users."""

    def __init__(self, cache: ObjectCache, queue: Queue) -> None:
        self._copies, self._queue = cache, queue
        self.is_active = True
        """Whether this process is the leader. A standby queues nothing, because its queue would grow forever; `put_all`
        fills the queue when it becomes leader."""
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        """UID and readiness of each Cluster when its topics, groups and users were last queued."""
        cache.listen(self.changed)

    def changed(self, resource: KubeResource, change: Change, body: Object) -> None:
        """Queue the keys that a change affects."""
        metadata = body["metadata"]
        namespace, name = str(metadata.get("namespace") or ""), str(metadata["name"])
        kind = KINDS.get(resource)
        if kind is not None:
            self._put(ObjectKey(kind, namespace, name))
            if kind == "Cluster":
                self._cluster_changed(change, body, namespace, name)
        elif resource == NODES:
            for cluster in self._copies.list_objects(CLUSTERS):
                self._put(_key("Cluster", cluster))
        elif owner := cluster_of(resource, body):
            self._put(ObjectKey("Cluster", namespace, owner))

    def put_all(self) -> None:
        """Queue all objects, also recently deleted ones. Called when this process becomes leader."""
        for resource, kind in KINDS.items():
            for body in self._copies.list_objects(resource):
                self._queue.put(_key(kind, body))
            for namespace, name in self._copies.deleted_names(resource):
                self._queue.put(ObjectKey(kind, namespace, name))

    def _cluster_changed(self, change: Change, body: Object, namespace: str, name: str) -> None:
        cluster_key, now = (namespace, name), (str(body["metadata"].get("uid")), _readiness(body))
        if change == "deleted":
            self._known.pop(cluster_key, None)
        elif self._known.get(cluster_key) == now:
            return
        else:
            self._known[cluster_key] = now
        for resource in (TOPICS, CONSUMER_GROUPS, USERS):
            for child in self._copies.in_cluster(resource, namespace, name):
                self._put(_key(KINDS[resource], child))

    def _put(self, key: ObjectKey) -> None:
        if self.is_active:
            self._queue.put(key)


def lane_of(cache: ObjectCache, key: ObjectKey) -> Lane:
    """Return the lane of a key: namespace and cluster."""
    body = cache.get(RESOURCES[key.kind], key.namespace, key.name)
    if body is None or key.kind == "Cluster":
        return key.namespace, "" if body is None else key.name
    return key.namespace, cluster_of(RESOURCES[key.kind], body)


def _key(kind: Kind, body: Object) -> ObjectKey:
    return ObjectKey(kind, body["metadata"].get("namespace") or "", body["metadata"]["name"])


def _readiness(body: Object) -> str:
    conditions: Iterable[Object] = (body.get("status") or {}).get("conditions") or ()
    return next((str(c.get("status")) for c in conditions if c.get("type") == "Ready"), "Unknown")
