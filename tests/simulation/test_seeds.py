"""Complete worlds: the unmodified broker keeps its guarantees under faults, and the checker detects known bugs.

`python -m tests.simulation.run` runs any number of seeds, and replays them.
"""

from __future__ import annotations

import importlib
from functools import partial

import pytest
from penstock_simulation.cluster import ALL_FEATURES
from penstock_simulation.cluster_bugs import CLUSTER_BUGS, HUNTS
from penstock_simulation.cluster_faults import CLUSTER_WEIGHTS, ClusterFaults
from penstock_simulation.faults import WEIGHTS, Faults
from penstock_simulation.history import Outcome
from penstock_simulation.planted import BUGS, CAUGHT, Bug, functions, module_name, planted
from penstock_simulation.scenario import LEAST_FAULTS, LEAST_OPERATIONS
from penstock_simulation.worlds import BROKER, CLUSTER, run_seed

CLUSTER_SEEDS, BROKER_SEEDS = (1, 2), (1, 2)
MOST_SEEDS = 200
QUICKLY = {
    "acknowledged-when-written": ["power_loss"],
    "fsync-skipped": ["power_loss"],
    "producers-not-replayed": ["kill"],
    "snapshot-not-written": ["restart", "kill", "cut"],
}
"""Single-broker bugs planted in each test run, and the faults that show them quickly."""
QUICKLY_IN_CLUSTER = (
    "delay-forgotten-at-restart",
    "producers-not-followed",
    "isr-expanded-early",
    "duplicate-answered-early",
    "share-lock-kept-at-failover",
    "schedule-forgotten-at-restart",
    "relay-without-sequence",
    "watermark-not-sent",
)
WORLDS_AND_SEEDS = [(CLUSTER, seed) for seed in CLUSTER_SEEDS] + [(BROKER, seed) for seed in BROKER_SEEDS]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("world", "seed"), WORLDS_AND_SEEDS)
def test_brokers_keep_their_promises_and_the_seed_replays_to_the_byte(world: str, seed: int) -> None:
    first, second = run_seed(seed, world, keep_trace=True), run_seed(seed, world, keep_trace=True)
    assert not first.findings, f"python -m tests.simulation.run {seed} --world {world}"
    assert first.operations >= LEAST_OPERATIONS
    assert first.counted_faults >= LEAST_FAULTS
    assert first.trace is not None
    assert second.trace is not None
    differ = [(a, b) for a, b in zip(first.trace, second.trace, strict=False) if a != b]
    assert not differ, f"the first event that differs: {differ[0]}"
    assert first.digest == second.digest


@pytest.mark.timeout(300)
def test_each_workload_runs_in_a_cluster_and_is_seen_by_the_checker() -> None:
    verdict = run_seed(8, features=ALL_FEATURES)
    assert not verdict.findings
    history = verdict.history
    assert any(write.transaction for write in history.writes)
    assert any(seen.read_committed for seen in history.seen)
    assert any(commit.transaction for commit in history.commits)
    assert len({replica.replica.partition(".")[0] for replica in history.replicas}) > 1
    assert len({told.broker for told in history.acknowledgements}) > 1
    assert any(ack.is_final and ack.outcome is Outcome.OK for ack in history.acks)
    assert set(history.queue_ends) <= {content.partition for content in history.contents}
    assert history.letters
    assert {delivery.partition[0] for delivery in history.deliveries} == {"orders", "later"}
    assert any(commit.session for commit in history.commits if commit.outcome is Outcome.OK)
    assert {use.request for use in history.uses} == {"write", "read", "describe"}
    assert {content.partition[0] for content in history.contents} >= {"orders", "ledger", "passing-1", "later"}
    assert {seen.partition[0] for seen in history.seen} >= {"orders", "ledger", "later", "resized"}
    assert any(read.origin is not None for reads in history.scheduled_contents.values() for read in reads)
    assert any(write.is_cancellation for write in history.scheduled)
    assert history.scheduled_reads
    assert history.seals
    assert any(seen.filter for seen in history.seen)


def test_another_seed_is_another_world() -> None:
    assert len({run_seed(seed, BROKER).digest for seed in BROKER_SEEDS[:2]}) == 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(QUICKLY))
def test_a_planted_bug_is_caught(name: str) -> None:
    kinds = {kind: WEIGHTS[kind] for kind in QUICKLY[name]}
    hunt(BUGS[name], BROKER, kinds, None)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", QUICKLY_IN_CLUSTER)
def test_a_planted_bug_of_a_cluster_is_caught(name: str) -> None:
    kinds = {kind: CLUSTER_WEIGHTS[kind] for kind in HUNTS[name].kinds}
    hunt(CLUSTER_BUGS[name], CLUSTER, kinds, frozenset(HUNTS[name].features))


def hunt(bug: Bug, world: str, kinds: dict[str, int], features: frozenset[str] | None) -> None:
    for seed in range(1, MOST_SEEDS + 1):
        verdict = run_seed(seed, world, kinds=kinds, features=features, plant=partial(planted, bug))
        if verdict.findings:
            print(f"{bug.name}: seed {seed}: {verdict.findings[0]}")
            return
    raise AssertionError(f"{MOST_SEEDS} seeds did not notice that {bug.says}")


@pytest.mark.parametrize("bug", [*map(BUGS.__getitem__, CAUGHT), *CLUSTER_BUGS.values()], ids=lambda bug: bug.name)
def test_a_bug_can_be_planted_and_is_gone_afterwards(bug: Bug) -> None:
    files = dict.fromkeys(edit.file for edit in bug.edits)

    def codes() -> dict[str, object]:
        modules = [importlib.import_module(module_name(file)) for file in files]
        return {
            f"{module.__name__} {place}": function.__code__
            for module in modules
            for place, function in functions(module)
        }

    before = codes()
    with planted(bug):
        during = codes()
    changed = {place.partition(" ")[0] for place in before if before[place] is not during[place]}
    assert changed == {module_name(file) for file in files}
    assert codes() == before


def test_every_kind_of_fault_can_be_begun() -> None:
    for kinds, faults in ((WEIGHTS, Faults), (CLUSTER_WEIGHTS, ClusterFaults)):
        for kind in kinds:
            assert callable(getattr(faults, kind)), kind
    for found in HUNTS.values():
        assert {*found.kinds} <= CLUSTER_WEIGHTS.keys()
        assert {*found.features} <= ALL_FEATURES
