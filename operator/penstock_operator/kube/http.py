"""HTTP requests to the API server, run in threads. Used by `kube.client` and `kube.events`.

The `kubernetes` package provides the connection (kubeconfig or service account, TLS, token renewal). Its model classes
are not used: with 10,000 objects they dominate the CPU time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import load_incluster_config, load_kube_config

from penstock_operator.ports.kube import KubeError, KubeResource

REQUEST_TIMEOUT_S = 30.0
THREADS = 12
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of a response body; pages have at most a few hundred objects."""

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def configuration() -> Configuration:
    """Return the connection settings: from KUBECONFIG if set, in a pod from the service account, otherwise from
    ~/.kube/config. Raises `kubernetes.config.ConfigException` if none exists."""
    found = Configuration()
    if os.environ.get("KUBECONFIG") or not os.environ.get("KUBERNETES_SERVICE_HOST"):
        file = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
        load_kube_config(config_file=file, client_configuration=found)  # type: ignore[no-untyped-call]
    else:
        load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
    found.retries = False
    found.connection_pool_maxsize = THREADS
    return found


def path_of(resource: KubeResource, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Return the path of an object or a collection; of all namespaces if `namespace` is None."""
    parts = ["apis", resource.group, resource.version] if resource.group else ["api", resource.version]
    if resource.is_namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (resource.plural, name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


class Requests:
    """HTTP client with a bounded number of threads and a timeout per request."""

    def __init__(
        self, configured: Configuration, *, timeout_s: float = REQUEST_TIMEOUT_S, threads: int = THREADS
    ) -> None:
        self._api = ApiClient(configured)
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kube")

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Any:
        """Send a request and return the decoded response. Retries a GET once after a connection error, because the
        server may have closed an idle connection. Raises only `KubeError`."""
        if query:
            path = f"{path}?{urlencode(query)}"
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._send, method, path, body, content_type)
        except KubeError as error:
            if method != "GET" or error.status != 0:
                raise
        return await loop.run_in_executor(self._threads, self._send, method, path, body, content_type)

    async def read_text(self, path: str) -> str:
        """Return the response of a GET as text. Raises only `KubeError`."""
        loop = asyncio.get_running_loop()
        status, data = await loop.run_in_executor(self._threads, self._exchange, "GET", path, None, "application/json")
        if status >= 400:
            _decoded(status, data)
        return data.decode("utf-8", "replace")

    def close(self) -> None:
        """Reject further requests. Running requests finish or time out."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, method: str, path: str, body: Any, content_type: str) -> Any:
        return _decoded(*self._exchange(method, path, body, content_type))

    def _exchange(self, method: str, path: str, body: Any, content_type: str) -> tuple[int, bytes]:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            sent = self._api.param_serialize(method, path, header_params=headers, auth_settings=["BearerToken"])
            answer = self._api.call_api(*sent[:3], body=body, _request_timeout=self._timeout_s)
            data = answer.response.read(MAX_ANSWER_BYTES, decode_content=True)
            answer.response.release_conn()
        except ApiException as error:
            raise KubeError(error.status or 0, error.reason or "NoAnswer", str(error.body or "")[:500]) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KubeError(0, "NoAnswer", f"{method} {path.partition('?')[0]}: {error}") from error
        return answer.status, data


def _decoded(status: int, data: bytes) -> Any:
    try:
        decoded = msgspec.json.decode(data) if data else {}
    except msgspec.DecodeError as error:
        reason = data[:200].decode("utf-8", "replace") if status >= 400 else str(error)
        raise KubeError(status if status >= 400 else 0, "BadAnswer", reason) from error
    if status >= 400:
        details = decoded if isinstance(decoded, dict) else {}
        raise KubeError(
            status, str(details.get("reason") or f"HTTP{status}"), str(details.get("message") or "no message")
        )
    return decoded
