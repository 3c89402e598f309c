"""The kinds of worlds. The runner and the tests call `run_seed`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock_simulation.cluster import ALL_FEATURES, Cluster
from penstock_simulation.cluster_faults import CLUSTER_WEIGHTS
from penstock_simulation.faults import WEIGHTS
from penstock_simulation.scenario import OneBroker, Scenario, Verdict, run_scenario

CLUSTER, BROKER = "cluster", "broker"
WORLDS = {CLUSTER: CLUSTER_WEIGHTS, BROKER: WEIGHTS}
"""Fault weights by kind of world."""


def run_seed(
    seed: int,
    world: str = CLUSTER,
    *,
    keep_trace: bool = False,
    kinds: dict[str, int] | None = None,
    features: frozenset[str] | None = None,
    verbose: bool = False,
    plant: Callable[[], Any] | None = None,
) -> Verdict:
    """Run one seed to its end, with faults of these `kinds` and, in a cluster, workloads of these `features`."""
    assert features is None or features <= ALL_FEATURES, f"unknown workloads: {features}"
    make: Callable[[], Scenario]
    if world == CLUSTER:
        make = partial(Cluster, seed, keep_trace=keep_trace, kinds=kinds, features=features)
    else:
        make = partial(OneBroker, seed, keep_trace=keep_trace, kinds=kinds)
    return run_scenario(seed, make, verbose=verbose, plant=plant)
