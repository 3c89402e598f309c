"""What the watches have seen, kept: the `Objects` that controllers look things up in.

Fed by `engine.watching` (events of kopf) and `engine.sweep` (complete lists, which find what a broken watch did not
tell). Both may be late and in any order: the newest resource version wins, and what was deleted does not come back by
an older event. Copies are slimmed: `managedFields` and the last applied manifest are most of an object's bytes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, NODES, TOPICS, KubeResource, Object

CLUSTER_LABEL = "penstock.io/cluster"
Change = Literal["changed", "deleted"]
Listener = Callable[[KubeResource, Change, Object], None]
_Gone = tuple[float, bool, Object, int]
Name = tuple[str, str]
"""Namespace ("" where there is none) and name."""

REMEMBER_DELETED_S = 600.0
MAX_DELETED = 20_000
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(slots=True)
class _Kind:
    by_name: dict[Name, Object] = field(default_factory=dict)
    by_namespace: dict[str, dict[str, Object]] = field(default_factory=dict)
    by_cluster: dict[Name, dict[str, Object]] = field(default_factory=dict)
    gone: OrderedDict[Name, _Gone] = field(default_factory=OrderedDict)
    """When, whether a DELETED event told it, what it was, and as of which version it was not there."""
    told_gone: OrderedDict[str, tuple[float, Object, str]] = field(default_factory=OrderedDict)
    """By UID, those of `gone` that a DELETED event told, also where another of the name has come since; with the UID of
    the `Cluster` that they named, as it was there then ("" where none was, or nobody acted)."""
    lists_to_come: set[str | None] | None = None
    """Namespaces (None: all) whose first list has not come; None where nothing is known of the resource."""


class Copies:
    """The newest of each object. `now` is a monotonic clock in seconds. Listeners are called for each change, in the
    order in which they were added, after the copy has been brought up to date."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kinds: dict[KubeResource, _Kind] = {}
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        kind = self._kinds.get(resource)
        return kind.by_name.get((namespace, name)) if kind else None

    def of(self, resource: KubeResource, namespace: str | None = None) -> Sequence[Object]:
        kind = self._kinds.get(resource)
        if kind is None:
            return ()
        if namespace is None:
            return tuple(kind.by_name.values())
        return tuple(kind.by_namespace.get(namespace, {}).values())

    def in_cluster(self, resource: KubeResource, namespace: str, cluster: str) -> Sequence[Object]:
        kind = self._kinds.get(resource)
        return tuple(kind.by_cluster.get((namespace, cluster), {}).values()) if kind else ()

    def is_listed(self, resource: KubeResource) -> bool:
        kind = self._kinds.get(resource)
        return kind is not None and kind.lists_to_come is not None and not kind.lists_to_come

    def deleted(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        kind = self._kinds.get(resource)
        found = kind.gone.get((namespace, name)) if kind else None
        if found is None or not found[1] or found[0] + REMEMBER_DELETED_S < self._now():
            return None
        return found[2]

    def deleted_of_uid(self, resource: KubeResource, uid: str) -> Object | None:
        kind = self._kinds.get(resource)
        found = kind.told_gone.get(uid) if kind else None
        return None if found is None or found[0] + REMEMBER_DELETED_S < self._now() else found[1]

    def has_same_cluster(self, resource: KubeResource, uid: str) -> bool:
        kind = self._kinds.get(resource)
        found = kind.told_gone.get(uid) if kind else None
        return found is not None and found[2] != "" and found[2] == self._cluster_uid(resource, found[1])

    def distrust(self) -> None:
        """Says that nobody dealt with the DELETED events that have come: this operator begins to act only now. They may
        have told of the end of a definition that is back, and prove no more than lists do."""
        for kind in self._kinds.values():
            for uid, (when, body, _) in kind.told_gone.items():
                kind.told_gone[uid] = (when, body, "")

    def deleted_names(self, resource: KubeResource) -> Sequence[Name]:
        """Of all that `deleted` remembers."""
        kind = self._kinds.get(resource)
        return [name for name in kind.gone if self.deleted(resource, *name) is not None] if kind else ()

    def expect(self, resource: KubeResource, namespaces: Iterable[str | None]) -> None:
        """Says of which namespaces lists will come: until then `is_listed` is False."""
        self._kind(resource).lists_to_come = set(namespaces)

    def saw(self, resource: KubeResource, body: Object, *, is_deleted: bool = False) -> bool:
        """Takes in one event. Returns whether it told anything new."""
        kind = self._kind(resource)
        name = name_of(body)
        known = kind.by_name.get(name)
        if known is not None and (_is_older(body, known) or (not is_deleted and _is_same_version(body, known))):
            return False
        slim = slimmed(resource, body)
        if is_deleted:
            self._forget(kind, name, slim, _version(body), self._cluster_uid(resource, slim))
            self._tell(resource, "deleted", slim)
            return True
        if _is_from_before(kind.gone.get(name), body):
            return False
        if known is not None and resource == NODES and _is_same(known, slim):
            known["metadata"]["resourceVersion"] = slim["metadata"].get("resourceVersion", "")
            return False
        if known is not None:
            self._drop(kind, name, known)
        kind.gone.pop(name, None)
        self._add(resource, kind, name, slim)
        self._tell(resource, "changed", slim)
        return True

    def complete(self, resource: KubeResource, namespace: str | None, there: Set[Name], version: str) -> int:
        """Says that a list as of `version`, of one namespace or of all, had the objects `there` and no others (each
        was given to `saw`): those that are not in it and not newer than it are gone. Returns how many were."""
        kind = self._kind(resource)
        before = kind.by_name.items() if namespace is None else [
            ((namespace, name), body) for name, body in kind.by_namespace.get(namespace, {}).items()
        ]  # fmt: skip
        gone = [
            (name, body)
            for name, body in before
            if name not in there and _number(body["metadata"].get("resourceVersion")) <= _number(version)
        ]
        for name, body in gone:
            self._forget(kind, name, body, _number(version))
            self._tell(resource, "deleted", body)
        if kind.lists_to_come is not None:
            kind.lists_to_come.discard(namespace)
        return len(gone)

    def _kind(self, resource: KubeResource) -> _Kind:
        return self._kinds.setdefault(resource, _Kind())

    def _cluster_uid(self, resource: KubeResource, body: Object) -> str:
        """Of the `Cluster` that an object names; "" where it is not there."""
        found = self.get(CLUSTERS, name_of(body)[0], cluster_of(resource, body))
        return _uid(found) if found is not None else ""

    def _tell(self, resource: KubeResource, change: Change, body: Object) -> None:
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
        """`cluster_uid` where a DELETED event told it."""
        known = kind.by_name.get(name)
        if known is not None:
            self._drop(kind, name, known)
        now = self._now()
        kind.gone.pop(name, None)
        kind.gone[name] = (now, cluster_uid is not None, body, version)
        if cluster_uid is not None:
            kind.told_gone[_uid(body)] = (now, body, cluster_uid)
            if len(kind.told_gone) > MAX_DELETED or next(iter(kind.told_gone.values()))[0] + REMEMBER_DELETED_S < now:
                kind.told_gone.popitem(last=False)
        while kind.gone and (
            len(kind.gone) > MAX_DELETED or next(iter(kind.gone.values()))[0] + REMEMBER_DELETED_S < now
        ):
            kind.gone.popitem(last=False)


def name_of(body: Object) -> Name:
    metadata = body["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def cluster_of(resource: KubeResource, body: Object) -> str:
    """Which `Cluster` of its namespace an object belongs to; "" where none."""
    if resource in (TOPICS, CONSUMER_GROUPS):
        return str(body.get("spec", {}).get("clusterRef", {}).get("name") or "")
    return str(_labels(body).get(CLUSTER_LABEL) or "")


def slimmed(resource: KubeResource, body: Object) -> Object:
    """A copy without what nobody reads. Keys are interned: each event's JSON brings its own strings for them."""
    managers = body["metadata"].get("managedFields") or ()
    slim = _interned({**body, "metadata": {k: v for k, v in body["metadata"].items() if k != "managedFields"}})
    metadata = slim["metadata"]
    if resource == CONSUMER_GROUPS:  # Who had a say in it: whether a discovered one was taken over.
        metadata["managedFields"] = [
            {"manager": entry.get("manager", "")}
            for entry in managers
            if not entry.get("subresource") and _has_a_say(entry.get("fieldsV1") or {})
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


def _has_a_say(fields: Object) -> bool:
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
    """Resource versions are numbers that grow (KEP-5504 makes that a promise); others count as oldest."""
    return int(version) if version and version.isdigit() else 0


def _is_from_before(lost: _Gone | None, body: Object) -> bool:
    """Whether it tells of a time before it was gone. The same object may be back: one that is watched by its labels has
    gone when it lost them, and is there again when it has them."""
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
    """But for the version: a node reports its health many times a minute, which slimming takes out."""
    return {**before, "metadata": {**before["metadata"], "resourceVersion": ""}} == {
        **now,
        "metadata": {**now["metadata"], "resourceVersion": ""},
    }
