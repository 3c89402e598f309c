"""Which keys a change calls for: from what the watches saw to what is to be looked at."""

from __future__ import annotations

from collections.abc import Iterable

from penstock_operator.engine.copies import Change, Copies, cluster_of
from penstock_operator.engine.ports import Queue
from penstock_operator.engine.queue import Lane
from penstock_operator.model.common import Kind, ObjectKey
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, NODES, TOPICS, KubeResource, Object

KINDS: dict[KubeResource, Kind] = {CLUSTERS: "Cluster", TOPICS: "Topic", CONSUMER_GROUPS: "ConsumerGroup"}
RESOURCES: dict[Kind, KubeResource] = {kind: resource for resource, kind in KINDS.items()}


class Routing:
    """A listener of `Copies`. An object of ours calls for itself; what a Cluster owns calls for the Cluster; a Cluster
    that came, went or became ready calls for its topics and groups, and so does a node for the clusters on it."""

    def __init__(self, copies: Copies, queue: Queue) -> None:
        self._copies, self._queue = copies, queue
        self.acts = True
        """Whether anybody takes keys out. Otherwise those of what came and went would stay there for ever: `put_all`
        puts what is to be looked at when it becomes so."""
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        """Of each Cluster its uid and whether it is ready, as they were when its children were called last."""
        copies.listen(self.changed)

    def changed(self, resource: KubeResource, change: Change, body: Object) -> None:
        metadata = body["metadata"]
        namespace, name = str(metadata.get("namespace") or ""), str(metadata["name"])
        kind = KINDS.get(resource)
        if kind is not None:
            self._put(ObjectKey(kind, namespace, name))
            if kind == "Cluster":
                self._cluster_changed(change, body, namespace, name)
        elif resource == NODES:
            for cluster in self._copies.of(CLUSTERS):
                self._put(_key("Cluster", cluster))
        elif owner := cluster_of(resource, body):
            self._put(ObjectKey("Cluster", namespace, owner))

    def put_all(self) -> None:
        """Everything is to be looked at, what was deleted lately too: this operator has begun to act."""
        for resource, kind in KINDS.items():
            for body in self._copies.of(resource):
                self._queue.put(_key(kind, body))
            for namespace, name in self._copies.deleted_names(resource):
                self._queue.put(ObjectKey(kind, namespace, name))

    def _cluster_changed(self, change: Change, body: Object, namespace: str, name: str) -> None:
        place, now = (namespace, name), (str(body["metadata"].get("uid")), _readiness(body))
        if change == "deleted":
            self._known.pop(place, None)
        elif self._known.get(place) == now:
            return
        else:
            self._known[place] = now
        for resource in (TOPICS, CONSUMER_GROUPS):
            for child in self._copies.in_cluster(resource, namespace, name):
                self._put(_key(KINDS[resource], child))

    def _put(self, key: ObjectKey) -> None:
        if self.acts:
            self._queue.put(key)


def lane_of(copies: Copies, key: ObjectKey) -> Lane:
    """The cluster that a key belongs to: lanes take turns in the queue."""
    body = copies.get(RESOURCES[key.kind], key.namespace, key.name)
    if body is None or key.kind == "Cluster":
        return key.namespace, "" if body is None else key.name
    return key.namespace, cluster_of(RESOURCES[key.kind], body)


def _key(kind: Kind, body: Object) -> ObjectKey:
    return ObjectKey(kind, body["metadata"].get("namespace") or "", body["metadata"]["name"])


def _readiness(body: Object) -> str:
    conditions: Iterable[Object] = (body.get("status") or {}).get("conditions") or ()
    return next((str(c.get("status")) for c in conditions if c.get("type") == "Ready"), "Unknown")
