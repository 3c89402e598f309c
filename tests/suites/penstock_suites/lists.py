"""The list of exceptions of a suite, and the verdict on a run of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS = ("left-out", "fails", "unsteady")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class ListError(Exception):
    """A line of a list is invalid; the message names it."""


@dataclass(frozen=True)
class Exceptions:
    """Tests by id, each with the reason.

    `left_out` are not run or not counted, `fails` must fail, `unsteady` may fail or pass: each of them also fails
    occasionally on Apache Kafka.
    """

    left_out: Mapping[str, str] = field(default_factory=dict)
    fails: Mapping[str, str] = field(default_factory=dict)
    unsteady: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """`result` is passed, failed or skipped; `detail` is the end of the test's output."""

    result: str
    detail: str = ""


def read(text: str) -> Exceptions:
    """Parse `KIND  TEST  REASON` lines, two blanks between the fields; `#` starts a comment line."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("  ", 2)]
        if len(fields) != 3 or fields[0] not in KINDS or not all(fields):
            raise ListError(f"line {number}: expected `KIND  TEST  REASON` with a kind of {KINDS}, got {line!r}")
        kind, test, reason = fields
        if any(test in tests for tests in found.values()):
            raise ListError(f"line {number}: {test} is listed twice")
        found[kind][test] = reason
    return Exceptions(found["left-out"], found["fails"], found["unsteady"])


def counted(outcomes: Mapping[str, Outcome], exceptions: Exceptions) -> dict[str, Outcome]:
    """Return the outcomes that count for the score: without tests that were left out or skip themselves."""
    return {
        test: outcome
        for test, outcome in outcomes.items()
        if test not in exceptions.left_out and outcome.result != SKIPPED
    }


def problems(outcomes: Mapping[str, Outcome], exceptions: Exceptions) -> list[str]:
    """Return the deviations from the list, one text each; empty if there are none."""
    found = [] if any(outcome.result == PASSED for outcome in outcomes.values()) else ["no test passed"]
    for test, outcome in counted(outcomes, exceptions).items():
        if outcome.result == FAILED and test not in exceptions.fails and test not in exceptions.unsteady:
            found.append(f"{test} failed:\n{outcome.detail}")
        if outcome.result == PASSED and test in exceptions.fails:
            found.append(f"{test} passes, but is listed as failing: {exceptions.fails[test]}")
    listed = [*exceptions.fails, *exceptions.unsteady]
    return found + [f"{test} is listed, but did not run" for test in listed if test not in outcomes]
