"""The broker that conformance suites run against: the one of PENSTOCK_BOOTSTRAP, or an embedded one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file (importlib mode), so what they share is found by these entries.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from penstock_e2e.broker import cluster


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("broker")) as address:
        yield address
