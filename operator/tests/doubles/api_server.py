"""`FakeKube` behind HTTP, as an API server for tests of kopf and the `kubernetes` package without a real one. It
supports discovery, paged lists, watches that tests can break, creates, all kinds of patches, deletes and Events.

    python api_server.py PORT     # for tests of several processes; prints the port
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from doubles.kube import KINDS, WITH_STATUS, FakeKube

from penstock_operator.ports.kube import KubeError, KubeResource, Object

EVENTS = KubeResource("", "v1", "events")
SERVED = {**KINDS, EVENTS: "Event"}
KEPT_EVENTS = 20_000


class ApiServer:
    """An API server for one test. `requests` counts by method and plural; `break_watches` ends the open watches, and
    `forget_history` makes the next ones start with "410 Gone", so that clients list again."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.forbidden: set[str] = set()
        """Plurals whose requests return 403; "pods/proxy" for that subresource."""
        self.pod_metrics: dict[str, str] = {}
        """Metrics of pods, by name and port as in the path of a proxied request."""
        self._history: list[tuple[int, KubeResource, str, Object]] = []
        self._oldest = 0
        self._watchers: set[asyncio.Queue[tuple[int, KubeResource, str, Object] | None]] = set()
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.kube.seen = self._changed

    async def start(self, port: int = 0) -> ApiServer:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        self.break_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    def break_watches(self) -> None:
        for watcher in list(self._watchers):
            watcher.put_nowait(None)

    def forget_history(self) -> None:
        self._history.clear()
        self._oldest = self.kube._version + 1

    def kubeconfig(self, folder: Path) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": base64.b64encode(b"t").decode()}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def _changed(self, resource: KubeResource, body: Object, is_new: bool, is_deleted: bool) -> None:
        kind = "DELETED" if is_deleted else "ADDED" if is_new else "MODIFIED"
        event = (int(body["metadata"]["resourceVersion"]), resource, kind, body)
        self._history.append(event)
        if len(self._history) > KEPT_EVENTS:
            self._oldest = self._history.pop(0)[0] + 1
        for watcher in self._watchers:
            watcher.put_nowait(event)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        try:
            return await self._route(request, parts)
        except KubeError as error:
            return _status(error.status, error.reason, str(error))

    async def _route(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        if parts == ["version"]:
            return web.json_response({"major": "1", "minor": "33"})
        if parts[0] == "api":
            group, parts = "", parts[1:]
        else:
            group, parts = (parts[1] if len(parts) > 1 else ""), parts[2:]
            if not group:
                return web.json_response(_groups())
        if not parts:
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if len(parts) == 1:
            return web.json_response(_resources(group, parts[0]))
        return await self._object(request, group, parts[0], parts[1:])

    def _pod_metrics(self, pod_and_port: str) -> web.StreamResponse:
        if "pods/proxy" in self.forbidden:
            raise KubeError(403, "Forbidden", 'cannot get resource "pods/proxy"')
        if pod_and_port not in self.pod_metrics:
            raise KubeError(503, "ServiceUnavailable", "the pod does not answer")
        return web.Response(text=self.pod_metrics[pod_and_port])

    async def _object(self, request: web.Request, group: str, version: str, parts: list[str]) -> web.StreamResponse:
        namespace: str | None = None
        if parts[0] == "namespaces" and len(parts) > 1:
            namespace, parts = parts[1], parts[2:]
        resource = next((r for r in SERVED if (r.group, r.version, r.plural) == (group, version, parts[0])), None)
        if resource is None:
            raise KubeError(404, "NotFound", "the server could not find the requested resource")
        name = parts[1] if len(parts) > 1 else ""
        if resource.plural == "pods" and parts[2:] == ["proxy", "metrics"]:
            return self._pod_metrics(name)
        is_list = request.method == "GET" and not name
        verb = "WATCH" if "watch" in request.query else "LIST" if is_list else request.method
        self.requests[verb + ("/status" if len(parts) > 2 else ""), resource.plural] += 1
        if resource.plural in self.forbidden:
            raise KubeError(403, "Forbidden", f"{resource.plural} is forbidden")
        if verb == "WATCH":
            return await self._watch(request, resource, namespace)
        if verb == "LIST":
            return await self._list(request, resource, namespace)
        if verb == "GET":
            found = await self.kube.get(resource, namespace or "", name)
        elif verb == "POST":
            body = await request.json()
            dry_run = "dryRun" in request.query
            made = await self.kube.create(resource, namespace or "", body, dry_run=dry_run)
            return web.json_response(made, status=201)
        elif verb == "DELETE":
            return await self._delete(await request.json(), resource, namespace or "", name)
        else:
            found = await self._patch(request, resource, namespace or "", name, parts[2:] == ["status"])
        if found is None:
            raise KubeError(404, "NotFound", f'{resource.plural} "{name}" not found')
        return web.json_response(found)

    async def _patch(
        self, request: web.Request, resource: KubeResource, namespace: str, name: str, is_status: bool
    ) -> Object | None:
        body, kind = json.loads(await request.text()), request.content_type
        if kind == "application/apply-patch+yaml":
            return await self.kube.apply(resource, namespace, body)
        if kind == "application/json-patch+json":
            assert is_status, f"a JSON patch of {resource.plural}, but not of a status"
            *tests, change = body
            assert (change["op"], change["path"]) == ("add", "/status"), body
            assert [(step["op"], step["path"]) for step in tests] in ([], [("test", "/metadata/uid")]), body
            known = self.kube.read(resource, namespace, name)
            if known is not None and any(step["value"] != known["metadata"]["uid"] for step in tests):
                message = "the server rejected our request due to an error in our request"
                raise KubeError(422, "Invalid", message)
            if not await self.kube.patch_status(resource, namespace, name, change["value"]):
                return None
            return self.kube.read(resource, namespace, name)
        assert kind == "application/merge-patch+json", kind
        return await self.kube.patch(resource, namespace, name, body)

    async def _delete(self, options: Object, resource: KubeResource, namespace: str, name: str) -> web.Response:
        conditions = options.get("preconditions") or {}
        uid, version = conditions.get("uid", ""), conditions.get("resourceVersion", "")
        known = self.kube.read(resource, namespace, name)
        if known is None:
            raise KubeError(404, "NotFound", f'{resource.plural} "{name}" not found')
        if uid and known["metadata"]["uid"] != uid:
            raise KubeError(409, "Conflict", "the UID in the precondition does not match")
        await self.kube.delete(resource, namespace, name, uid, resource_version=version)
        return _status(200, "", "", "Success")

    async def _list(self, request: web.Request, resource: KubeResource, namespace: str | None) -> web.Response:
        everything = await self.kube.list(resource, namespace, _labels(request))
        if uid := _uid_of_events(request):
            everything = [body for body in everything if body["involvedObject"]["uid"] == uid]
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 0)) or 1_000_000
        items = everything[start : start + limit]
        metadata = {"resourceVersion": str(self.kube._version)}
        if start + limit < len(everything):
            metadata["continue"] = str(start + limit)
        for item in items:  # A real API server omits the kind in lists of its built-in kinds.
            item.pop("kind", None)
            item.pop("apiVersion", None)
        kind, version = f"{SERVED[resource]}List", _api_version(resource)
        return web.json_response({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, resource: KubeResource, namespace: str | None) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion", 0))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if since + 1 < self._oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        events: asyncio.Queue[tuple[int, KubeResource, str, Object] | None] = asyncio.Queue()
        self._watchers.add(events)
        try:
            for event in [event for event in self._history if event[0] > since]:
                events.put_nowait(event)
            while (event := await events.get()) is not None:
                _, kind, what, body = event
                if kind == resource and namespace in (None, body["metadata"].get("namespace")):
                    labels = body["metadata"].get("labels") or {}
                    if all(labels.get(k) == v if v else k in labels for k, v in _labels(request).items()):
                        await response.write(json.dumps({"type": what, "object": body}).encode() + b"\n")
        except ConnectionError:
            pass
        finally:
            self._watchers.discard(events)
        return response


def _labels(request: web.Request) -> dict[str, str]:
    wanted = [part.partition("=") for part in request.query.get("labelSelector", "").split(",") if part]
    return {key: value for key, _, value in wanted}


def _uid_of_events(request: web.Request) -> str:
    field, _, uid = request.query.get("fieldSelector", "").partition("=")
    assert field in ("", "involvedObject.uid"), f"unsupported field selector {field}"
    return uid


def _groups() -> Object:
    groups = sorted({(resource.group, resource.version) for resource in SERVED if resource.group})
    entries = [
        {"name": group, "versions": [found], "preferredVersion": found}
        for group, version in groups
        for found in [{"groupVersion": f"{group}/{version}", "version": version}]
    ]
    return {"kind": "APIGroupList", "groups": entries}


def _resources(group: str, version: str) -> Object:
    entries: list[Any] = []
    for resource, kind in SERVED.items():
        if (resource.group, resource.version) == (group, version):
            entry = {
                "name": resource.plural,
                "singularName": kind.lower(),
                "kind": kind,
                "namespaced": resource.is_namespaced,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
            }
            entries.append(entry)
            if resource in WITH_STATUS:
                entries.append({**entry, "name": f"{resource.plural}/status"})
    # kopf discovers these two, although the operator does not use them here.
    if group == "":
        entries.append({"name": "namespaces", "singularName": "namespace", "kind": "Namespace", "namespaced": False})
        entries.append({"name": "events", "singularName": "event", "kind": "Event", "namespaced": True})
    return {"kind": "APIResourceList", "groupVersion": f"{group}/{version}".strip("/"), "resources": entries}


def _api_version(resource: KubeResource) -> str:
    return f"{resource.group}/{resource.version}" if resource.group else resource.version


def _status(code: int, reason: str, message: str, status: str = "Failure") -> web.Response:
    body = {"kind": "Status", "status": status, "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)


async def _serve_for_ever(port: int) -> None:
    server = await ApiServer().start(port)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve_for_ever(int(sys.argv[1])))
