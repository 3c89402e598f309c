"""The cluster for applications of stream processing frameworks; the tests kill its brokers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file (importlib mode), so these entries make their common packages importable.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "chaos"))
sys.path.append(str(Path(__file__).parents[1] / "simulation"))
sys.path.append(str(Path(__file__).parents[1] / "crash"))

from penstock_e2e.trio import Trio, trio


@pytest.fixture(scope="session")
def brokers_to_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    with trio(tmp_path_factory.mktemp("trio")) as made:
        yield made
