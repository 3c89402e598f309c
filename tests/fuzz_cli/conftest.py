"""Options for fuzzing the command lines: `--inputs N` sets the number of inputs, `--fuzz-seed N` repeats a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file (importlib mode), so this entry makes their common package importable.
sys.path.insert(0, str(Path(__file__).parent))

from penstock_fuzz.surfaces import SHARES, Surfaces

DEFAULT_INPUTS = 240
INPUTS_A_TEST = 1_000
"""Inputs per test; a larger number is split into tests, which run in parallel."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz")
    group.addoption("--inputs", type=int, default=DEFAULT_INPUTS, help="inputs of the command lines' fuzz")
    group.addoption("--fuzz-seed", type=int, default=0, help="repeats a run of the command lines' fuzz")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a test for each surface and each thousand of its inputs."""
    if "surface" not in metafunc.fixturenames:
        return
    inputs = int(metafunc.config.getoption("inputs", DEFAULT_INPUTS))
    counts = {name: -(-inputs * share // sum(SHARES.values())) for name, share in SHARES.items()}
    cases = [
        (name, part // INPUTS_A_TEST, min(INPUTS_A_TEST, count - part))
        for name, count in counts.items()
        for part in range(0, count, INPUTS_A_TEST)
    ]
    metafunc.parametrize(("surface", "part", "count"), cases, ids=[f"{name}-{part}" for name, part, _ in cases])


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surfaces]:
    """The fuzzed surfaces, in this process."""
    with Surfaces(tmp_path_factory.mktemp("files")) as found:
        yield found
