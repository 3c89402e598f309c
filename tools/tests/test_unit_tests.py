"""`tools/unit_tests.py`: which part runs a test, and how the results of parts add up."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "unit_tests.py"))
PARTS, Result = TOOL["PARTS"], TOOL["Result"]
LINE = "3 passed, 2 deselected, 1 warning in 0.5s"


def runs(part: Sequence[str], test: str) -> bool:
    ignored = [option.removeprefix("--ignore=") for option in TOOL["ignored"](part)]
    return any(test.startswith(f"{folder}/") for folder in part) and not any(
        test.startswith(f"{folder}/") for folder in ignored
    )


def test_each_test_file_is_run_by_one_part() -> None:
    tests = [str(path.relative_to(ROOT)) for suite in TOOL["SUITES"] for path in (ROOT / suite).rglob("test_*.py")]
    assert tests
    assert [test for test in tests if sum(runs(part, test) for part in PARTS) != 1] == []


@pytest.mark.parametrize(
    ("codes", "code"),
    [((0, 0), 0), ((0, 5), 0), ((5, 5), 5), ((0, 1), 1), ((5, 2), 2)],
    ids=["all pass", "a selection", "nothing is selected", "a failure", "an import fails"],
)
def test_one_failure_is_a_failure_and_a_selection_may_leave_parts_empty(codes: Sequence[int], code: int) -> None:
    assert TOOL["exit_code"]([Result((), each, "", 1.0) for each in codes]) == code


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        (f"..F\n{LINE}\n", {"passed": 3, "deselected": 2}),
        ("=== 1 failed, 4 errors in 61.00s (0:01:01) ===\n", {"failed": 1, "error": 4}),
        ("", {}),
    ],
)
def test_outcomes_are_counted_by_the_last_line(output: str, counts: dict[str, int]) -> None:
    assert Result((), 0, output, 1.0).counts == counts
