"""Clusters for the conformance suites: the one of PENSTOCK_BOOTSTRAP, or new ones with one and several brokers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file (importlib mode), so this entry makes their common package importable.
sys.path.insert(0, str(Path(__file__).parent))

from penstock_e2e.broker import cluster, sizes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "brokers" in metafunc.fixturenames:
        metafunc.parametrize("brokers", sizes(metafunc.config.getoption("--brokers")))


@pytest.fixture
def bootstrap(brokers: int, tmp_path: Path) -> Iterator[str]:
    with cluster(tmp_path / "cluster", brokers) as address:
        yield address
