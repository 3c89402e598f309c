"""Watches with kopf, which feed the `ObjectCache`. kopf lists, watches, and restarts broken watches.

kopf stores no state: only `on.event` handlers are registered (no finalizers, annotations or status progress), and its
Events, peering and scanning for namespaces and CRDs are disabled, so it needs only list and watch rights.
`engine.relist` finds objects that were deleted while a watch was broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kopf

from penstock_operator.engine.object_cache import ObjectCache
from penstock_operator.kube.http import configuration
from penstock_operator.ports.kube import KubeResource, Object

REQUEST_TIMEOUT_S = 30.0
WATCH_TIMEOUT_S = 240
"""Time after which the API server ends a watch; kopf continues from the same resource version."""
PAGE = 500
WORKERS = 200
IDLE_WORKER_S = 0.2
EVENTS_A_TICK = 200
STOP_TIMEOUT_S = 8.0


class WatchStreamsEnded(Exception):
    """kopf ended, so the process has no watches and must exit."""


class _NoDiffBase(kopf.DiffBaseStorage):
    """Stores nothing, so that kopf neither compares nor annotates objects."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None


def settings_of(labels: Mapping[KubeResource, str]) -> kopf.OperatorSettings:
    """Return kopf settings. `labels` maps resources to label selectors."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.scanning.disabled = True
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.watching.server_timeout = WATCH_TIMEOUT_S
    settings.watching.chunk_size = PAGE
    settings.queueing.worker_limit = WORKERS
    settings.queueing.idle_timeout = IDLE_WORKER_S
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.process.ultimate_exiting_timeout = None
    for resource, selector in labels.items():
        settings.watching.label_selectors[resource.group, resource.version, resource.plural] = selector
    return settings


class WatchStreams:
    """Runs kopf in a thread with its own event loop: kopf cancels all tasks of its loop when it ends, and installs
    signal handlers in the main thread. Events are transferred in batches, in order.

    `relisted` is called when kopf lists objects that the cache already has: events may have been missed.
    """

    def __init__(
        self, cache: ObjectCache, relisted: Callable[[KubeResource], None], labels: Mapping[KubeResource, str],
        namespaces: Sequence[str],
    ) -> None:  # fmt: skip
        self._copies, self._relisted = cache, relisted
        self._labels, self._namespaces = labels, namespaces
        self._events: deque[tuple[KubeResource, str | None, Object]] = deque()
        self._is_draining = False
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.newest: dict[KubeResource, int] = {}
        """Highest resource version that a watch delivered."""

    async def run(self, resources: Sequence[KubeResource]) -> None:
        """Run until cancelled. Raises fatal kopf errors (deleted CRD, missing rights): the process exits and Kubernetes
        restarts it."""
        self._loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = self._loop.create_future()
        thread = threading.Thread(target=self._main, args=(resources, ended), name="kopf", daemon=True)
        thread.start()
        try:
            await asyncio.shield(ended)
        finally:
            ended.add_done_callback(_consume_exception)
            self._stop.set()
            await asyncio.to_thread(thread.join, STOP_TIMEOUT_S)
        raise WatchStreamsEnded("kopf ended without a reason")

    def handle_event(self, resource: KubeResource, kind: str | None, body: Object) -> None:
        """Process one kopf event. `kind` is ADDED, MODIFIED, DELETED, or None for an object of a list."""
        metadata = body["metadata"]
        version = str(metadata.get("resourceVersion") or "")
        if version.isdigit():
            self.newest[resource] = max(self.newest.get(resource, 0), int(version))
        # Also at the start: kopf lists after the first complete list, and no watch reports deletions in between.
        if kind is None and self._copies.get(resource, metadata.get("namespace") or "", metadata["name"]) is not None:
            self._relisted(resource)
        self._copies.apply_event(resource, body, is_deleted=kind == "DELETED")

    def _main(self, resources: Sequence[KubeResource], ended: asyncio.Future[None]) -> None:
        assert self._loop is not None, "started without a loop"
        try:
            asyncio.run(self._operate(resources))
            why: BaseException = WatchStreamsEnded("kopf ended")
        except BaseException as error:
            why = error if isinstance(error, Exception) else WatchStreamsEnded(repr(error))
        with contextlib.suppress(RuntimeError):  # The loop may have been closed meanwhile.
            self._loop.call_soon_threadsafe(_set_ended, ended, why)

    async def _operate(self, resources: Sequence[KubeResource]) -> None:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(_login)
        for resource in resources:
            self._register(registry, resource)
        await kopf.operator(
            registry=registry,
            settings=settings_of(self._labels),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=list(self._namespaces),
            stop_flag=self._stop,
        )

    def _register(self, registry: kopf.OperatorRegistry, resource: KubeResource) -> None:
        @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)
        async def seen(event: Any, **_: Any) -> None:
            self._events.append((resource, event["type"], event["object"]))
            if not self._is_draining and self._loop is not None:
                self._is_draining = True
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_draining = False  # Before the first pop: later events schedule another drain.
        for _ in range(min(len(self._events), EVENTS_A_TICK)):
            self.handle_event(*self._events.popleft())
        if self._events and self._loop is not None and not self._is_draining:
            self._is_draining = True
            self._loop.call_soon(self._drain)


async def _login(**_kwargs: Any) -> kopf.ConnectionInfo:
    """Return the connection of `kube.http`. kopf calls this again after a 401, so renewed tokens are used."""
    configured = await asyncio.to_thread(configuration)
    header = (
        configured.get_api_key_with_prefix("BearerToken") or configured.get_api_key_with_prefix("authorization") or ""
    )
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=configured.host,
        ca_path=configured.ssl_ca_cert,
        insecure=not configured.verify_ssl,
        username=configured.username or None,
        password=configured.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configured.cert_file,
        private_key_path=configured.key_file,
    )


def _set_ended(ended: asyncio.Future[None], why: BaseException) -> None:
    if not ended.done():
        ended.set_exception(why)


def _consume_exception(ended: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved: it was reported, or this process stopped kopf."""
    if not ended.cancelled():
        ended.exception()


def quiet_kopf() -> None:
    """Set kopf's and the HTTP clients' log level to WARNING: kopf logs every event at INFO."""
    for name in ("kopf", "kopf.objects", "aiohttp.access", "kubernetes", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
