"""Fixtures of the tests on the Kubernetes cluster of KUBECONFIG; run.sh sets up their environment (`make e2e`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from penstock_kubernetes.release import Make, Release

RELEASE = pytest.StashKey[Release]()
# With `-n 3 --dist loadgroup`, each lane has a separate process. Most tests wait most of their time. The modules that
# update the CRDs share a lane, and so do Spark's virtual machines and the module that needs the least computing time.
LANES = {
    "test_conditions": "one",
    "test_failures": "one",
    "test_invalid": "one",
    "test_lifecycle": "one",
    "test_install": "one",
    "test_groups": "two",
    "test_groups_queue": "two",
    "test_spark": "two",
    "test_security": "two",
    "test_scaling": "three",
    "test_habits": "three",
    "test_requests": "three",
    "test_store_upkeep": "two",
    "test_monitoring": "two",
    "test_objects": "three",
    "test_rolling": "three",
    "test_topics": "three",
    "test_topics_decrease": "two",
}

# Prometheus runs in the cluster's network, without a pod.
collect_ignore = [] if os.environ.get("E2E_EXEC_IN") else ["test_monitoring.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: takes minutes; part of `make e2e-full` alone")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if lane := LANES.get(item.path.stem):
            item.add_marker(pytest.mark.xdist_group(lane))


@pytest.fixture(scope="session", autouse=True)
def _kubernetes() -> None:
    needed = [name for name in ("KUBECONFIG", "E2E_IMAGE_TAG") if not os.environ.get(name)]
    if needed:
        pytest.fail(f"{' and '.join(needed)} not set: run these tests by `make e2e`")


@pytest.fixture(scope="session")
def deleting() -> Iterator[list[Release]]:
    """Releases whose namespaces are being deleted while other tests run; each deletion must complete."""
    releases: list[Release] = []
    yield releases
    for release in releases:
        release.wait_until_deleted()


@pytest.fixture(scope="module")
def make_release(request: pytest.FixtureRequest, deleting: list[Release]) -> Iterator[Make]:
    """Create releases, each in its own namespace, and delete them after the module (E2E_KEEP=1 keeps them)."""
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
        deleting.append(release)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    module = item.getparent(pytest.Module)
    if report.failed and module is not None and RELEASE in module.stash:
        report.sections.append(("the release", module.stash[RELEASE].diagnostics()))
    return report
