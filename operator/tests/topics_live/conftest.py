"""Topics end to end: the operator as a process, the API server of $KUBECONFIG, and a real broker.

Without KUBECONFIG pytest does not collect these tests. The Cluster object is paused: its broker is a local process,
whose address the operator receives.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crds.kubectl_kit import ROOT, Kubectl
from topics_live.live_kit import Live

BROKER_TESTS = ROOT / "broker" / "tests"
sys.path[:0] = [str(BROKER_TESTS / "node"), str(BROKER_TESTS / "state")]

if not os.environ.get("KUBECONFIG"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    from node_kit import Process

    namespace = f"penstock-topics-{secrets.token_hex(4)}"
    kubectl = Kubectl(namespace)
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        kubectl.must("apply", "--server-side", "--force-conflicts", "-f", str(path))
    kubectl.must("create", "namespace", namespace)
    broker = Process(tmp_path).ready()
    made = Live(kubectl, namespace, f"127.0.0.1:{broker.port}", tmp_path)
    try:
        kubectl.apply(
            {
                "apiVersion": "penstock.io/v1beta1",
                "kind": "Cluster",
                "metadata": {"name": "c"},
                "spec": {"paused": True, "etcd": {"endpoints": ["http://etcd.invalid:2379"]}},
            }
        )
        made.start()
        yield made
    finally:
        made.stop()
        broker.kill()
        kubectl.run("delete", "namespace", namespace, "--wait=false")
