"""Run the unit tests (`make unit`): parts of the suite in separate processes, one per core at a time.

Arguments are passed on to pytest. pytest-xdist is not used because each of its processes collects all tests and sends
each result to another process, which takes half as long as the tests themselves.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITES = ("broker/tests", "operator/tests", "spark_jobs/tests")
PARTS = (
    ("broker/tests",),
    ("broker/tests/api", "broker/tests/client", "broker/tests/cli"),
    ("operator/tests/clusters", "operator/tests/reconcile", "operator/tests/docs"),
    ("broker/tests/replica", "broker/tests/replication", "broker/tests/log"),
    ("broker/tests/group", "broker/tests/txn"),
    ("spark_jobs/tests",),
    ("operator/tests",),
)
"""Folders that share a process, the longest part first. What no other part names belongs to the part of its suite."""
OUTCOME = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|deselected)\b")
PASSED, NO_TESTS = 0, 5
"""pytest's exit codes."""


@dataclass(frozen=True)
class Result:
    """How a part ended."""

    part: Sequence[str]
    code: int
    output: str
    seconds: float

    @property
    def counts(self) -> Counter[str]:
        """The numbers of pytest's last line by outcome."""
        lines = self.output.splitlines() or [""]
        return Counter({outcome.removesuffix("s"): int(number) for number, outcome in OUTCOME.findall(lines[-1])})


def ignored(part: Sequence[str]) -> list[str]:
    """Return pytest's options that leave out what belongs to other parts."""
    others = [folder for other in PARTS if other != part for folder in other]
    return [f"--ignore={folder}" for folder in others if any(folder.startswith(f"{own}/") for own in part)]


def run(part: Sequence[str], arguments: Sequence[str]) -> Result:
    """Run the tests of a part."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "--unit", "-q", "-n", "0", "-p", "no:cacheprovider"]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        code = subprocess.run(
            [*command, *part, *ignored(part), *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
        output.seek(0)
        result = Result(part, code, output.read(), time.monotonic() - began)
    sys.stdout.write(result.output if code not in (PASSED, NO_TESTS) else summary(result))
    sys.stdout.flush()
    return result


def summary(result: Result) -> str:
    names = " ".join(folder.replace("/tests", "", 1) for folder in result.part)
    return f"{result.counts['passed']:6} passed in {result.seconds:5.1f} s: {names}\n"


def exit_code(results: Sequence[Result]) -> int:
    """Return the first failure's code; a selection may leave a part without tests, but not all of them."""
    codes = {result.code for result in results}
    if codes == {NO_TESTS}:
        return NO_TESTS
    return next((result.code for result in results if result.code not in (PASSED, NO_TESTS)), PASSED)


def main(arguments: Sequence[str]) -> int:
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = list(pool.map(lambda part: run(part, arguments), PARTS))
    total: Counter[str] = sum((result.counts for result in results), Counter())
    shown = ", ".join(f"{number} {outcome}" for outcome, number in sorted(total.items()))
    print(f"{shown or 'no tests'} in {time.monotonic() - began:.1f} s")
    return exit_code(results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
