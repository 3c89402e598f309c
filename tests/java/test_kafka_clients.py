"""Apache's Java client, the newest release and the one that Spark uses, runs named scenarios on a cluster.

Each scenario is a class in src/ (or src4/) that asserts the required behaviour, and also fails if the client logs an
unexpected warning. All of them pass with Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from penstock_e2e.broker import GIVEN
from penstock_java.build import HOME
from penstock_java.runner import Runner
from penstock_java.scenarios import NEEDS, NEWEST_ONLY, SCENARIOS, SECURED, promised, served


@pytest.mark.timeout(180)
def test_the_scenario_passes_without_an_unexpected_warning(
    runner_of: Callable[[int, str], Runner], brokers: int, client: str, scenario: str
) -> None:
    outcome = runner_of(brokers, client).run(scenario)
    assert outcome["passed"], "\n".join([outcome["failure"], "warnings:", *outcome["warnings"]])


@pytest.mark.timeout(180)
def test_a_scenario_that_does_not_hold_fails(
    runner_of: Callable[[int, str], Runner], brokers: int, client: str
) -> None:
    outcome = runner_of(brokers, client).run("no-such-scenario")
    assert not outcome["passed"]
    assert "ClassNotFoundException" in outcome["failure"]


def test_what_is_left_out_is_what_the_cluster_does_not_serve(bootstrap_of: Callable[[int], str], brokers: int) -> None:
    has = served(bootstrap_of(brokers))
    assert GIVEN or has == promised(brokers)


def test_every_scenario_is_listed() -> None:
    def names(folder: str) -> set[str]:
        found = (path for path in (HOME / folder / "scenarios").glob("*.java"))
        return {path.stem for path in found if "implements Scenario " in path.read_text()}

    def class_of(name: str) -> str:
        return "".join(part.capitalize() for part in name.split("-"))

    assert names("src") | names("src4") == {class_of(name) for name in (*SCENARIOS, *SECURED, *NEEDS)}
    assert names("src4") == {class_of(name) for name in NEWEST_ONLY}
