"""The verdict on a run of a client's suite: failures that a list excuses, and those it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from penstock_suites import gotests
from penstock_suites.lists import FAILED, PASSED, SKIPPED, Exceptions, ListError, Outcome, counted, problems, read
from penstock_suites.registry import SUITES
from penstock_suites.suites import kafkit, platformatic

GOOD = Outcome(PASSED)
BAD = Outcome(FAILED, "got 2")


def test_a_list_gives_each_test_its_kind_and_reason() -> None:
    listed = read("# comment\n\nleft-out  A  needs TLS\nfails  b::C[x y]  no such topic\nunsteady  D  exact timers\n")
    assert listed == Exceptions({"A": "needs TLS"}, {"b::C[x y]": "no such topic"}, {"D": "exact timers"})


@pytest.mark.parametrize("line", ["fails  A", "fails A reason", "passes  A  reason", "fails  A  r\nleft-out  A  r"])
def test_a_line_without_kind_or_reason_or_of_a_test_named_before_is_refused(line: str) -> None:
    with pytest.raises(ListError, match="line"):
        read(line)


def test_each_list_can_be_read_and_belongs_to_a_suite() -> None:
    lists = {path: read(path.read_text()) for path in (Path(__file__).parent / "lists").iterdir()}
    assert {path.name.partition(".")[0] for path in lists} <= set(SUITES)
    assert {path.suffix for path in lists} == {".txt"}


def test_a_failure_that_is_not_listed_is_a_problem_with_its_detail() -> None:
    assert problems({"A": GOOD, "B": BAD}, Exceptions()) == ["B failed:\ngot 2"]


def test_a_listed_failure_is_none_and_its_passing_is_one() -> None:
    listed = Exceptions(fails={"B": "why"})
    assert problems({"A": GOOD, "B": BAD}, listed) == []
    assert problems({"A": GOOD, "B": GOOD}, listed) == ["B passes, but is listed as failing: why"]


def test_an_unsteady_test_may_do_either_but_has_to_run() -> None:
    listed = Exceptions(unsteady={"B": "why"})
    assert problems({"A": GOOD, "B": BAD}, listed) == problems({"A": GOOD, "B": GOOD}, listed) == []
    assert problems({"A": GOOD}, listed) == ["B is listed, but did not run"]


def test_what_is_left_out_or_skips_itself_does_not_count() -> None:
    listed = Exceptions(left_out={"B": "why"})
    outcomes = {"A": GOOD, "B": BAD, "C": Outcome(SKIPPED)}
    assert problems(outcomes, listed) == []
    assert counted(outcomes, listed) == {"A": GOOD}


def test_a_run_in_which_nothing_passed_is_a_problem() -> None:
    assert problems({}, Exceptions()) == ["no test passed"]


def test_of_a_go_test_with_subtests_the_subtests_count() -> None:
    events = [("run", "A"), ("run", "A/x"), ("fail", "A/x"), ("run", "A/y"), ("pass", "A/y"), ("fail", "A")]
    assert results(events) == {"A/x": FAILED, "A/y": PASSED}


def test_a_go_test_counts_where_none_of_its_subtests_is_to_blame() -> None:
    assert results([("run", "A"), ("run", "A/x"), ("pass", "A/x"), ("fail", "A")]) == {"A": FAILED, "A/x": PASSED}


def test_a_go_test_that_never_ended_has_failed() -> None:
    assert results([("run", "A"), ("run", "B"), ("pass", "B")]) == {"A": FAILED, "B": PASSED}


def test_the_pattern_for_go_matches_names_and_levels_exactly() -> None:
    assert gotests.pattern(["A", "B/x(1)"]) == r"^A$|^B$/^x\(1\)$"


def node_results(*events: tuple[str, str, int]) -> dict[str, str]:
    """Return results by test, from names, results and nesting of tests of one file."""
    lines = [
        json.dumps({"file": "/home/test/a/b.test.ts", "name": name, "nesting": nesting, "result": result, "detail": ""})
        for name, result, nesting in events
    ]
    found = platformatic.outcomes(lines, Path("/home"))
    return {test: outcome.result for test, outcome in found.items()}


def test_a_test_of_node_is_named_by_its_file_with_single_blanks() -> None:
    assert node_results(("x  y", PASSED, 0), ("z", SKIPPED, 0)) == {"a/b::x y": PASSED, "a/b::z": SKIPPED}


def test_of_tests_of_node_with_one_name_the_failed_one_counts_and_subtests_do_not() -> None:
    assert node_results(("x", PASSED, 0), ("x", FAILED, 0), ("x", PASSED, 0), ("y", FAILED, 1)) == {"a/b::x": FAILED}


def test_only_node_tests_that_use_a_broker_and_no_other_service_are_selected(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    folder.mkdir()
    for name, text in {"a": "createTopic(t)", "b": "createTopicName(t)", "sasl-gssapi": "createBase(t)"}.items():
        (folder / f"{name}.test.ts").write_text(text)
    assert platformatic.selected(tmp_path, []) == ["test/a.test.ts"]
    assert platformatic.selected(tmp_path, ["c::x"]) == []


def results(events: list[tuple[str, str]]) -> dict[str, str]:
    lines = [json.dumps({"Action": action, "Test": test}) for action, test in events]
    return {test: outcome.result for test, outcome in gotests.outcomes(["# a compiler's note", *lines]).items()}


CARGO = """
     Running tests/share_integration.rs (target/debug/deps/share_integration-1)

running 3 tests
test lists ... ok
test empty ... ignored
test releases ... FAILED

failures:

---- releases stdout ----
Error: timed out

failures:
    releases

test result: FAILED. 1 passed; 1 failed
     Running tests/admin_integration.rs (target/debug/deps/admin_integration-1)
test lists ... ok
"""


def test_outcomes_of_cargo_are_named_after_the_program_and_have_their_output() -> None:
    found = kafkit.outcomes(CARGO.splitlines())
    assert {test: outcome.result for test, outcome in found.items()} == {
        "share_integration/lists": PASSED,
        "share_integration/empty": SKIPPED,
        "share_integration/releases": FAILED,
        "admin_integration/lists": PASSED,
    }
    assert found["share_integration/releases"].detail.strip() == "Error: timed out"
