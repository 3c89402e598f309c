"""Periodic complete lists that correct the cache after missed watch events.

The first list of each resource makes absence meaningful (`Objects.is_listed`). Later lists run every
`RELIST_INTERVAL_S`, and shortly after kopf relisted, because kopf does not report objects deleted meanwhile. Pages are
applied one by one, so a list needs the memory of one page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.object_cache import Name, ObjectCache, name_of
from penstock_operator.ports.kube import Kube, KubeError, KubeResource

RELIST_INTERVAL_S = 300.0
AFTER_RELIST_S = 5.0
RETRY_S = 2.0

log = get_logger("operator")


class PeriodicRelist:
    """Lists the resources periodically. `resources` maps each one to its label selector. Empty `namespaces`: all."""

    def __init__(
        self, kube: Kube, cache: ObjectCache, metrics: OperatorMetrics, namespaces: Sequence[str],
        resources: Mapping[KubeResource, Mapping[str, str]],
    ) -> None:  # fmt: skip
        self._kube, self.cache, self._metrics = kube, cache, metrics
        self._namespaces = tuple(namespaces)
        self._resources: dict[KubeResource, Mapping[str, str]] = {}
        self._namespaces_of: dict[KubeResource, tuple[str | None, ...]] = {}
        self._soon: dict[KubeResource, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_complete = False
        """Whether the first lists of all resources are complete."""
        for resource, labels in resources.items():
            self.add(resource, labels)

    def add(self, resource: KubeResource, labels: Mapping[str, str]) -> None:
        """Add a resource to the lists."""
        self._resources[resource] = labels
        places = self._namespaces if self._namespaces and resource.is_namespaced else (None,)
        self._namespaces_of[resource] = places
        self.cache.expect_lists(resource, places)

    def relisted(self, resource: KubeResource) -> None:
        """Schedule a list of a resource soon; repeated calls are merged."""
        if self.is_complete and resource in self._namespaces_of and resource not in self._soon:
            self._soon[resource] = asyncio.get_running_loop().call_later(AFTER_RELIST_S, self._start, resource)

    async def run(self) -> None:
        """List periodically until cancelled. Call `once` before."""
        while True:
            await asyncio.sleep(RELIST_INTERVAL_S)
            await self.once()

    async def once(self) -> None:
        """List all resources; retries each until it succeeds."""
        for resource in list(self._namespaces_of):
            await self._list_with_retries(resource)
        self.is_complete = True

    async def list_once(self, resource: KubeResource) -> None:
        """List one resource in all namespaces. Raises `KubeError`."""
        places = self._namespaces_of[resource]
        for namespace in places:
            try:
                repaired = await self._list_place(resource, namespace)
            except KubeError as error:
                # A namespace that is deleted later, with its Role, must not block the other namespaces.
                if error.status != 403 or not self.is_complete or len(places) == 1:
                    raise
                log.warning(
                    "cannot list a namespace; keeping its cached objects",
                    namespace=namespace,
                    why=_explain(resource, error),
                )
                continue
            if repaired and self.is_complete:
                self._metrics.record_repairs(resource.plural, repaired)
                log.info("a list corrected cached objects", resource=resource.plural, copies=repaired)

    async def _list_place(self, resource: KubeResource, namespace: str | None) -> int:
        """List one namespace. Return the number of corrected objects."""
        there: set[Name] = set()
        version, repaired = "", 0
        async for page in self._kube.pages(resource, namespace, self._resources[resource]):
            version = version or page.version
            there.update(map(name_of, page.items))
            repaired += sum(self.cache.apply_event(resource, body) for body in page.items)
            await asyncio.sleep(0)
        return repaired + self.cache.apply_list(resource, namespace, there, version)

    async def _list_with_retries(self, resource: KubeResource) -> None:
        while True:
            try:
                await self.list_once(resource)
            except KubeError as error:
                log.warning("cannot list a resource; retrying", resource=resource.plural, why=_explain(resource, error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _start(self, resource: KubeResource) -> None:
        del self._soon[resource]
        task = spawn(self._list_with_retries(resource), f"sweep {resource.plural}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _explain(resource: KubeResource, error: KubeError) -> str:
    if error.status == 404 and resource.group == "penstock.io":
        return f"{error}; install the CRDs: kubectl apply --server-side -f crds/"
    if error.status == 403:
        return f"{error}; grant the operator's Role list and watch on {resource.plural}"
    return str(error)
