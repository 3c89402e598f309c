"""Fixtures of the tests with Apache's Java client: clusters, and the compiled program for each client release."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Tests are imported by file (importlib mode), so this entry makes their common package importable.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "spark_jobs" / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "chaos"))
sys.path.append(str(Path(__file__).parents[1] / "simulation"))
sys.path.append(str(Path(__file__).parents[1] / "crash"))
sys.path.append(str(Path(__file__).parents[1] / "suites"))

from penstock_e2e.broker import GIVEN, cluster, sizes
from penstock_e2e.trio import Trio, trio
from penstock_java.applications import class_path
from penstock_java.build import compile_scenarios
from penstock_java.runner import Runner
from penstock_java.scenarios import CLIENTS, promised, selected, served
from penstock_java.secure_kafka import SecureKafka

BootstrapOf = Callable[[int], str]
RunnerOf = Callable[[int, str], Runner]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("java").addoption(
        "--rounds", type=int, default=1, help="how often each test of an application runs (default: 1)"
    )
    parser.getgroup("java").addoption(
        "--all-group-checks", action="store_true", help="the checks of groups with each client, on each service"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with each cluster and client release; tests of the same cluster share a process."""
    if "round_number" in metafunc.fixturenames:
        metafunc.parametrize("round_number", range(1, metafunc.config.getoption("--rounds") + 1))
    names = [name for name in ("brokers", "client", "scenario") if name in metafunc.fixturenames]
    if "brokers" not in names:
        return
    cases: list[tuple[int | str, ...]] = [(brokers,) for brokers in sizes(metafunc.config.getoption("--brokers"))]
    if "client" in names:
        cases = [(*case, client) for case in cases for client in CLIENTS]
    if "scenario" in names:
        cases = [(*case, scenario) for case in cases for scenario in scenarios(*case)]
    shared = [pytest.mark.xdist_group(f"java-{case[0]}") for case in cases]
    ids = ["-".join(map(str, case)) for case in cases]
    parameters = [pytest.param(*case, id=name, marks=mark) for case, name, mark in zip(cases, ids, shared, strict=True)]
    metafunc.parametrize(names, parameters)


def scenarios(brokers: Any, client: Any) -> Iterator[str]:
    return selected(client, served(GIVEN) if GIVEN else promised(brokers))


@pytest.fixture(scope="session")
def bootstrap_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootstrapOf]:
    """The address of the cluster of that many brokers, started at its first use."""
    addresses: dict[int, str] = {}
    with contextlib.ExitStack() as running:

        def get(brokers: int) -> str:
            if brokers not in addresses:
                home = tmp_path_factory.mktemp(f"cluster-{brokers}")
                addresses[brokers] = running.enter_context(cluster(home, brokers))
            return addresses[brokers]

        yield get


@pytest.fixture(scope="session")
def runner_of(bootstrap_of: BootstrapOf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerOf]:
    """The program that uses a kafka-clients release with a cluster, built at its first use."""
    class_paths: dict[str, str] = {}
    runners: dict[tuple[int, str], Runner] = {}

    def get(brokers: int, client: str) -> Runner:
        if client not in class_paths:
            class_paths[client] = compile_scenarios(client, tmp_path_factory.mktemp(f"java-{client}") / "classes")
        if (brokers, client) not in runners:
            errors = tmp_path_factory.mktemp(f"java-{client}-{brokers}") / "errors.log"
            runners[brokers, client] = Runner(class_paths[client], bootstrap_of(brokers), errors)
        return runners[brokers, client]

    yield get
    for runner in runners.values():
        runner.close()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """Secured Apache Kafka. Its tests have `@pytest.mark.xdist_group("secure-kafka")`, so that they share it."""
    made = SecureKafka(tmp_path_factory.mktemp("secure-kafka"))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="session")
def brokers_to_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Three brokers. Their tests have `@pytest.mark.xdist_group("java-applications")` or `"java-queues"`, so that two
    processes share them out and each starts them once."""
    with trio(tmp_path_factory.mktemp("trio")) as made:
        yield made


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of `applications/flink`."""
    return class_path("flink", tmp_path_factory.mktemp("flink"))


@pytest.fixture(scope="session")
def kafka_applications(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of `applications/kafka`."""
    return class_path("kafka", tmp_path_factory.mktemp("kafka-applications"))
