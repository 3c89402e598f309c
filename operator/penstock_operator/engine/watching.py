"""Events from the API server into `Copies`, by kopf: it lists, watches, and starts again where a watch broke.

kopf is told to keep nothing anywhere: `on.event` handlers alone (no finalizer, no annotation, no progress in the
status), no Events of its own, no peering, no scanning for namespaces and definitions (so no rights beyond list and
watch on what is watched). What it does not tell, `engine.sweep` finds: an object that went while a watch was broken.
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

from penstock_operator.engine.copies import Copies
from penstock_operator.kube.http import configuration
from penstock_operator.ports.kube import KubeResource, Object

REQUEST_TIMEOUT_S = 30.0
WATCH_TIMEOUT_S = 240
"""The API server ends a watch after this; a new one goes on from the same resource version."""
PAGE = 500
WORKERS = 200
IDLE_WORKER_S = 0.2
EVENTS_A_TICK = 200
STOP_TIMEOUT_S = 8.0


class WatchingEnded(Exception):
    """There are no watches any more, which the process cannot do without."""


class _Nothing(kopf.DiffBaseStorage):
    """Remembers nothing of objects, so that kopf neither compares nor annotates them."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None


def settings_of(labels: Mapping[KubeResource, str]) -> kopf.OperatorSettings:
    """`labels` has the label selectors of resources of which not all are watched."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.scanning.disabled = True
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.watching.server_timeout = WATCH_TIMEOUT_S
    settings.watching.chunk_size = PAGE
    settings.queueing.worker_limit = WORKERS
    settings.queueing.idle_timeout = IDLE_WORKER_S
    settings.persistence.diffbase_storage = _Nothing()
    settings.process.ultimate_exiting_timeout = None
    for resource, selector in labels.items():
        settings.watching.label_selectors[resource.group, resource.version, resource.plural] = selector
    return settings


class Watching:
    """Runs kopf in a thread with a loop of its own: when kopf ends it cancels every task of its loop, and it takes the
    process's signals where it runs in the main thread. Events come over in batches, in their order.

    `relisted` is called when objects are listed anew that are known already: something may have been missed.
    """

    def __init__(
        self, copies: Copies, relisted: Callable[[KubeResource], None], labels: Mapping[KubeResource, str],
        namespaces: Sequence[str],
    ) -> None:  # fmt: skip
        self._copies, self._relisted = copies, relisted
        self._labels, self._namespaces = labels, namespaces
        self._events: deque[tuple[KubeResource, str | None, Object]] = deque()
        self._is_draining = False
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.newest: dict[KubeResource, int] = {}
        """The highest resource version that a watch brought."""

    async def run(self, resources: Sequence[KubeResource]) -> None:
        """Until cancelled. Raises what kopf cannot get over (a definition that is gone, rights that are missing): the
        process ends then, and is started again."""
        self._loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = self._loop.create_future()
        thread = threading.Thread(target=self._main, args=(resources, ended), name="kopf", daemon=True)
        thread.start()
        try:
            await asyncio.shield(ended)
        finally:
            ended.add_done_callback(_retrieved)
            self._stop.set()
            await asyncio.to_thread(thread.join, STOP_TIMEOUT_S)
        raise WatchingEnded("kopf ended without a reason")

    def saw(self, resource: KubeResource, kind: str | None, body: Object) -> None:
        """One event of kopf: ADDED, MODIFIED, DELETED, or None for an object of a list."""
        metadata = body["metadata"]
        version = str(metadata.get("resourceVersion") or "")
        if version.isdigit():
            self.newest[resource] = max(self.newest.get(resource, 0), int(version))
        # Also at the start, where the sweep listed before kopf did: what went in between, no watch tells.
        if kind is None and self._copies.get(resource, metadata.get("namespace") or "", metadata["name"]) is not None:
            self._relisted(resource)
        self._copies.saw(resource, body, is_deleted=kind == "DELETED")

    def _main(self, resources: Sequence[KubeResource], ended: asyncio.Future[None]) -> None:
        assert self._loop is not None, "started without a loop"
        try:
            asyncio.run(self._operate(resources))
            why: BaseException = WatchingEnded("kopf ended")
        except BaseException as error:
            why = error if isinstance(error, Exception) else WatchingEnded(repr(error))
        with contextlib.suppress(RuntimeError):  # The loop may have been closed meanwhile.
            self._loop.call_soon_threadsafe(_end, ended, why)

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
        self._is_draining = False  # Before the first is taken: what comes from now on calls again.
        for _ in range(min(len(self._events), EVENTS_A_TICK)):
            self.saw(*self._events.popleft())
        if self._events and self._loop is not None and not self._is_draining:
            self._is_draining = True
            self._loop.call_soon(self._drain)


async def _login(**_kwargs: Any) -> kopf.ConnectionInfo:
    """The same connection as `kube` has. kopf asks again where the API server says 401: tokens are renewed."""
    where = await asyncio.to_thread(configuration)
    header = where.get_api_key_with_prefix("BearerToken") or where.get_api_key_with_prefix("authorization") or ""
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=where.host,
        ca_path=where.ssl_ca_cert,
        insecure=not where.verify_ssl,
        username=where.username or None,
        password=where.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=where.cert_file,
        private_key_path=where.key_file,
    )


def _end(ended: asyncio.Future[None], why: BaseException) -> None:
    if not ended.done():
        ended.set_exception(why)


def _retrieved(ended: asyncio.Future[None]) -> None:
    """Its reason was told, or was this process's own stop."""
    if not ended.cancelled():
        ended.exception()


def quiet_kopf() -> None:
    """Its own log says what every event did; of interest is what it could not do."""
    for name in ("kopf", "kopf.objects", "aiohttp.access", "kubernetes", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
