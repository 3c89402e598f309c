"""Kubernetes, as far as the operator needs it. Objects are dictionaries as the API server's JSON has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KubeResource:
    """A kind of object: ("apps", "v1", "statefulsets"), ("", "v1", "pods"), ("penstock.io", "v1beta1", "topics")."""

    group: str
    version: str
    plural: str
    is_namespaced: bool = True


CLUSTERS = KubeResource("penstock.io", "v1beta1", "clusters")
TOPICS = KubeResource("penstock.io", "v1beta1", "topics")
CONSUMER_GROUPS = KubeResource("penstock.io", "v1beta1", "consumergroups")
STATEFUL_SETS = KubeResource("apps", "v1", "statefulsets")
SERVICES = KubeResource("", "v1", "services")
CONFIG_MAPS = KubeResource("", "v1", "configmaps")
PODS = KubeResource("", "v1", "pods")
CLAIMS = KubeResource("", "v1", "persistentvolumeclaims")
BUDGETS = KubeResource("policy", "v1", "poddisruptionbudgets")
NODES = KubeResource("", "v1", "nodes", is_namespaced=False)
LEASES = KubeResource("coordination.k8s.io", "v1", "leases")


class KubeError(Exception):
    """The API server refused, or could not be asked. `status` is HTTP's, 0 where there was no answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.status, self.reason = status, reason

    @property
    def is_passing(self) -> bool:
        """Whether the same may succeed later."""
        return self.status in (0, 409, 429) or self.status >= 500


@dataclass(frozen=True, slots=True)
class KubeEvent:
    """An Event about an object, for people. `reason` is CamelCase."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ListPage:
    """A part of a list and the resource version that the whole list is of."""

    items: list[Object]
    version: str


class Kube(Protocol):
    """All raise `KubeError`; bounded in time (30 s)."""

    async def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None: ...

    async def list(
        self, resource: KubeResource, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """All pages; of every namespace where `namespace` is None. A label with the value "" need only be there."""

    def pages(
        self, resource: KubeResource, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[ListPage]:
        """As `list`, page by page, so that many objects need not be in memory at once; at least one page comes."""

    async def create(
        self, resource: KubeResource, namespace: str, body: Object, *, dry_run: bool = False
    ) -> Object: ...

    async def apply(self, resource: KubeResource, namespace: str, body: Object) -> Object:
        """Server-side, as field manager `penstock-operator`, by force."""

    async def patch(self, resource: KubeResource, namespace: str, name: str, patch: Object) -> Object | None:
        """JSON merge patch; None where the object has gone."""

    async def patch_status(
        self, resource: KubeResource, namespace: str, name: str, status: Object, uid: str = ""
    ) -> bool:
        """Replaces the whole status; False where the object has gone. With `uid`, only that object's: another of the
        name may have been made meanwhile."""

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
        """With `uid`, only that object; False where it was gone. With `resource_version`, only as it was then: one that
        was changed meanwhile, or is another, is a conflict (409), for the caller to look again. With `orphan` what it
        owns stays, and has no owner."""

    async def tell(self, about: Object, happenings: Sequence[KubeEvent]) -> None:
        """Writes Events (events.k8s.io/v1), the same ones counted in a series; never raises: telling is best effort."""
