"""Mutation testing: `python -m tests.mutants.run [PACKAGE...] --sample 40 --seed N`.

Each mutation is made in a copy of the source, and tests must fail against the copy: those that specify the module, or
else the unit tests of its package. A survivor is a gap in the tests, unless `equivalent.toml` explains why no test can
detect it. Exit code 1 if fewer than --least percent were detected.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "faults"))

from penstock_faults.planting import BROKER, FAILED, PASSED, ROOT, copy_of, run_tests
from penstock_mutants.sites import Mutation, sample
from penstock_mutants.specified import specifying_tests

HOME = Path(__file__).parent
OPERATOR = "operator/penstock_operator"
INTERRUPTED, NO_TESTS = 2, 5
"""pytest's exit codes if a module cannot be imported, and if all tests are excluded."""


@dataclass(frozen=True)
class Scope:
    """A part of a package, and the tests that specify it."""

    package: str
    folder: str
    tests: tuple[str, ...]


SAME_NAME = ("log", "group", "txn", "control", "state", "share", "shrink", "filter")
"""Packages whose tests are in the folder of their name."""
SCOPES = {
    **{name: Scope(BROKER, name, (f"broker/tests/{name}",)) for name in SAME_NAME},
    "replica": Scope(BROKER, "replica", ("broker/tests/replica", "broker/tests/replication")),
    "reconcile": Scope(OPERATOR, "reconcile", ("operator/tests/reconcile",)),
    "snapshots": Scope(OPERATOR, "snapshots", ("operator/tests/snapshots",)),
}


@dataclass(frozen=True)
class Outcome:
    """The tests' verdict on a mutation."""

    mutation: Mutation
    is_detected: bool
    why_equivalent: str = ""


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return reasons by file, line before and line after."""
    entries = tomllib.loads((HOME / "equivalent.toml").read_text()).get("mutation", [])
    return {(entry["file"], entry["before"], entry["after"]): entry["reason"] for entry in entries}


def attempt(scope: Scope, mutation: Mutation, known: dict[tuple[str, str, str], str]) -> Outcome:
    """Run the tests that specify the module, then the scope's unit tests, against a copy with the mutation."""
    reason = known.get((mutation.file, mutation.before, mutation.after), "")
    if reason:
        return Outcome(mutation, False, reason)
    with copy_of(scope.package) as copy:
        file = copy / mutation.file
        file.write_text(mutation.source)
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()
        specifying = specifying_tests(ROOT, scope.package.partition("/")[0], mutation.file)
        is_detected = fails(copy, *specifying) if specifying else False
        return Outcome(mutation, is_detected or fails(copy, "--unit", *scope.tests))


def fails(copy: Path, *arguments: str) -> bool:
    """Return whether a test fails or hangs."""
    try:
        code, _ = run_tests(copy, ("-x", *arguments))
    except subprocess.TimeoutExpired:
        return True
    if code not in (PASSED, FAILED, INTERRUPTED, NO_TESTS):
        raise RuntimeError(f"pytest ended with {code}: {' '.join(arguments)}")
    return code in (FAILED, INTERRUPTED)


def main() -> int:
    """Sample mutations, run the tests, and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(SCOPES)}; all if none is named")
    parser.add_argument("--sample", type=int, default=40, help="number of mutations over all packages (default: 40)")
    parser.add_argument("--seed", help="repeats a run (default: a random one)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--least", type=float, default=95.0, help="percentage that must be detected (default: 95)")
    arguments = parser.parse_args()
    names = arguments.packages or list(SCOPES)
    unknown = [name for name in names if name not in SCOPES]
    if unknown:
        parser.error(f'unknown package "{unknown[0]}"; choose from {", ".join(SCOPES)}')
    seed = arguments.seed or str(random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}", flush=True)
    modules = {name: sources(SCOPES[name]) for name in names}
    by_file = {file: name for name in names for file in modules[name]}
    chosen = sample({file: text for name in names for file, text in modules[name].items()}, arguments.sample, seed)
    known = equivalents()
    with ThreadPoolExecutor(arguments.workers) as pool:
        outcomes = list(pool.map(lambda m: shown(attempt(SCOPES[by_file[m.file]], m, known)), chosen))
    counted = [outcome for outcome in outcomes if not outcome.why_equivalent]
    detected = sum(outcome.is_detected for outcome in counted)
    share = 100 * detected / len(counted) if counted else 100.0
    print(f"{detected} of {len(counted)} detected ({share:.1f} %), {len(outcomes) - len(counted)} equivalent")
    return 0 if share >= arguments.least else 1


def sources(scope: Scope) -> dict[str, str]:
    """Return the scope's modules by path below the package."""
    package = ROOT / scope.package
    return {str(path.relative_to(package)): path.read_text() for path in sorted((package / scope.folder).rglob("*.py"))}


def shown(outcome: Outcome) -> Outcome:
    word = "equivalent" if outcome.why_equivalent else "detected" if outcome.is_detected else "SURVIVED"
    print(f"{word:10} {outcome.mutation}", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
