"""`ports.kube.Kube` for a real API server. Created by `main`, called by controllers and the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from penstock_operator.kube.events import EVENTS, EventRecorder
from penstock_operator.kube.http import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, Requests, path_of
from penstock_operator.ports.kube import KubeError, KubeEvent, KubeResource, ListPage, Object

FIELD_MANAGER = "penstock-operator"
PAGE = 500
MAX_PAGES = 1_000
Written = Callable[[str, KubeResource, Object | None], None]
"""Called with method, resource, and the object in the API server's response (None: no object, or deleted)."""


def _ignore(method: str, resource: KubeResource, body: Object | None) -> None:
    del method, resource, body


class KubeClient:
    """API client. It calls `written` after each successful write, which counts it and updates the cache before the
    watch does, so that the next reconciliation does not repeat the write."""

    def __init__(self, requests: Requests, events: EventRecorder, written: Written = _ignore) -> None:
        self._requests = requests
        self._events = events
        self._written = written

    async def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        """Return an object, or None if it does not exist."""
        return await self._or_none("GET", path_of(resource, namespace, name))

    async def list(
        self, resource: KubeResource, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Return all objects. Restarts the list once if its continue token expired (410)."""
        try:
            return [item async for page in self.pages(resource, namespace, labels) for item in page.items]
        except KubeError as error:
            if error.status != 410:
                raise
        return [item async for page in self.pages(resource, namespace, labels) for item in page.items]

    async def pages(
        self, resource: KubeResource, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[ListPage]:
        """Yield the pages of a list. Raises `KubeError`, also beyond `MAX_PAGES`."""
        path = path_of(resource, namespace)
        query = {"limit": str(PAGE)}
        if labels:
            query["labelSelector"] = ",".join(f"{key}={value}" if value else key for key, value in labels.items())
        for _ in range(MAX_PAGES):
            page = await self._requests.send("GET", path, query=query)
            metadata = page.get("metadata") or {}
            items = page.get("items") or []
            for item in items:  # A list names the kind once, for all of its items.
                item.setdefault("apiVersion", page.get("apiVersion", ""))
                item.setdefault("kind", str(page.get("kind", "")).removesuffix("List"))
            yield ListPage(items, str(metadata.get("resourceVersion") or ""))
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]
        raise KubeError(0, "TooMany", f"{resource.plural}: the list has more than {PAGE * MAX_PAGES} objects")

    async def create(self, resource: KubeResource, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        """Create an object, or with `dry_run` only validate it."""
        query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
        path = path_of(resource, namespace)
        made: Object = await self._requests.send("POST", path, query=query, body=body)
        if not dry_run:
            self._written("create", resource, made)
        return made

    async def apply(self, resource: KubeResource, namespace: str, body: Object) -> Object:
        """Apply an object server-side, as field manager `penstock-operator`, forcing conflicts."""
        path = path_of(resource, namespace, body["metadata"]["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        made: Object = await self._requests.send("PATCH", path, query=query, body=body, content_type=APPLY_PATCH)
        self._written("apply", resource, made)
        return made

    async def patch(self, resource: KubeResource, namespace: str, name: str, patch: Object) -> Object | None:
        """Apply a JSON merge patch. Return None if the object does not exist."""
        path = path_of(resource, namespace, name)
        made = await self._or_none("PATCH", path, body=patch, content_type=MERGE_PATCH)
        self._written("patch", resource, made)
        return made

    async def patch_status(
        self, resource: KubeResource, namespace: str, name: str, status: Object, uid: str = ""
    ) -> bool:
        """Replace the status. Return False if the object, or the one with `uid`, does not exist."""
        # A JSON patch replaces the whole status in one request; a merge patch cannot remove unknown fields.
        path = path_of(resource, namespace, name, "status")
        change: list[Object] = [{"op": "test", "path": "/metadata/uid", "value": uid}] if uid else []
        change.append({"op": "add", "path": "/status", "value": status})
        try:
            made = await self._or_none("PATCH", path, body=change, content_type=JSON_PATCH)
        except KubeError as error:
            # The API server answers 422 for a failed test and for a status that the schema rejects.
            if not uid or error.status != 422:
                raise
            there = await self.get(resource, namespace, name)
            if there is not None and there["metadata"]["uid"] == uid:
                raise
            return False
        self._written("patch_status", resource, made)
        return made is not None

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
        """Delete an object with preconditions. Return False if it does not exist. Raises `KubeError`."""
        policy = "Orphan" if orphan else "Background"
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
        conditions = {"uid": uid, "resourceVersion": resource_version}
        if any(conditions.values()):
            body["preconditions"] = {key: value for key, value in conditions.items() if value}
        try:
            await self._requests.send("DELETE", path_of(resource, namespace, name), body=body)
        except KubeError as error:
            # 409: the object has another UID, so the requested one is gone; or it has another resource version.
            if error.status == 404 or (error.status == 409 and uid and not resource_version):
                return False
            raise
        self._written("delete", resource, None)
        return True

    async def events(self, namespace: str, uid: str) -> Sequence[Object]:
        """Return Events about the object with this UID, at most one page, in no order."""
        query = {"limit": str(PAGE), "fieldSelector": f"involvedObject.uid={uid}"}
        items: Sequence[Object] = (await self._requests.send("GET", path_of(EVENTS, namespace), query=query))["items"]
        return items

    async def record_events(self, about: Object, events: Sequence[KubeEvent]) -> None:
        """Write Events about an object, best effort."""
        await self._events.record_events(about, events)

    async def _or_none(
        self, method: str, path: str, *, body: Any = None, content_type: str = "application/json"
    ) -> Object | None:
        query = {"fieldManager": FIELD_MANAGER} if method != "GET" else None
        try:
            made: Object = await self._requests.send(method, path, query=query, body=body, content_type=content_type)
        except KubeError as error:
            if error.status == 404:
                return None
            raise
        return made
