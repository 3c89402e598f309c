"""Connection of the plugin to the API server, by kubectl's files and options. Used by `main` and `completion`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kubernetes.client import Configuration
from kubernetes.config import ConfigException, list_kube_config_contexts, load_incluster_config, load_kube_config

from penstock_operator.kube.http import MERGE_PATCH, Requests, path_of
from penstock_operator.ports.kube import PODS, KubeError, KubeResource, Object
from penstock_operator.specs import names

PAGE = 500
MAX_OBJECTS = 50_000
"""Maximum number of objects that a command reads."""
EVENTS = KubeResource("", "v1", "events")
NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class NoAccess(Exception):
    """The API server cannot be reached: there is no usable configuration."""


@dataclass(frozen=True, slots=True)
class KubeOptions:
    """kubectl's options. Empty: kubectl's defaults."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""


class ResourceReader:
    """Reads and patches objects. Raises `KubeError`."""

    def __init__(self, requests: Requests, namespace: str) -> None:
        self._requests, self.namespace = requests, namespace

    async def list_objects(
        self, resource: KubeResource, *, all_namespaces: bool = False, query: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Return the objects of the namespace, or of all namespaces."""
        path = path_of(resource, None if all_namespaces else self.namespace)
        asked, found = {"limit": str(PAGE), **(query or {})}, list[Object]()
        while len(found) < MAX_OBJECTS:
            page = await self._requests.send("GET", path, query=asked)
            found += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            asked = {**asked, "continue": str(token)}
        raise KubeError(0, "TooMany", f"there are more than {MAX_OBJECTS:,} {resource.plural}; use --namespace")

    async def get(self, resource: KubeResource, name: str) -> Object | None:
        """Return an object; None if it does not exist."""
        try:
            found: Object = await self._requests.send("GET", path_of(resource, self.namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def pod_metrics(self, namespace: str, pod: str) -> str:
        """Return the metrics of a broker's pod, which the API server requests from it."""
        place = path_of(PODS, namespace, f"{pod}:{names.HTTP_PORT}")
        return await self._requests.read_text(f"{place}/proxy/metrics")

    async def patch(self, resource: KubeResource, name: str, change: Object) -> None:
        """Apply a JSON merge patch."""
        path = path_of(resource, self.namespace, name)
        query = {"fieldManager": "kubectl-penstock"}
        await self._requests.send("PATCH", path, query=query, body=change, content_type=MERGE_PATCH)

    async def annotate(self, resource: KubeResource, body: Object, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of an object, or remove them (None). Fails with a conflict if it changed since `body`."""
        meta = {"annotations": dict(annotations), "resourceVersion": body["metadata"]["resourceVersion"]}
        await self.patch(resource, body["metadata"]["name"], {"metadata": meta})

    def close(self) -> None:
        """Close the connection."""
        self._requests.close()


def connect(options: KubeOptions, *, timeout_s: float = 20.0) -> ResourceReader:
    """Return a reader. Raises `NoAccess`."""
    configured = Configuration()
    files = options.kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    is_given = bool(options.kubeconfig or options.context or os.environ.get("KUBECONFIG"))
    try:
        if not is_given and os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(client_configuration=configured)  # type: ignore[no-untyped-call]
            namespace = options.namespace or pod_namespace()
        else:
            load_kube_config(  # type: ignore[no-untyped-call]
                config_file=files, context=options.context or None, client_configuration=configured
            )
            contexts, active = list_kube_config_contexts(config_file=files)  # type: ignore[no-untyped-call]
            namespace = options.namespace or context_namespace(contexts, options.context or active["name"])
    except (ConfigException, OSError) as error:
        raise NoAccess(f"cannot connect to Kubernetes: {error}; set --kubeconfig, --context or KUBECONFIG") from error
    configured.retries = False
    return ResourceReader(Requests(configured, timeout_s=timeout_s, threads=8), namespace)


def context_namespace(contexts: Sequence[Mapping[str, object]], name: str) -> str:
    """Return the namespace of a context."""
    for context in contexts:
        details = context.get("context")
        if context.get("name") == name and isinstance(details, Mapping):
            return str(details.get("namespace") or "default")
    return "default"


def pod_namespace() -> str:
    """Return the namespace of the pod in which the plugin runs."""
    try:
        with open(NAMESPACE_FILE, encoding="utf-8") as file:
            return file.read(253).strip() or "default"
    except OSError:
        return "default"
