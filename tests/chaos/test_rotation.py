"""The judgement of latencies, and the errors of clients that count."""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock_chaos.rotation import Measured, errors_of, judge, percentile
from penstock_chaos.world import Outcome, World
from penstock_crash.journal import Journal, JournalWriter


def world_with(latencies_ms: list[float]) -> World:
    """A world without a cluster: record n was sent at second n and acknowledged after that latency."""
    made = World.__new__(World)
    made.outcome, made.workloads = Outcome(), {}
    made.acknowledged = {0: {n: (float(n), n + ms / 1000) for n, ms in enumerate(latencies_ms)}}
    return made


@pytest.mark.parametrize(("values", "expected"), [([7.0], 7.0), ([float(n) for n in range(1, 201)], 198.0)])
def test_a_percentile_is_a_value_that_enough_values_do_not_exceed(values: list[float], expected: float) -> None:
    assert percentile(values, 0.99) == expected


@pytest.mark.parametrize(
    ("latencies_ms", "is_found"), [([10.0] * 10 + [19.0] * 10, False), ([10.0] * 10 + [21.0] * 10, True)]
)
def test_latencies_of_more_than_twice_those_around_a_replacement_are_a_finding(
    latencies_ms: list[float], is_found: bool
) -> None:
    world = world_with([*latencies_ms, *[10.0] * 10])
    judge(world, [Measured("CA", (10.0, 20.0), [(0.0, 10.0), (20.0, 30.0)])])
    assert bool(world.outcome.findings) is is_found


def test_a_replacement_while_everything_is_slow_is_no_finding() -> None:
    slow, quiet = [90.0] * 30, [10.0] * 30
    world = world_with([*slow, *quiet])
    around = [[(first, first + 10.0), (first + 20.0, first + 30.0)] for first in (0.0, 30.0)]
    judge(world, [Measured("CA", (10.0, 20.0), around[0]), Measured("CA", (40.0, 50.0), around[1])])
    assert not world.outcome.findings
    assert "1.00 times" in world.outcome.evidence[0]


def test_a_single_slow_replacement_is_no_finding() -> None:
    world = world_with([10.0] * 30 + [900.0] * 10)
    spans = [(10.0, 20.0), (20.0, 30.0), (30.0, 40.0)]
    judge(world, [Measured("CA", span, [(0.0, 10.0)]) for span in spans])
    assert not world.outcome.findings


def test_errors_are_what_clients_report_and_notes_about_credentials(tmp_path: Path) -> None:
    writer, journal = JournalWriter(tmp_path / "j"), Journal(tmp_path / "j")
    writer.write("error", "confluent", "KafkaError{code=_SSL}", 1.0)
    writer.write("note", "NodeNotReadyError", 2.0)
    writer.write("note", "TopicAuthorizationFailedError", 3.0)
    journal.read()
    assert [at_s for at_s, _ in errors_of(journal)] == [1.0, 3.0]
