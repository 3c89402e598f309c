"""Run the unit tests (`make unit`): parts of the suite in separate processes, one more at a time than there are cores.

Arguments are passed on to pytest. pytest-xdist is not used because each of its processes collects all tests and sends
each result to another process, which takes half as long as the tests themselves. The processes are forked from one
that has imported what most parts import.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).parents[1]
SUITES = ("broker/tests", "operator/tests", "spark_jobs/tests")
PARTS = (
    ("operator/tests/clusters",),
    ("broker/tests",),
    ("broker/tests/api",),
    ("broker/tests/replica", "broker/tests/replication"),
    ("broker/tests/client", "broker/tests/cli"),
    ("broker/tests/group", "broker/tests/txn"),
    ("broker/tests/control", "broker/tests/placement", "broker/tests/state"),
    ("broker/tests/wire", "broker/tests/share"),
    ("spark_jobs/tests",),
    ("broker/tests/log",),
    ("operator/tests",),
)
"""Folders that share a process, the longest part first. What no other part names belongs to the part of its suite."""
WARM_UP = ("broker/tests/api", "broker/tests/control")
"""Folders whose tests import most of what others do: they are collected before the first fork."""
OPTIONS = ("--unit", "-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-profile", "penstock-fewer")
OUTCOME = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|deselected)\b")
PASSED, NO_TESTS, INTERNAL_ERROR = 0, 5, 3
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


@dataclass(frozen=True)
class Running:
    """A part whose process has not ended."""

    part: Sequence[str]
    output: IO[str]
    began: float

    def result(self, code: int) -> Result:
        """Read what the process wrote; call this after its end."""
        with self.output:
            self.output.seek(0)
            return Result(self.part, code, self.output.read(), time.monotonic() - self.began)


def ignored(part: Sequence[str]) -> list[str]:
    """Return pytest's options that leave out what belongs to other parts."""
    others = [folder for other in PARTS if other != part for folder in other]
    return [f"--ignore={folder}" for folder in others if any(folder.startswith(f"{own}/") for own in part)]


def warm_up() -> None:
    """Import pytest's plugins, the product and what the tests use. The parts report what fails."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main([*OPTIONS, "--collect-only", *WARM_UP])


def fork(task: Callable[[], int], output: IO[str]) -> int:
    """Return the process id of a child that writes to the output and exits with the task's result."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = INTERNAL_ERROR
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        code = task()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc(file=output)
        output.flush()
        raise
    finally:
        os._exit(code)


def run_parts(parts: Sequence[Sequence[str]], run: Callable[[Sequence[str]], int], processes: int) -> list[Result]:
    """Run each part in a process, so many at a time, and print each result when it is there."""
    waiting, running, results = list(reversed(parts)), dict[int, Running](), list[Result]()
    while waiting or running:
        while waiting and len(running) < processes:
            part, output = waiting.pop(), tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
            running[fork(lambda part=part: run(part), output)] = Running(part, output, time.monotonic())  # type: ignore[misc]
        pid, status = os.wait()
        results.append(running.pop(pid).result(os.waitstatus_to_exitcode(status)))
        show(results[-1])
    return results


def run_tests(part: Sequence[str], arguments: Sequence[str]) -> int:
    """Run the tests of a part in this process; return pytest's exit code."""
    return int(pytest.main([*OPTIONS, *part, *ignored(part), *arguments]))


def show(result: Result) -> None:
    sys.stdout.write(result.output if result.code not in (PASSED, NO_TESTS) else summary(result))
    sys.stdout.flush()


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
    os.chdir(ROOT)
    warm_up()
    # A test that waits for a timer or a thread leaves its core to another process.
    processes = (os.cpu_count() or 1) + 1
    results = run_parts(PARTS, lambda part: run_tests(part, arguments), processes)
    total: Counter[str] = sum((result.counts for result in results), Counter())
    shown = ", ".join(f"{number} {outcome}" for outcome, number in sorted(total.items()))
    print(f"{shown or 'no tests'} in {time.monotonic() - began:.1f} s")
    return exit_code(results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
