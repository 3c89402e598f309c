"""`tools/unit_tests.py`: which part runs a test, and how the results of parts add up."""

from __future__ import annotations

import os
import runpy
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "unit_tests.py"))
PARTS, Result, run_parts = TOOL["PARTS"], TOOL["Result"], TOOL["run_parts"]
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


def test_each_part_runs_in_a_process_of_its_own_and_its_output_is_its_result(capfd: pytest.CaptureFixture[str]) -> None:
    def run(part: Sequence[str]) -> int:
        os.write(1, f"{part[0]} {os.getppid()}\n1 passed in 0.1s".encode())
        return 5 if part == ("b",) else 0

    results = run_parts([("a",), ("b",), ("c",)], run, 2)
    assert sorted((result.part, result.code) for result in results) == [(("a",), 0), (("b",), 5), (("c",), 0)]
    assert all(result.output.startswith(f"{result.part[0]} {os.getpid()}\n") for result in results)
    assert all(result.counts == {"passed": 1} for result in results)
    assert "1 passed in" in capfd.readouterr().out


@pytest.mark.parametrize(("ending", "shown"), [("exception", "ValueError: not caught"), ("signal", "the reason")])
def test_a_process_that_dies_is_a_failure_whose_output_is_shown(
    ending: str, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(_: Sequence[str]) -> int:
        os.write(2, b"the reason")
        if ending == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("not caught")

    results = run_parts([("a",)], run, 1)
    assert TOOL["exit_code"](results) == {"exception": 3, "signal": -signal.SIGKILL}[ending]
    assert shown in capfd.readouterr().out
