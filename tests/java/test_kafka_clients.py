"""Apache's own Java client, the newest and the one that Spark brings, drives a cluster through named scenarios.

Each scenario is a class in src/ (or src4/) that says what must hold, and fails also where the client logs a warning
that it does not expect. All of them pass with Apache Kafka at the other end.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from penstock_java.build import HOME
from penstock_java.runner import Runner
from penstock_java.scenarios import CLIENTS, NEEDS, NEWEST, NEWEST_ONLY, SCENARIOS, selected, served

GIVEN = os.environ.get("PENSTOCK_BOOTSTRAP")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("client", "scenario"), [pytest.param(*pair, id="-".join(pair)) for pair in selected(GIVEN)])
def test_the_scenario_passes_without_an_unexpected_warning(
    runner_of: Callable[[str], Runner], client: str, scenario: str
) -> None:
    outcome = runner_of(client).run(scenario)
    assert outcome["passed"], "\n".join([outcome["failure"], "warnings:", *outcome["warnings"]])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_scenario_that_does_not_hold_fails(runner_of: Callable[[str], Runner], client: str) -> None:
    outcome = runner_of(client).run("no-such-scenario")
    assert not outcome["passed"]
    assert "ClassNotFoundException" in outcome["failure"]


def test_what_is_left_out_is_what_the_cluster_does_not_serve(bootstrap: str) -> None:
    run = {name for client, name in selected(GIVEN) if client == NEWEST}
    has = served(bootstrap)
    assert run == {*SCENARIOS, *(name for name, need in NEEDS.items() if need in has)}


def test_every_scenario_is_listed() -> None:
    def names(folder: str) -> set[str]:
        found = (path for path in (HOME / folder / "scenarios").glob("*.java"))
        return {path.stem for path in found if "implements Scenario " in path.read_text()}

    def class_of(name: str) -> str:
        return "".join(part.capitalize() for part in name.split("-"))

    assert names("src") | names("src4") == {class_of(name) for name in (*SCENARIOS, *NEEDS)}
    assert names("src4") == {class_of(name) for name in NEWEST_ONLY}
