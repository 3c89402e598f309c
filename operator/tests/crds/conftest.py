"""The custom resources on the real API server of $KUBECONFIG; without it pytest does not collect these tests.

The tests create a namespace and delete it. The definitions stay, because their removal would delete objects.
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
        "crd/consumergroups.penstock.io", "crd/users.penstock.io",
    )  # fmt: skip
    kubectl.must("create", "namespace", namespace)
    yield kubectl
    kubectl.run("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def name() -> str:
    return f"t-{secrets.token_hex(4)}"
