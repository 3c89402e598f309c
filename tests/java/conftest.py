"""Fixtures of the tests with Apache's Java client: the broker, and the compiled program for each release of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Tests are imported by file (importlib mode), so what they share is found by these entries.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from penstock_e2e.broker import cluster
from penstock_java.build import compile_scenarios
from penstock_java.runner import Runner


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture(scope="session")
def runner_of(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Runner]]:
    """The program that uses a release of kafka-clients, built at its first use."""
    runners: dict[str, Runner] = {}

    def get(client: str) -> Runner:
        if client not in runners:
            home = tmp_path_factory.mktemp(f"java-{client}")
            runners[client] = Runner(compile_scenarios(client, home / "classes"), bootstrap, home / "errors.log")
        return runners[client]

    yield get
    for runner in runners.values():
        runner.close()
