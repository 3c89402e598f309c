"""The helm binary of these tests. `make chart` runs them; without helm they fail with a message."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

CHART = Path(__file__).resolve().parents[1] / "penstock"


def find_helm() -> str | None:
    """Return `HELM`, the helm on the PATH, or that of the local cluster's tools."""
    local = Path(os.environ.get("K8S_CACHE", Path.home() / ".cache" / "penstock-k8s")) / "bin" / "helm"
    return os.environ.get("HELM") or shutil.which("helm") or (str(local) if local.exists() else None)


@pytest.fixture(scope="session")
def helm() -> str:
    found = find_helm()
    if found is None:
        pytest.fail("no helm on the PATH: the chart's tests render with it (HELM=/path/to/helm names one)")
    return found


@pytest.fixture(scope="session")
def chart() -> Path:
    return CHART


@pytest.fixture(scope="session")
def should_update(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--update"))
