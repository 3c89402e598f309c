"""Runs the tests of Go packages against brokers, and parses the output of `go test -json`."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from penstock_suites.lists import FAILED, PASSED, SKIPPED, Outcome
from penstock_suites.suite import Run, logged

RESULTS = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}
SHOWN_CHARACTERS = 3000


def outcomes(lines: Iterable[str]) -> dict[str, Outcome]:
    """Return outcomes by name, of subtests if a test has any. A test that started and never ended has failed; one with
    subtests counts only if it failed and none of them did."""
    results: dict[str, str] = {}
    printed: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the compiler's messages
        if not isinstance(event, dict) or not (test := event.get("Test")):
            continue
        if event["Action"] == "output":
            printed[test].append(event["Output"])
        elif event["Action"] == "run":
            results[test] = FAILED
        elif event["Action"] in RESULTS:
            results[test] = RESULTS[event["Action"]]
    parents = {test.rpartition("/")[0] for test in results}
    blamed = {test.rpartition("/")[0] for test, result in results.items() if result == FAILED}
    return {
        test: Outcome(result, "".join(printed[test])[-SHOWN_CHARACTERS:])
        for test, result in results.items()
        if test not in parents or (result == FAILED and test not in blamed)
    }


def pattern(tests: Sequence[str]) -> str:
    """Return the argument of `go test -run` and `-skip` for exactly these tests and subtests."""
    return "|".join("/".join(f"^{re.escape(part)}$" for part in test.split("/")) for test in tests)


def run(
    run: Run, packages: Sequence[str], arguments: Sequence[str], limit_s: float, **variables: str
) -> dict[str, Outcome]:
    """Run the packages' tests, or those of `run.only`, with these arguments to `go test`."""
    command = ["go", "test", *packages, "-json", "-v", "-p=1", "-count=1", f"-timeout={limit_s:.0f}s", *arguments]
    command += ["-run", pattern(run.only)] if run.only else []
    command += ["-skip", pattern(run.left_out)] if run.left_out else []
    printed = logged(command, run, limit_s + 60, run.sources, **variables)
    return outcomes(printed.splitlines())
