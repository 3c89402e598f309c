"""kafka-python's own integration suite, run against this broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_kafka_python import (
    Lists,
    Outcome,
    fetch_sdist,
    judge,
    outcomes_of,
    read_list,
    read_lists,
    read_outcomes,
    worth_another_try,
)


@pytest.mark.timeout(660)
def test_every_test_of_the_suite_passes_but_those_that_are_listed(bootstrap: str, brokers: int, tmp_path: Path) -> None:
    lists = read_lists(brokers)
    outcomes = outcomes_of(bootstrap, tmp_path, lists)
    problems = judge(outcomes, lists)
    assert not problems, "\n\n".join(problems)


def test_a_failure_and_a_skip_are_problems_unless_excepted() -> None:
    outcomes = {"a": Outcome("passed"), "b": Outcome("failed", "why"), "c": Outcome("skipped", "why")}
    assert len(judge(outcomes, Lists())) == 2
    assert judge(outcomes, Lists({"b": "reason", "c": "reason"})) == []


def test_an_excepted_test_that_passes_is_a_problem() -> None:
    assert len(judge({"a": Outcome("passed")}, Lists({"a": "reason"}))) == 1


def test_a_listed_test_that_does_not_exist_is_a_problem() -> None:
    assert len(judge({"a": Outcome("passed")}, Lists({"b": "reason"}, {"c": "reason"}))) == 2


def test_a_test_that_is_left_out_has_no_outcome_and_is_none_the_worse_for_it() -> None:
    outcomes = {"a": Outcome("passed"), "b": Outcome("left out")}
    assert judge(outcomes, Lists({}, {"b": "reason"})) == []
    assert len(judge(outcomes, Lists())) == 1


def test_few_failures_are_tried_again_many_are_not_and_neither_are_those_that_are_known() -> None:
    outcomes = {"a": Outcome("failed", "why"), "b": Outcome("failed", "why"), "c": Outcome("passed")}
    assert worth_another_try(outcomes, Lists({"b": "reason"})) == ["a"]
    assert worth_another_try({name: Outcome("failed", "why") for name in "abcd"}, Lists()) == []


def test_a_suite_without_tests_is_a_problem() -> None:
    assert len(judge({}, Lists())) == 1


def test_a_test_that_passes_and_fails_in_its_teardown_has_failed() -> None:
    lines = [
        '{"test": "a", "outcome": "passed", "detail": ""}',
        '{"test": "a", "outcome": "failed", "detail": "teardown"}',
    ]
    assert read_outcomes(lines) == {"a": Outcome("failed", "teardown")}


def test_an_exception_needs_a_reason() -> None:
    with pytest.raises(AssertionError, match="no reason"):
        read_list("test/integration/test_a.py::test_b\n")


def test_a_distribution_with_another_hash_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "kafka_python-3.0.12.tar.gz").write_bytes(b"something else")
    with pytest.raises(AssertionError, match="SHA-256"):
        fetch_sdist(tmp_path)
