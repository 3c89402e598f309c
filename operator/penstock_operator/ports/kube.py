"""Interface to the Kubernetes API server. Objects are dictionaries, as in the API server's JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KubeResource:
    """A resource type, such as ("apps", "v1", "statefulsets") or ("", "v1", "pods")."""

    group: str
    version: str
    plural: str
    is_namespaced: bool = True


CLUSTERS = KubeResource("penstock.io", "v1beta1", "clusters")
TOPICS = KubeResource("penstock.io", "v1beta1", "topics")
CONSUMER_GROUPS = KubeResource("penstock.io", "v1beta1", "consumergroups")
USERS = KubeResource("penstock.io", "v1beta1", "users")
STATEFUL_SETS = KubeResource("apps", "v1", "statefulsets")
SERVICES = KubeResource("", "v1", "services")
CONFIG_MAPS = KubeResource("", "v1", "configmaps")
SECRETS = KubeResource("", "v1", "secrets")
PODS = KubeResource("", "v1", "pods")
CLAIMS = KubeResource("", "v1", "persistentvolumeclaims")
BUDGETS = KubeResource("policy", "v1", "poddisruptionbudgets")
SECRETS = KubeResource("", "v1", "secrets")
NETWORK_POLICIES = KubeResource("networking.k8s.io", "v1", "networkpolicies")
CERT_MANAGER_CERTIFICATES = KubeResource("cert-manager.io", "v1", "certificates")
TLS_ROUTES = KubeResource("gateway.networking.k8s.io", "v1", "tlsroutes")
"""Of Gateway API 1.5 or later."""
NODES = KubeResource("", "v1", "nodes", is_namespaced=False)
LEASES = KubeResource("coordination.k8s.io", "v1", "leases")


class KubeError(Exception):
    """A request was rejected or not answered. `status`: HTTP status; 0: no response."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.status, self.reason = status, reason

    @property
    def is_passing(self) -> bool:
        """Whether a retry may succeed."""
        return self.status in (0, 409, 429) or self.status >= 500


@dataclass(frozen=True, slots=True)
class KubeEvent:
    """A Kubernetes Event about an object. `reason` is CamelCase."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list, and the resource version of the list."""

    items: list[Object]
    version: str


class Kube(Protocol):
    """API server operations. All raise `KubeError` and have a timeout of 30 s."""

    async def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        """Return an object, or None if it does not exist."""

    async def list(
        self, resource: KubeResource, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Return all objects; `namespace` None: of all namespaces. A label with the value "" only has to exist."""

    def pages(
        self, resource: KubeResource, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[ListPage]:
        """As `list`, page by page, to bound the memory; yields at least one page."""

    async def create(self, resource: KubeResource, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        """Create an object, or with `dry_run` only validate it."""

    async def apply(self, resource: KubeResource, namespace: str, body: Object) -> Object:
        """Apply an object server-side, as field manager `penstock-operator`, forcing conflicts."""

    async def patch(self, resource: KubeResource, namespace: str, name: str, patch: Object) -> Object | None:
        """Apply a JSON merge patch. Return None if the object does not exist."""

    async def patch_status(
        self, resource: KubeResource, namespace: str, name: str, status: Object, uid: str = ""
    ) -> bool:
        """Replace the status. Return False if the object does not exist. With `uid`: only of the object with this
        UID."""

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
        """Delete an object. Return False if it, or the one with `uid`, does not exist. With `resource_version`, raise a
        conflict (409) if the object changed. With `orphan`, its dependents are kept without an owner."""

    async def events(self, namespace: str, uid: str) -> Sequence[Object]:
        """Return Events about the object with this UID, in no order."""

    async def record_events(self, about: Object, events: Sequence[KubeEvent]) -> None:
        """Write Events, best effort: repeated ones are counted in one Event. Does not raise."""
