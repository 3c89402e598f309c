"""Complete lists, now and then, that put the watched copies right: what a watch did not tell does not stay wrong.

At the start one list of each resource makes absence mean something (`Objects.is_listed`). Afterwards the copies are
compared again every `SWEEP_S`, and soon after kopf listed anew, as it does not tell which objects were gone by then.
Pages are taken in one by one, so that a list costs no more memory than a page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from penstock.runtime.logging import get_logger
from penstock_operator.engine.copies import Copies, Name, name_of
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.ports.kube import Kube, KubeError, KubeResource

SWEEP_S = 300.0
AFTER_RELIST_S = 5.0
RETRY_S = 2.0

log = get_logger("operator")


class Sweep:
    """`selectors` has the labels that a resource's objects are chosen by. `namespaces` empty: all of them."""

    def __init__(
        self, kube: Kube, copies: Copies, metrics: OperatorMetrics, namespaces: Sequence[str],
        resources: Mapping[KubeResource, Mapping[str, str]],
    ) -> None:  # fmt: skip
        self._kube, self.copies, self._metrics = kube, copies, metrics
        self._namespaces = tuple(namespaces)
        self._resources: dict[KubeResource, Mapping[str, str]] = {}
        self._places: dict[KubeResource, tuple[str | None, ...]] = {}
        self._soon: dict[KubeResource, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_complete = False
        """Whether the first lists of all resources have come."""
        for resource, labels in resources.items():
            self.add(resource, labels)

    def add(self, resource: KubeResource, labels: Mapping[str, str]) -> None:
        """From now on this one is listed, too."""
        self._resources[resource] = labels
        places = self._namespaces if self._namespaces and resource.is_namespaced else (None,)
        self._places[resource] = places
        self.copies.expect(resource, places)

    def relisted(self, resource: KubeResource) -> None:
        """Lists a resource again soon; many calls are one list."""
        if self.is_complete and resource in self._places and resource not in self._soon:
            self._soon[resource] = asyncio.get_running_loop().call_later(AFTER_RELIST_S, self._start, resource)

    async def run(self) -> None:
        """Until cancelled; `once` was there before."""
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.once()

    async def once(self) -> None:
        """Lists all resources, each as often as it takes."""
        for resource in list(self._places):
            await self._persistently(resource)
        self.is_complete = True

    async def list_once(self, resource: KubeResource) -> None:
        """Lists one resource everywhere. Raises `KubeError`."""
        places = self._places[resource]
        for namespace in places:
            try:
                repaired = await self._list_place(resource, namespace)
            except KubeError as error:
                # Afterwards a namespace that goes, and its Role with it, keeps no other from being listed.
                if error.status != 403 or not self.is_complete or len(places) == 1:
                    raise
                log.warning("cannot list: left as it is", namespace=namespace, why=_cure(resource, error))
                continue
            if repaired and self.is_complete:
                self._metrics.repaired(resource.plural, repaired)
                log.info("a list put copies right", resource=resource.plural, copies=repaired)

    async def _list_place(self, resource: KubeResource, namespace: str | None) -> int:
        """Returns how many copies were not right."""
        there: set[Name] = set()
        version, repaired = "", 0
        async for page in self._kube.pages(resource, namespace, self._resources[resource]):
            version = version or page.version
            there.update(map(name_of, page.items))
            repaired += sum(self.copies.saw(resource, body) for body in page.items)
            await asyncio.sleep(0)
        return repaired + self.copies.complete(resource, namespace, there, version)

    async def _persistently(self, resource: KubeResource) -> None:
        while True:
            try:
                await self.list_once(resource)
            except KubeError as error:
                log.warning("cannot list: tried again", resource=resource.plural, why=_cure(resource, error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _start(self, resource: KubeResource) -> None:
        del self._soon[resource]
        task = asyncio.create_task(self._persistently(resource), name=f"sweep {resource.plural}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _cure(resource: KubeResource, error: KubeError) -> str:
    if error.status == 404 and resource.group == "penstock.io":
        return f"{error}: the custom resource definitions are not installed (kubectl apply -f crds/)"
    if error.status == 403:
        return f"{error}: the operator's Role needs list and watch on {resource.plural}"
    return str(error)
