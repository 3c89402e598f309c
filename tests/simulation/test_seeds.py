"""Whole worlds: the broker as it is keeps its promises whatever befalls it, and a broker with a known bug is found out.

`python -m tests.simulation.run` runs as many seeds as are wanted, and replays them.
"""

from __future__ import annotations

from functools import partial

import pytest
from penstock_simulation.faults import KNOWN, WEIGHTS, Faults
from penstock_simulation.planted import BUGS, CAUGHT, planted
from penstock_simulation.scenario import LEAST_FAULTS, LEAST_OPERATIONS, run_seed

from penstock.node import Node

SEEDS = (1, 2, 3, 4)
MOST_SEEDS = 200
QUICKLY = {
    "acknowledged-when-written": ["power_loss"],
    "fsync-skipped": ["power_loss"],
    "producers-not-replayed": ["kill"],
    "snapshot-not-written": ["restart", "kill", "cut"],
}
"""Bugs that are planted in each run of the tests, and the faults that show them soon."""


@pytest.mark.parametrize("seed", SEEDS)
def test_the_broker_keeps_its_promises_and_the_seed_replays_to_the_byte(seed: int) -> None:
    first, second = run_seed(seed, keep_trace=True), run_seed(seed, keep_trace=True)
    assert not first.findings, f"python -m tests.simulation.run {seed}"
    assert first.operations >= LEAST_OPERATIONS
    assert first.counted_faults >= LEAST_FAULTS
    assert first.trace is not None
    assert second.trace is not None
    differ = [(a, b) for a, b in zip(first.trace, second.trace, strict=False) if a != b]
    assert not differ, f"the first event that differs: {differ[0]}"
    assert first.digest == second.digest


def test_another_seed_is_another_world() -> None:
    assert len({run_seed(seed).digest for seed in SEEDS[:2]}) == 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", list(QUICKLY))
def test_a_planted_bug_is_caught(bug: str) -> None:
    kinds = {kind: WEIGHTS[kind] for kind in QUICKLY[bug]}
    for seed in range(1, MOST_SEEDS + 1):
        verdict = run_seed(seed, kinds=kinds, plant=partial(planted, bug))
        if verdict.findings:
            print(f"{bug}: seed {seed}: {verdict.findings[0]}")
            return
    raise AssertionError(f"{MOST_SEEDS} seeds did not notice that {BUGS[bug].says}")


@pytest.mark.parametrize("bug", CAUGHT)
def test_a_bug_can_be_planted_and_is_gone_afterwards(bug: str) -> None:
    def codes() -> dict[str, object]:
        import importlib

        from penstock_simulation.planted import functions

        name = "penstock." + BUGS[bug].file.removesuffix(".py").replace("/", ".")
        return {place: function.__code__ for place, function in functions(importlib.import_module(name))}

    before = codes()
    with planted(bug):
        during = codes()
    assert {place for place in before if before[place] is not during[place]}
    assert codes() == before


def test_every_kind_of_fault_can_be_begun() -> None:
    for kind in (*WEIGHTS, *KNOWN):
        assert callable(getattr(Faults, kind)), kind


def test_what_the_simulation_replaces_of_a_node_is_still_there() -> None:
    assert callable(Node.open_log_dir)
    assert callable(Node.open_store)
