"""The output of `explain`, and the consistency of examples, guide and guarantees."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_spark.jobs.examples import example, summary
from penstock_spark.jobs.run.plans import plan
from penstock_spark.jobs.spec import document
from penstock_spark.jobs.spec.kinds import KINDS
from penstock_spark.jobs.spec.specs import StreamJob

EXAMPLES = Path(__file__).parents[3] / "examples" / "jobs"


def lines_of(kind: str, *sets: str) -> dict[str, str]:
    found = document.parse(example(kind), f"{kind}.yaml")
    for assignment in sets:
        document.set_value(found, assignment)
    return dict(plan(document.build_job(found)).lines)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_example_that_is_valid_and_is_what_init_prints(kind: str) -> None:
    assert (EXAMPLES / f"{kind}.yaml").read_text() == example(kind)
    assert isinstance(document.build_job(document.parse(example(kind), kind)), KINDS[kind])
    assert summary(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_it_reads_guarantees_and_where_its_state_is(kind: str) -> None:
    lines = lines_of(kind)
    assert "guarantee" in lines
    assert "compares" in lines or "reads" in lines
    if issubclass(KINDS[kind], StreamJob):
        assert lines["state"].startswith("in state/")


@pytest.mark.parametrize(
    ("kind", "sets", "expected"),
    [
        ("archive", (), "exactly once: one table version"),
        ("archive", ("to.format=parquet",), "exactly once: files of a batch appear once"),
        ("aggregate", ("to={format: console}",), "none"),
        ("dedup", ("to.delivery=at-least-once",), "at least once"),
        ("validate", (), "bad records exactly once; good records exactly once"),
        ("mirror", (), "exactly once"),
        ("audit", (), "changes nothing"),
    ],
)
def test_the_guarantee_follows_from_kind_and_target(kind: str, sets: tuple[str, ...], expected: str) -> None:
    assert lines_of(kind, *sets)["guarantee"].startswith(expected)


@pytest.mark.parametrize("kind", ["aggregate", "dedup"])
def test_it_is_told_that_late_rows_are_dropped(kind: str) -> None:
    assert lines_of(kind)["late rows"].startswith("dropped when more than ")


def test_lines_tell_of_what_was_set() -> None:
    lines = lines_of("archive", "trigger={}", "source.starting=latest", "metrics.port=9100", "restart.attempts=0")
    assert lines["reads"] == "topic flights at localhost:9092, from latest"
    assert lines["runs"] == "as records arrive, until stopped"
    assert lines["metrics"] == "http://127.0.0.1:9100/metrics"
    assert lines["restarts"] == "never"
