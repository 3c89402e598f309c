"""Users end to end: the operator as a process, the API server of $KUBECONFIG, and a real broker with an authorizer.

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
from brokers.secured_kit import SecuredBroker, secured_broker
from crds.kubectl_kit import ROOT, Kubectl
from topics_live.live_kit import Live

sys.path[:0] = [str(ROOT / "broker" / "tests" / "node"), str(ROOT / "broker" / "tests" / "state")]

if not os.environ.get("KUBECONFIG"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path) as made:
        yield made


@pytest.fixture
def live(tmp_path: Path, secured: SecuredBroker) -> Iterator[Live]:
    namespace = f"penstock-users-{secrets.token_hex(4)}"
    kubectl = Kubectl(namespace)
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        kubectl.must("apply", "--server-side", "--force-conflicts", "-f", str(path))
    kubectl.must("create", "namespace", namespace)
    made = Live(kubectl, namespace, secured.plain, tmp_path)
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
        kubectl.run("delete", "namespace", namespace, "--wait=false")
