"""Common parts of the tests with whole clusters: the number of brokers, their start. Long tests run first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Tests are imported by file (importlib mode), so these entries make their common packages importable.
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "e2e"))
sys.path.insert(0, str(HERE.parent / "broker" / "tests" / "state"))
# Last: they must not shadow other modules.
sys.path += [str(HERE.parent / "broker" / "tests" / folder) for folder in ("node", "client")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("clusters").addoption(
        "--brokers",
        type=int,
        default=None,
        help="how many brokers the end-to-end tests (default: 1), the conformance suites and the Java client's "
        "scenarios (default: 1 and 3, one after the other) run against",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests with a longer time limit first, so that no process finishes long after the others."""
    items.sort(key=_limit_s, reverse=True)


def _limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    usual = float(item.config.getini("timeout"))
    return max(usual, float(marker.args[0])) if marker and marker.args else usual
