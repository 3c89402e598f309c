"""Fixtures of the Spark tests: a broker, topics, a cluster of three brokers."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tests are imported by file (importlib mode), so these entries make shared modules importable. `cluster_processes`,
# `node_kit` and `client_doubles` belong to the broker's tests.
HERE = Path(__file__).parent
BROKER_TESTS = HERE.parent.parent / "broker" / "tests"
sys.path[:0] = [str(HERE), *(str(BROKER_TESTS / room) for room in ("node", "state", "client"))]

from penstock_spark_kit.broker import Broker  # noqa: E402
from penstock_spark_kit.topics import MakeTopic, make_topic  # noqa: E402

# Full JIT optimization slows down a JVM that lives for a minute: also those of commands that tests run.
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")

SPARK_LIMIT_S = 600
JOBS = frozenset({"cli", "demo", "jobs"})
"""Folders whose Spark tests take about as long as those of all other folders, or as those in `crash`."""


@pytest.fixture(scope="session")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run an embedded broker for the session; `.bootstrap` is its address. Tests that kill brokers use `own_broker`."""
    broker = Broker(tmp_path_factory.mktemp("penstock"))
    try:
        yield broker.start()
    finally:
        broker.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """Run an embedded broker for one test, which may kill and restart it."""
    home = tmp_path / "own-broker"
    home.mkdir()
    broker = Broker(home)
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.fixture
def fresh_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Return a function for unique names of topics and groups, which contain the name of the test."""
    test = "".join(c if c.isalnum() else "-" for c in request.node.name)[:80]
    return lambda: f"{test}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(penstock: Broker, fresh_name: Callable[[], str]) -> MakeTopic:
    """Return `topic(partitions=1, config=None)`, which creates a topic on the session's broker and returns its name."""

    def make(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = fresh_name()
        make_topic(penstock.bootstrap, name, partitions, config)
        return name

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run Spark tests in few processes, and therefore few JVMs; the first test of each waits until its JVM has started.

    Tests in `crash` start separate drivers, one at a time. Integration tests, which may run Spark in a separate
    process, are rerun if its Python worker did not start (see `addopts`), so they use new names on a broker that they
    share.
    """
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("integration"):
            item.add_marker(pytest.mark.flaky(reruns=2))
        if "spark" in getattr(item, "fixturenames", ()):
            if item.get_closest_marker("xdist_group") is None:  # two markers would make a group of another name
                group = "spark-jobs" if item.path.parent.name in JOBS else "spark"
                item.add_marker(pytest.mark.xdist_group(group))
            item.add_marker(pytest.mark.timeout(SPARK_LIMIT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start the Spark session of this process. Tests that use it belong to the group "spark" or "spark-jobs"."""
    from penstock_spark_kit.sessions import make_session  # tests without Spark do not wait for its import

    session = make_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
