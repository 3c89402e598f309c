"""Removes executors of a dead driver of the same pod before the next one starts. Called by `cli.run`.

On Kubernetes executors are owned by their driver's pod and are deleted with it. A driver whose process is killed (out
of memory, for example) is started again in the same pod, and its executors stay: running ones have ended and remain as
failed pods, pending ones would still be scheduled. A starting driver has no executors, so all that its pod owns are
left over.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import msgspec

from penstock_spark.model.errors import PenstockSparkError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SCHEME = "k8s://"
TOKEN_FILE = "spark.kubernetes.authenticate.oauthTokenFile"  # noqa: S105 - names a file
CA_FILE = "spark.kubernetes.authenticate.caCertFile"
TIMEOUT_S = 10
MAX_ANSWER_BYTES = 32 << 20
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
LIST_OF_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
NOT_FOUND = 404


class PodOwner(msgspec.Struct, frozen=True):
    """An owner reference of a pod."""

    uid: str


class PodMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of a pod."""

    name: str
    uid: str
    owner_references: list[PodOwner] = []


class SparkPod(msgspec.Struct, frozen=True):
    """A pod, with metadata only."""

    metadata: PodMetadata


class SparkPodList(msgspec.Struct, frozen=True):
    """A list of pods."""

    items: list[SparkPod]


class Unreachable(PenstockSparkError):
    """The API server did not answer, or rejected a request."""


class PodApi:
    """Client for the pods of a namespace."""

    def __init__(self, url: str, namespace: str, token_file: Path, ca_file: Path) -> None:
        self._pods = f"{url}/api/v1/namespaces/{quote(namespace)}/pods"
        self._token_file = token_file
        self._ca_file = ca_file

    def pod(self, name: str) -> SparkPod:
        """Return a pod."""
        return msgspec.json.decode(self._request("GET", f"/{quote(name)}", METADATA), type=SparkPod)

    def executors(self) -> list[SparkPod]:
        """Return the executors of all drivers."""
        answer = self._request("GET", "?labelSelector=spark-role%3Dexecutor", LIST_OF_METADATA)
        return msgspec.json.decode(answer, type=SparkPodList).items

    def delete(self, name: str) -> None:
        """Delete a pod; one that does not exist is ignored."""
        try:
            self._request("DELETE", f"/{quote(name)}", "application/json")
        except HTTPError as e:
            if e.code != NOT_FOUND:
                raise

    def _request(self, method: str, path: str, accept: str) -> bytes:
        headers = {"Authorization": f"Bearer {self._token_file.read_text().strip()}", "Accept": accept}
        tls = ssl.create_default_context(cafile=str(self._ca_file)) if self._ca_file.exists() else None
        request = Request(self._pods + path, headers=headers, method=method)  # noqa: S310 - the API server's
        with urlopen(request, timeout=TIMEOUT_S, context=tls) as answer:  # noqa: S310
            body: bytes = answer.read(MAX_ANSWER_BYTES + 1)
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError(f"response is larger than {MAX_ANSWER_BYTES:,} bytes")
        return body


def remove(settings: Mapping[str, str]) -> int:
    """Delete the executors of this pod's dead driver. Return their number. Raises `Unreachable`.

    `settings` are the session's. A driver that does not run in the pod that they name has no executors to remove: the
    second pod of a StatefulSet, scaled by mistake, must not delete those of the first.
    """
    master, driver = settings.get("spark.master", ""), settings.get("spark.kubernetes.driver.pod.name")
    token_file = Path(settings.get(TOKEN_FILE, ACCOUNT / "token"))
    if not master.startswith(SCHEME) or driver != socket.gethostname() or not token_file.exists():
        return 0
    namespace = settings.get("spark.kubernetes.namespace", "default")
    api = PodApi(master.removeprefix(SCHEME), namespace, token_file, Path(settings.get(CA_FILE, ACCOUNT / "ca.crt")))
    try:
        own = PodOwner(api.pod(driver).metadata.uid)
        left = [pod.metadata.name for pod in api.executors() if own in pod.metadata.owner_references]
        for name in left:
            api.delete(name)
    except (OSError, ValueError, HTTPException, msgspec.MsgspecError) as e:
        raise Unreachable(f"{master}: {e}") from e
    return len(left)
