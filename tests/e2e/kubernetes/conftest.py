"""Tests against a Kubernetes cluster, which KUBECONFIG names: run.sh sets up what they need (`make e2e`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from penstock_kubernetes.kubectl import run
from penstock_kubernetes.release import CHART, Make, Release

RELEASE = pytest.StashKey[Release]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: takes minutes; part of `make e2e-full` alone")


@pytest.fixture(scope="session", autouse=True)
def _kubernetes() -> None:
    needed = [name for name in ("KUBECONFIG", "E2E_IMAGE_TAG") if not os.environ.get(name)]
    if needed:
        pytest.fail(f"{' and '.join(needed)} not set: run these tests by `make e2e`")


@pytest.fixture(scope="session")
def going() -> Iterator[list[Release]]:
    """Releases whose namespaces are being deleted: each has to come to an end, while other tests go on."""
    releases: list[Release] = []
    yield releases
    for release in releases:
        release.gone()


@pytest.fixture(scope="module")
def make_release(request: pytest.FixtureRequest, going: list[Release]) -> Iterator[Make]:
    """Makes releases, each in a namespace of its own; they go with the module (E2E_KEEP=1 leaves them)."""
    made: list[Release] = []

    def make(purpose: str, **options: Any) -> Release:
        release = Release(purpose, **options)
        made.append(release)
        request.node.stash[RELEASE] = release
        release.set_up()
        return release

    yield make
    if os.environ.get("E2E_KEEP"):
        return
    for release in made:
        release.tear_down()
        going.append(release)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    module = item.getparent(pytest.Module)
    if report.failed and module is not None and RELEASE in module.stash:
        report.sections.append(("the release", module.stash[RELEASE].story()))
    return report


@pytest.fixture(scope="session")
def crds() -> None:
    """The CRDs, as the chart has them."""
    folder = CHART / "crds"
    run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", str(folder))
    for path in folder.glob("*.yaml"):
        run("kubectl", "wait", "--for=condition=Established", "-f", str(path), "--timeout=60s")
