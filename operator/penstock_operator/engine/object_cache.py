"""Cache of Kubernetes objects, which implements `engine.ports.Objects`.

`engine.watching` feeds it with events, and `engine.relist` with complete lists, which find changes that a broken watch
missed. Both may be late and out of order: the newest resource version wins, and an older event does not restore a
deleted object. Cached objects omit `managedFields` and the last applied manifest, which are most of an object's bytes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, NODES, TOPICS, USERS, KubeResource, Object

CLUSTER_LABEL = "penstock.io/cluster"
Change = Literal["changed", "deleted"]
Listener = Callable[[KubeResource, Change, Object], None]
_Deletion = tuple[float, bool, Object, int]
Name = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name."""

REMEMBER_DELETED_S = 600.0
MAX_DELETED = 20_000
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(slots=True)
class _Kind:
    by_name: dict[Name, Object] = field(default_factory=dict)
    by_namespace: dict[str, dict[str, Object]] = field(default_factory=dict)
    by_cluster: dict[Name, dict[str, Object]] = field(default_factory=dict)
    deleted_objects: OrderedDict[Name, _Deletion] = field(default_factory=OrderedDict)
    """Deleted objects: time, whether a DELETED event reported it, last version, resource version of the deletion."""
    deletion_events: OrderedDict[str, tuple[float, Object, str]] = field(default_factory=OrderedDict)
    """Objects reported by DELETED events, by UID, also if another object has the name now: time, last version, and UID
    of their `Cluster` at that time ("" if there was none, or if this process was not the leader)."""
    pending_lists: set[str | None] | None = None
    """Namespaces (None: all) whose first list is pending; None: the resource is not watched."""


class ObjectCache:
    """Newest known version of each object. `now` is a monotonic clock in seconds. Listeners are called for each change,
    in the order of registration, after the cache is updated."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kinds: dict[KubeResource, _Kind] = {}
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Register a listener."""
        self._listeners.append(listener)

    def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""
        kind = self._kinds.get(resource)
        return kind.by_name.get((namespace, name)) if kind else None

    def list_objects(self, resource: KubeResource, namespace: str | None = None) -> Sequence[Object]:
        """Return the objects of one namespace, or of all."""
        kind = self._kinds.get(resource)
        if kind is None:
            return ()
        if namespace is None:
            return tuple(kind.by_name.values())
        return tuple(kind.by_namespace.get(namespace, {}).values())

    def in_cluster(self, resource: KubeResource, namespace: str, cluster: str) -> Sequence[Object]:
        """Return the objects of a cluster, by clusterRef or label."""
        kind = self._kinds.get(resource)
        return tuple(kind.by_cluster.get((namespace, cluster), {}).values()) if kind else ()

    def is_listed(self, resource: KubeResource) -> bool:
        """Whether all first lists of a resource were received."""
        kind = self._kinds.get(resource)
        return kind is not None and kind.pending_lists is not None and not kind.pending_lists

    def deleted(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        """Return the last version of an object whose latest event is DELETED, for `REMEMBER_DELETED_S`."""
        kind = self._kinds.get(resource)
        found = kind.deleted_objects.get((namespace, name)) if kind else None
        if found is None or not found[1] or found[0] + REMEMBER_DELETED_S < self._now():
            return None
        return found[2]

    def deleted_by_uid(self, resource: KubeResource, uid: str) -> Object | None:
        """As `deleted`, by UID; also if another object has its name now."""
        kind = self._kinds.get(resource)
        found = kind.deletion_events.get(uid) if kind else None
        return None if found is None or found[0] + REMEMBER_DELETED_S < self._now() else found[1]

    def has_same_cluster(self, resource: KubeResource, uid: str) -> bool:
        """Whether the Cluster of a deleted object is the same as when its DELETED event arrived."""
        kind = self._kinds.get(resource)
        found = kind.deletion_events.get(uid) if kind else None
        return found is not None and found[2] != "" and found[2] == self._cluster_uid(resource, found[1])

    def distrust_deletions(self) -> None:
        """Mark all received DELETED events as no better evidence than lists. Called when this process becomes leader:
        the events may come from a CRD that was deleted and recreated, and no leader checked that."""
        for kind in self._kinds.values():
            for uid, (when, body, _) in kind.deletion_events.items():
                kind.deletion_events[uid] = (when, body, "")

    def deleted_names(self, resource: KubeResource) -> Sequence[Name]:
        """Return the names of all objects that `deleted` returns."""
        kind = self._kinds.get(resource)
        return [name for name in kind.deleted_objects if self.deleted(resource, *name) is not None] if kind else ()

    def expect_lists(self, resource: KubeResource, namespaces: Iterable[str | None]) -> None:
        """Set the namespaces whose lists must arrive before `is_listed` is True."""
        self._kind(resource).pending_lists = set(namespaces)

    def apply_event(self, resource: KubeResource, body: Object, *, is_deleted: bool = False) -> bool:
        """Apply a watch event. Return whether it changed the cache."""
        kind = self._kind(resource)
        name = name_of(body)
        known = kind.by_name.get(name)
        if known is not None and (_is_older(body, known) or (not is_deleted and _is_same_version(body, known))):
            return False
        slim = slimmed(resource, body)
        if is_deleted:
            self._forget(kind, name, slim, _version(body), self._cluster_uid(resource, slim))
            self._notify(resource, "deleted", slim)
            return True
        if _is_from_before(kind.deleted_objects.get(name), body):
            return False
        if known is not None and resource == NODES and _is_same(known, slim):
            known["metadata"]["resourceVersion"] = slim["metadata"].get("resourceVersion", "")
            return False
        if known is not None:
            self._drop(kind, name, known)
        kind.deleted_objects.pop(name, None)
        self._add(resource, kind, name, slim)
        self._notify(resource, "changed", slim)
        return True

    def apply_list(self, resource: KubeResource, namespace: str | None, there: Set[Name], version: str) -> int:
        """Apply a complete list of one namespace, or of all, as of `version`. Its objects are `there` and were passed
        to `apply_event`. Remove objects that are neither listed nor newer than the list; return their number."""
        kind = self._kind(resource)
        before = kind.by_name.items() if namespace is None else [
            ((namespace, name), body) for name, body in kind.by_namespace.get(namespace, {}).items()
        ]  # fmt: skip
        deleted_objects = [
            (name, body)
            for name, body in before
            if name not in there and _number(body["metadata"].get("resourceVersion")) <= _number(version)
        ]
        for name, body in deleted_objects:
            self._forget(kind, name, body, _number(version))
            self._notify(resource, "deleted", body)
        if kind.pending_lists is not None:
            kind.pending_lists.discard(namespace)
        return len(deleted_objects)

    def _kind(self, resource: KubeResource) -> _Kind:
        return self._kinds.setdefault(resource, _Kind())

    def _cluster_uid(self, resource: KubeResource, body: Object) -> str:
        """Return the UID of an object's `Cluster`, or ""."""
        found = self.get(CLUSTERS, name_of(body)[0], cluster_of(resource, body))
        return _uid(found) if found is not None else ""

    def _notify(self, resource: KubeResource, change: Change, body: Object) -> None:
        for listener in self._listeners:
            listener(resource, change, body)

    def _add(self, resource: KubeResource, kind: _Kind, name: Name, body: Object) -> None:
        kind.by_name[name] = body
        kind.by_namespace.setdefault(name[0], {})[name[1]] = body
        cluster = cluster_of(resource, body)
        if cluster:
            kind.by_cluster.setdefault((name[0], cluster), {})[name[1]] = body

    def _drop(self, kind: _Kind, name: Name, known: Object) -> None:
        del kind.by_name[name]
        inside = kind.by_namespace[name[0]]
        del inside[name[1]]
        if not inside:
            del kind.by_namespace[name[0]]
        for cluster in {known.get("spec", {}).get("clusterRef", {}).get("name"), _labels(known).get(CLUSTER_LABEL)}:
            members = kind.by_cluster.get((name[0], cluster or ""))
            if members is not None:
                members.pop(name[1], None)
                if not members:
                    del kind.by_cluster[name[0], cluster or ""]

    def _forget(self, kind: _Kind, name: Name, body: Object, version: int, cluster_uid: str | None = None) -> None:
        """Remove an object. `cluster_uid` is set if a DELETED event reported it."""
        known = kind.by_name.get(name)
        if known is not None:
            self._drop(kind, name, known)
        now = self._now()
        kind.deleted_objects.pop(name, None)
        kind.deleted_objects[name] = (now, cluster_uid is not None, body, version)
        if cluster_uid is not None:
            kind.deletion_events[_uid(body)] = (now, body, cluster_uid)
            if (
                len(kind.deletion_events) > MAX_DELETED
                or next(iter(kind.deletion_events.values()))[0] + REMEMBER_DELETED_S < now
            ):
                kind.deletion_events.popitem(last=False)
        while kind.deleted_objects and (
            len(kind.deleted_objects) > MAX_DELETED
            or next(iter(kind.deleted_objects.values()))[0] + REMEMBER_DELETED_S < now
        ):
            kind.deleted_objects.popitem(last=False)


def name_of(body: Object) -> Name:
    """Return namespace and name of an object."""
    metadata = body["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def cluster_of(resource: KubeResource, body: Object) -> str:
    """Return the name of an object's `Cluster`, or ""."""
    if resource in (TOPICS, CONSUMER_GROUPS, USERS):
        return str(body.get("spec", {}).get("clusterRef", {}).get("name") or "")
    return str(_labels(body).get(CLUSTER_LABEL) or "")


def slimmed(resource: KubeResource, body: Object) -> Object:
    """Return a copy without unused fields. Interns keys, because the JSON of each event has its own strings."""
    managers = body["metadata"].get("managedFields") or ()
    slim = _interned({**body, "metadata": {k: v for k, v in body["metadata"].items() if k != "managedFields"}})
    metadata = slim["metadata"]
    if resource == CONSUMER_GROUPS:  # Field managers show whether a user changed a discovered group.
        metadata["managedFields"] = [
            {"manager": entry.get("manager", "")}
            for entry in managers
            if not entry.get("subresource") and _owns_spec(entry.get("fieldsV1") or {})
        ]
    annotations = metadata.get("annotations")
    if annotations:
        annotations.pop(_LAST_APPLIED, None)
    if resource == NODES:
        return {
            "metadata": {key: metadata[key] for key in ("name", "uid", "labels", "resourceVersion") if key in metadata},
            "spec": {key: value for key, value in slim.get("spec", {}).items() if key in ("unschedulable",)},
            "status": {"addresses": slim.get("status", {}).get("addresses", [])},
        }
    return slim  # type: ignore[no-any-return]


def _owns_spec(fields: Object) -> bool:
    annotations = (fields.get("f:metadata") or {}).get("f:annotations") or {}
    return "f:spec" in fields or f"f:{_LAST_APPLIED}" in annotations


def _interned(value: Any) -> Any:
    if isinstance(value, dict):
        return {sys.intern(str(key)): _interned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_interned(item) for item in value]
    return sys.intern(value) if isinstance(value, str) and len(value) < 16 else value


def _labels(body: Object) -> dict[str, str]:
    return body["metadata"].get("labels") or {}


def _uid(body: Object) -> str:
    return str(body["metadata"].get("uid") or "")


def _number(version: str | None) -> int:
    """Return a resource version as number (KEP-5504 guarantees increasing numbers); 0 if it is not a number."""
    return int(version) if version and version.isdigit() else 0


def _is_from_before(lost: _Deletion | None, body: Object) -> bool:
    """Whether an event is older than the deletion of the object. The same object can reappear: an object watched by
    label is reported as DELETED when it loses the label."""
    if lost is None:
        return False
    return _version(body) <= lost[3] if _uid(lost[2]) == _uid(body) else _is_older(body, lost[2])


def _version(body: Object) -> int:
    return _number(body["metadata"].get("resourceVersion"))


def _is_older(body: Object, than: Object) -> bool:
    return _version(body) < _version(than)


def _is_same_version(body: Object, known: Object) -> bool:
    version = body["metadata"].get("resourceVersion")
    return bool(version) and version == known["metadata"].get("resourceVersion") and _uid(body) == _uid(known)


def _is_same(before: Object, now: Object) -> bool:
    """Whether two versions differ only in the resource version: nodes report their health several times a minute, and
    `slimmed` removes that."""
    return {**before, "metadata": {**before["metadata"], "resourceVersion": ""}} == {
        **now,
        "metadata": {**now["metadata"], "resourceVersion": ""},
    }
