"""Copies a package's source, plants a fault in the copy, and runs tests against it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BROKER = "broker/penstock"
SPARK = "spark_jobs/penstock_spark"
TEST_LIMIT_S = 90
"""Time limit of a test; a test that exceeds it because of a fault has detected it."""
RUN_LIMIT_S = 900
SEED = "1"
"""Seed for randomized tests, so that a replay is exact."""
PASSED, FAILED = 0, 1
"""pytest's exit codes; any other means that the tests did not run properly."""


@dataclass(frozen=True)
class Fault:
    """A replacement of source text, and the tests that must detect it."""

    name: str
    says: str
    """Effect of the fault."""
    file: str
    """Path below the package."""
    old: str
    """Text that occurs exactly once in the file."""
    new: str
    caught_by: tuple[str, ...]
    """Test ids in pytest's form, relative to the root of the checkout."""
    package: str = BROKER

    @property
    def place(self) -> str:
        return f"{self.package}/{self.file}"


class FaultError(Exception):
    """A fault no longer fits the source, or was not detected; the message says which one and how to fix it."""


def mutated(fault: Fault, package: Path | None = None) -> str:
    """Return the file's text with the fault. Raises FaultError if it does not fit or would not compile.

    `package` is a copy of the fault's package, by default the package itself.
    """
    text = ((package or ROOT / fault.package) / fault.file).read_text()
    count = text.count(fault.old)
    if count != 1:
        raise FaultError(
            f"{fault.name}: the text to replace stands {count} times in {fault.place}: update the catalogue"
        )
    changed = text.replace(fault.old, fault.new)
    try:
        compile(changed, fault.file, "exec")
    except SyntaxError as e:
        raise FaultError(f"{fault.name}: {fault.place} would not compile: {e}") from e
    return changed


@contextlib.contextmanager
def copy_of(package: str) -> Iterator[Path]:
    """Create a directory for PYTHONPATH with a copy of a package. Yields the copy.

    The copy includes compiled modules and modification times; otherwise each process that a test starts would recompile
    them. Temporary files of modules being written are excluded.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-fault-") as made:
        copy = Path(made) / Path(package).name
        shutil.copytree(ROOT / package, copy, ignore=shutil.ignore_patterns("*.pyc.*"))
        yield copy


def plant(fault: Fault, package: Path) -> None:
    """Plant the fault in a copy of the package."""
    file = package / fault.file
    file.write_text(mutated(fault, package))
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def environment(copy: Path) -> dict[str, str]:
    """Return an environment in which processes, including those of tests, import the copy and leave the checkout as it
    is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    chosen = {
        "PYTHONPATH": str(copy.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy.parent / "hypothesis"),
        "PENSTOCK_TEST_SEED": SEED,
    }
    return kept | chosen


def run_tests(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Return (pytest's exit code, its output) for tests against the copy."""
    where = [sys.executable, "-P", "-c", f"import {copy.name} as package; print(package.__file__)"]
    found = subprocess.run(where, env=environment(copy), cwd=ROOT, capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).is_relative_to(copy):
        raise FaultError(f"tests would not run against the copy, but against {found.stdout.strip()}")
    options = ["-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S}"]
    command = [sys.executable, "-P", "-m", "pytest", *options, *tests]
    done = subprocess.run(
        command,
        env=environment(copy),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


def check_sound(faults: Sequence[Fault]) -> None:
    """Check that the tests of the faults pass without them. Raises FaultError."""
    for package in dict.fromkeys(fault.package for fault in faults):
        tests = list(dict.fromkeys(test for fault in faults if fault.package == package for test in fault.caught_by))
        with copy_of(package) as copy:
            code, output = run_tests(copy, tests)
        if code != PASSED:
            raise FaultError(f"without any fault the tests end with {code}, so they prove nothing:\n{output}")


def check_noticed(fault: Fault) -> str:
    """Plant the fault; return pytest's lines of failures. Raises FaultError if one of its tests passes."""
    with copy_of(fault.package) as copy:
        plant(fault, copy)
        code, output = run_tests(copy, fault.caught_by)
    if code not in (PASSED, FAILED):
        raise FaultError(f"{fault.name}: the tests did not run (pytest ended with {code}):\n{output}")
    failures = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    for test in fault.caught_by:
        if not any(f" {test}" in line for line in failures):
            raise FaultError(f"{fault.name}: {test} does not notice that {fault.says} ({fault.place})")
    return "\n".join(failures)
