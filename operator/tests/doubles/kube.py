"""An API server in memory: a `Kube` that behaves like the real one, and the cache that its watches feed.

    kube = FakeKube()
    kube.put(TOPICS, topic)                        # like `kubectl apply`; sets uid and generation, counts no call
    controller = TopicController(kube, kube.objects, ...)
    assert kube.changes["patch_status"] == 1       # `calls` counts requests, `changes` those that changed something

Failures on demand: `kube.fail("patch_status", KubeError(500, "InternalError", "..."), times=2)`. Watches that lag:
`kube.hold()` delays events until `kube.release()`. `kube.terminating.add("ns")`, `kube.crds_gone.add(TOPICS)` and
`kube.crds_terminating.add(TOPICS)` make creates (dry runs too) fail as during the deletion of a namespace or CRD.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock_operator.engine.object_cache import ObjectCache
from penstock_operator.kube.events import EVENTS
from penstock_operator.ports.kube import (
    BUDGETS,
    CERT_MANAGER_CERTIFICATES,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    CONSUMER_GROUPS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    TLS_ROUTES,
    TOPICS,
    USERS,
    KubeError,
    KubeEvent,
    KubeResource,
    ListPage,
    Object,
)

Place = tuple[KubeResource, str, str]
KINDS = {
    CLUSTERS: "Cluster", TOPICS: "Topic", CONSUMER_GROUPS: "ConsumerGroup", STATEFUL_SETS: "StatefulSet",
    SERVICES: "Service", CONFIG_MAPS: "ConfigMap", PODS: "Pod", CLAIMS: "PersistentVolumeClaim",
    BUDGETS: "PodDisruptionBudget", NODES: "Node", LEASES: "Lease", USERS: "User", SECRETS: "Secret",
    NETWORK_POLICIES: "NetworkPolicy", CERT_MANAGER_CERTIFICATES: "Certificate", TLS_ROUTES: "TLSRoute",
}  # fmt: skip
WITH_STATUS = {CLUSTERS, TOPICS, CONSUMER_GROUPS, USERS, STATEFUL_SETS, PODS, NODES}
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class FakeKube:
    """One API server. All calls yield to the loop once, as real ones do, so that races can occur."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self.stored: dict[Place, Object] = {}
        self.calls: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()
        self.recorded: list[tuple[str, KubeEvent]] = []
        """Recorded Events: "Kind/namespace/name" and the Event."""
        self.events_by_uid: dict[str, list[Object]] = {}
        """Events of other components, by UID of the object that they are about."""
        self.terminating: set[str] = set()
        self.missing_namespaces: set[str] = set()
        self.crds_gone: set[KubeResource] = set()
        self.crds_terminating: set[KubeResource] = set()
        self.forbidden: set[KubeResource] = set()
        self.page = 500
        self.seen: Callable[[KubeResource, Object, bool, bool], None] | None = None
        """Callback for each change, like a watch: resource, object, whether it is new, whether it is deleted."""
        self._failures: list[tuple[str, KubeResource | None, Exception, list[int]]] = []
        self._applied: dict[Place, Object] = {}
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._version = 0
        self._clock = now
        self._held: list[tuple[KubeResource, Object, bool]] | None = None
        self.objects = ObjectCache(now or (lambda: 0.0))
        for resource in KINDS:
            self.objects.expect_lists(resource, ())

    # Actions of tests

    def put(self, resource: KubeResource, body: Object) -> Object:
        """Create an object, or replace all but its status, as another client would."""
        place = _place(resource, body)
        known = self.stored.get(place)
        new = _copied(body)
        new.setdefault("apiVersion", _api_version(resource))
        new.setdefault("kind", KINDS[resource])
        if known is None:
            return self._store(place, self._born(resource, new))
        new["metadata"] = {**known["metadata"], **new["metadata"]}
        new["metadata"]["uid"] = known["metadata"]["uid"]
        if "status" not in new and "status" in known:
            new["status"] = _copied(known["status"])
        return self._changed(place, known, new)

    def remove(self, resource: KubeResource, namespace: str, name: str) -> Object:
        """Delete an object and its dependents, as another client would."""
        return self._delete((resource, namespace, name))

    def read(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        """Return a copy of a stored object, independent of the watches."""
        return _copied(self.stored.get((resource, namespace, name)))

    def fail(self, method: str, error: Exception, *, times: int = 1, resource: KubeResource | None = None) -> None:
        """Fail the next `times` calls of `method` ("*": any) with `error`, without a change."""
        self._failures.append((method, resource, error, [times]))

    def recover(self) -> None:
        self._failures.clear()

    def hold(self) -> None:
        """Hold back watch events until `release`."""
        self._held = self._held or []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for resource, body, is_deleted in held:
            self.objects.apply_event(resource, body, is_deleted=is_deleted)

    @property
    def writes(self) -> int:
        """Number of write requests, without dry runs and Events."""
        return sum(self.calls[method] for method in ("create", "apply", "patch", "patch_status", "delete"))

    # Methods of `Kube`

    async def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        await self._enter("get", resource)
        return _copied(self.stored.get((resource, namespace, name)))

    async def list(
        self, resource: KubeResource, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        return [item async for page in self.pages(resource, namespace, labels) for item in page.items]

    async def events(self, namespace: str, uid: str) -> Sequence[Object]:
        await self._enter("events", EVENTS)
        return [_copied(body) for body in self.events_by_uid.get(uid, ())]

    async def pages(
        self, resource: KubeResource, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[ListPage]:
        await self._enter("list", resource)
        if resource in self.crds_gone:
            raise KubeError(404, "NotFound", "the server could not find the requested resource")
        items = [
            _copied(body)
            for (kind, inside, _), body in sorted(self.stored.items(), key=lambda item: item[0][1:])
            if kind == resource and namespace in (None, inside) and _has_labels(body, labels or {})
        ]
        version = str(self._version)
        for start in range(0, max(1, len(items)), self.page):
            yield ListPage(items[start : start + self.page], version)
            await asyncio.sleep(0)

    async def create(self, resource: KubeResource, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        await self._enter("dry_run" if dry_run else "create", resource)
        self._may_create(resource, namespace)
        new = _copied(body)
        if resource.is_namespaced:
            new["metadata"].setdefault("namespace", namespace)
        if "name" not in new["metadata"]:
            new["metadata"]["name"] = f"{new['metadata'].pop('generateName')}{next(self._uids):05}"
        if resource in WITH_STATUS:
            new.pop("status", None)
        place = _place(resource, new)
        if place in self.stored:
            raise KubeError(409, "AlreadyExists", f'{resource.plural} "{place[2]}" already exists')
        new = self._born(resource, new)
        if dry_run:
            return new
        self.changes["create"] += 1
        return _copied(self._store(place, new))

    async def apply(self, resource: KubeResource, namespace: str, body: Object) -> Object:
        """Remove fields of the last apply that this one lacks; replace lists as a whole."""
        await self._enter("apply", resource)
        wanted = _copied(body)
        if resource.is_namespaced:
            wanted["metadata"].setdefault("namespace", namespace)
        place = _place(resource, wanted)
        known = self.stored.get(place)
        version = wanted["metadata"].pop("resourceVersion", None)
        if version is not None and (known is None or known["metadata"]["resourceVersion"] != version):
            raise KubeError(409, "Conflict", f"the object has been modified, or is gone: it is not of {version}")
        if resource in WITH_STATUS:
            wanted.pop("status", None)
        before, self._applied[place] = self._applied.get(place, {}), _copied(wanted)
        if known is None:
            self._may_create(resource, namespace)
            self.changes["apply"] += 1
            return _copied(self._store(place, self._born(resource, wanted)))
        new = _merged(_without(_copied(known), before, wanted), wanted)
        return self._count("apply", place, known, new)

    async def patch(self, resource: KubeResource, namespace: str, name: str, patch: Object) -> Object | None:
        await self._enter("patch", resource)
        known = self.stored.get((resource, namespace, name))
        if known is None:
            return None
        _check_preconditions(known, patch.get("metadata", {}))
        new = _merge_patched(_copied(known), patch)
        if resource in WITH_STATUS:
            new["status"] = _copied(known.get("status", {}))
        new["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
        return self._count("patch", (resource, namespace, name), known, new)

    async def patch_status(
        self, resource: KubeResource, namespace: str, name: str, status: Object, uid: str = ""
    ) -> bool:
        await self._enter("patch_status", resource)
        assert resource in WITH_STATUS, f"{resource.plural} have no status subresource"
        known = self.stored.get((resource, namespace, name))
        if known is None or (uid and known["metadata"]["uid"] != uid):
            return False
        as_json = json.loads(json.dumps(status))
        self._count("patch_status", (resource, namespace, name), known, {**known, "status": as_json})
        return True

    async def delete(
        self,
        resource: KubeResource,
        namespace: str,
        name: str,
        uid: str = "",
        *,
        resource_version: str = "",
        orphan: bool = False,
    ) -> bool:
        await self._enter("delete", resource)
        known = self.stored.get((resource, namespace, name))
        if known is None:
            return False
        if resource_version:
            _check_preconditions(known, {"uid": uid or None, "resourceVersion": resource_version})
        if uid and known["metadata"]["uid"] != uid:
            return False
        self.changes["delete"] += 1
        if orphan:
            self._orphan(known["metadata"]["uid"])
        self._delete((resource, namespace, name))
        return True

    async def record_events(self, about: Object, events: Sequence[KubeEvent]) -> None:
        self.calls["record_events"] += 1
        metadata = about["metadata"]
        about_name = f"{about.get('kind', '?')}/{metadata.get('namespace', '')}/{metadata['name']}"
        self.recorded.extend((about_name, event) for event in events)
        await asyncio.sleep(0)

    # Implementation

    async def _enter(self, method: str, resource: KubeResource) -> None:
        self.calls[method] += 1
        await asyncio.sleep(0)
        if resource in self.forbidden:
            raise KubeError(403, "Forbidden", f"{resource.plural} is forbidden")
        for failure in self._failures:
            wanted, only, error, left = failure
            if wanted in ("*", method) and only in (None, resource):
                left[0] -= 1
                if left[0] <= 0:
                    self._failures.remove(failure)
                raise error

    def _may_create(self, resource: KubeResource, namespace: str) -> None:
        if resource in self.crds_gone:
            raise KubeError(404, "NotFound", "the server could not find the requested resource")
        if resource in self.crds_terminating:
            message = "create not allowed while custom resource definition is terminating"
            raise KubeError(405, "MethodNotAllowed", message)
        if namespace in self.missing_namespaces:
            raise KubeError(404, "NotFound", f'namespaces "{namespace}" not found')
        if namespace in self.terminating:
            message = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise KubeError(403, "Forbidden", message)

    def _born(self, resource: KubeResource, body: Object) -> Object:
        number = next(self._uids)
        metadata = body["metadata"]
        metadata.setdefault("uid", f"uid-{number}")
        metadata.setdefault("generation", 1)
        metadata.setdefault("creationTimestamp", (EPOCH + timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ"))
        return {"apiVersion": _api_version(resource), "kind": KINDS.get(resource, "?"), **body}

    def _count(self, method: str, place: Place, known: Object, new: Object) -> Object:
        if new == known:
            return _copied(known)
        self.changes[method] += 1
        return _copied(self._changed(place, known, new))

    def _changed(self, place: Place, known: Object, new: Object) -> Object:
        if new == known:
            return known
        if {**new, "metadata": 0, "status": 0} != {**known, "metadata": 0, "status": 0}:
            new["metadata"] = {**new["metadata"], "generation": known["metadata"].get("generation", 1) + 1}
        return self._store(place, new)

    def _store(self, place: Place, body: Object) -> Object:
        self._version = next(self._versions)
        body["metadata"] = {**body["metadata"], "resourceVersion": str(self._version)}
        is_new = place not in self.stored
        self.stored[place] = body
        self._event(place[0], body, is_new=is_new)
        return body

    def _delete(self, place: Place) -> Object:
        body = _copied(self.stored.pop(place))
        self._applied.pop(place, None)
        self._version = next(self._versions)
        body["metadata"]["resourceVersion"] = str(self._version)
        self._event(place[0], body, is_deleted=True)
        uid = body["metadata"]["uid"]
        for other, dependent in list(self.stored.items()):
            owners = dependent["metadata"].get("ownerReferences", ())
            if other in self.stored and any(owner.get("uid") == uid for owner in owners):
                self._delete(other)
        return body

    def _orphan(self, uid: str) -> None:
        for place, dependent in list(self.stored.items()):
            owners = dependent["metadata"].get("ownerReferences", [])
            left = [owner for owner in owners if owner.get("uid") != uid]
            if len(left) < len(owners):
                new = _copied(dependent)
                new["metadata"]["ownerReferences"] = left
                self._changed(place, dependent, new)

    def _event(self, resource: KubeResource, body: Object, *, is_new: bool = False, is_deleted: bool = False) -> None:
        body = _copied(body)
        if self.seen is not None:
            self.seen(resource, body, is_new, is_deleted)
        if self._held is not None:
            self._held.append((resource, body, is_deleted))
        else:
            self.objects.apply_event(resource, body, is_deleted=is_deleted)


def _place(resource: KubeResource, body: Object) -> Place:
    return resource, body["metadata"].get("namespace", "") if resource.is_namespaced else "", body["metadata"]["name"]


def _copied(value: Any) -> Any:
    """Return a deep copy, in less than half the time of `copy.deepcopy`."""
    return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def _has_labels(body: Object, wanted: Mapping[str, str]) -> bool:
    labels = body["metadata"].get("labels") or {}
    return all(labels.get(key) == value if value else key in labels for key, value in wanted.items())


def _api_version(resource: KubeResource) -> str:
    return f"{resource.group}/{resource.version}" if resource.group else resource.version


def _check_preconditions(known: Object, metadata: Mapping[str, Any]) -> None:
    for field in ("resourceVersion", "uid"):
        if metadata.get(field) not in (None, known["metadata"][field]):
            raise KubeError(409, "Conflict", f"the object has been modified: {field} is {known['metadata'][field]}")


def _merge_patched(value: Any, patch: Any) -> Any:
    """Return the object after a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return _copied(patch)
    result = dict(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if item is None:
            result.pop(key, None)
        else:
            result[key] = _merge_patched(result.get(key), item)
    return result


def _merged(value: Any, wanted: Any) -> Any:
    if isinstance(value, dict) and isinstance(wanted, dict):
        return {**value, **{key: _merged(value.get(key), item) for key, item in wanted.items()}}
    return _copied(wanted)


def _without(value: Any, before: Any, wanted: Any) -> Any:
    """Return `value` without the leaves that are in `before` and not in `wanted`."""
    if not (isinstance(value, dict) and isinstance(before, dict)):
        return value
    for key, item in before.items():
        if key not in value:
            continue
        if not isinstance(wanted, dict) or key not in wanted:
            if isinstance(item, dict) and isinstance(value[key], dict):
                value[key] = _without(value[key], item, {})
                if not value[key]:
                    del value[key]
            else:
                del value[key]
        else:
            value[key] = _without(value[key], item, wanted[key])
    return value
