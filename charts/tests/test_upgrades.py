"""What an upgrade of the chart refuses because it looked at what is there: rendered by helm against an API server that
has the companion etcd of the first install."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from penstock_charts import RENDER, Document, render

TLS = "etcd.companion.tlsSecret=server,etcd.tls.clientSecret=client"
WHERE = "/apis/apps/v1/namespaces/queue/statefulsets/penstock-etcd"
KINDS = {
    "kind": "APIResourceList",
    "groupVersion": "apps/v1",
    "resources": [{"name": "statefulsets", "namespaced": True, "kind": "StatefulSet", "verbs": ["get"]}],
}


class Answers(BaseHTTPRequestHandler):
    found: dict[str, Any]

    def do_GET(self) -> None:
        body = self.found.get(self.path.partition("?")[0])
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body or {"kind": "Status", "status": "Failure", "code": 404}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


Upgrade = Callable[..., str]


@pytest.fixture
def upgrade(helm: str, chart: Path, tmp_path: Path) -> Iterator[Upgrade]:
    """Renders with the StatefulSet `there`, and returns why that was refused ("" where it was not)."""

    class Mine(Answers):
        found = {"/apis/apps/v1": KINDS}  # noqa: RUF012

    server = ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    Thread(target=server.serve_forever, daemon=True).start()

    def run(there: Document, *options: str) -> str:
        Mine.found[WHERE] = there
        where = ["--kube-apiserver", f"http://127.0.0.1:{server.server_port}", "--dry-run=server"]
        command = [helm, "template", "penstock", str(chart), *RENDER, *where, *options]
        env = {**os.environ, "KUBECONFIG": "/dev/null", "HOME": str(tmp_path)}
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert (result.returncode != 0) == bool(result.stderr.strip()), result.stderr
        return result.stderr

    yield run
    server.shutdown()
    server.server_close()


def companion(helm: str, chart: Path, *options: str) -> Document:
    """As the API server has it after an install with these options: it completes claims, and says what they ask for in
    its own words."""
    (found,) = [d for d in render(helm, chart, *options) if d["kind"] == "StatefulSet"]
    (claim,) = found["spec"]["volumeClaimTemplates"]
    claim["spec"]["volumeMode"] = "Filesystem"
    asked = claim["spec"]["resources"]["requests"]
    asked["storage"] = {"1.5Gi": "1536Mi"}.get(asked["storage"], asked["storage"])
    return found


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ("", "etcd.companion.replicas=1", "etcd.companion.replicas is fixed at the first install: there are 3, 1 are"),
        ("", TLS, "TLS of the companion etcd is fixed at the first install"),
        (TLS, "", "TLS of the companion etcd is fixed at the first install"),
        ("", "etcd.companion.storage.size=4Gi", "the companion etcd has volumes of 2Gi, 4Gi are asked for"),
        ("", "etcd.companion.storage.size=4Gi", "kubectl delete statefulset penstock-etcd --cascade=orphan"),
        ("etcd.companion.storage.size=2G", "", "the companion etcd has volumes of 2G, 2Gi are asked for"),
        ("", "etcd.companion.storage.className=fast", "etcd.companion.storage.className is fixed at the first install"),
        ("etcd.companion.storage.className=fast", "", "etcd.companion.storage.className is fixed at the first install"),
    ],
)
def test_what_the_companion_etcd_would_not_survive_or_kubernetes_refuse_is_refused(
    helm: str, chart: Path, upgrade: Upgrade, first: str, then: str, words: str
) -> None:
    assert words in upgrade(companion(helm, chart, "--set", first), "--set", then)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("", ""),
        ("", "etcd.companion.initialClusterState=existing"),
        ("", "etcd.companion.storage.size=2048Mi"),
        ("etcd.companion.storage.size=1.5Gi", "etcd.companion.storage.size=1.5Gi"),
        ("etcd.companion.storage.size=1.5Gi", "etcd.companion.storage.size=1536Mi"),
        ("etcd.companion.storage.size=2Gi", "etcd.companion.storage.size=2097152Ki"),
        ("etcd.companion.storage.className=fast", "etcd.companion.storage.className=fast"),
        (TLS, TLS),
        (TLS, f"{TLS},etcd.companion.tlsSecret=another"),
        ("etcd.companion.replicas=1", "etcd.companion.replicas=1"),
        ("etcd.companion.replicas=1", "etcd.mode=sidecar"),
    ],
)
def test_an_upgrade_that_changes_none_of_that_goes_on(
    helm: str, chart: Path, upgrade: Upgrade, first: str, then: str
) -> None:
    assert upgrade(companion(helm, chart, "--set", first), "--set", then) == ""
