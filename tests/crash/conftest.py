"""Fixtures of the crash tests: number of kills, random seed, brokers and loads that are always cleaned up.

`--kills N` (or PENSTOCK_CRASH_KILLS=N) sets how often a broker is killed under load; `--crash-seed N` (or
PENSTOCK_CRASH_SEED) repeats the random choices of a run; timing still varies.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Tests are imported by file (importlib mode), so this entry makes their common package importable.
sys.path.insert(0, str(Path(__file__).parent))

from penstock_crash.broker import Broker
from penstock_crash.loads import Load

DEFAULT_KILLS = 6
SECONDS_A_KILL = 12
"""For the time limit of a test: a generous bound for a kill and a restart on a slow machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crash tests")
    group.addoption("--kills", type=int, default=None, help="how often a broker under load is killed")
    group.addoption("--crash-seed", type=int, default=None, help="the seed of a run that is to be repeated")


def given(config: pytest.Config, option: str, variable: str) -> int | None:
    value = config.getoption(option, None)
    return value if value is not None else int(os.environ[variable]) if variable in os.environ else None


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """Number of kills of the main test; the others kill less often."""
    return given(request.config, "--kills", "PENSTOCK_CRASH_KILLS") or DEFAULT_KILLS


@pytest.fixture
def few_kills(kills: int) -> int:
    return max(3, kills // 5)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random number generator; its seed is printed and shown with a failure."""
    chosen = given(request.config, "--crash-seed", "PENSTOCK_CRASH_SEED")
    seed = chosen if chosen is not None else random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def home(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory for data, logs and journals; it is kept if the test fails."""
    made = Path(tempfile.mkdtemp(prefix="penstock-crash-"))
    print(f"directory {made}")
    failed_before = request.session.testsfailed
    yield made
    if request.session.testsfailed == failed_before:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def make_broker(home: Path) -> Iterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def make(**options: Any) -> Broker:
        made.append(Broker(options.pop("home", home), **options))
        return made[-1]

    yield make
    for broker in made:
        broker.clean_up()


@pytest.fixture
def start_load(home: Path) -> Iterator[Callable[..., Load]]:
    made: list[Load] = []

    def start(module: str, **options: Any) -> Load:
        made.append(Load(home, module, **options))
        return made[-1]

    yield start
    for load in made:
        load.clean_up()
