"""The custom resources on a real API server, that of $KUBECONFIG; without one these tests are not collected.

They make a namespace of their own and take it away; the definitions stay, since removing them removes objects.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from crds.kubectl_kit import ROOT, Kubectl

if not os.environ.get("KUBECONFIG"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    namespace = f"penstock-crds-{secrets.token_hex(4)}"
    kubectl = Kubectl(namespace)
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        kubectl.must("apply", "--server-side", "--force-conflicts", "-f", str(path))
    kubectl.must(
        "wait", "--for=condition=Established", "--timeout=30s", "crd/clusters.penstock.io", "crd/topics.penstock.io",
        "crd/consumergroups.penstock.io",
    )  # fmt: skip
    kubectl.must("create", "namespace", namespace)
    yield kubectl
    kubectl.run("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def name() -> str:
    return f"t-{secrets.token_hex(4)}"
