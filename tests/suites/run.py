"""Runs a client author's own suite against Penstock: `python -m tests.suites.run sarama`.

With --kafka it runs against Apache Kafka instead. The exit code is 0 only if the suite's list in `lists/` names all
failed tests, and no passed test as failing.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(2, str(Path(__file__).parents[2] / "broker" / "tests" / "state"))
sys.path.insert(3, str(Path(__file__).parents[2] / "broker" / "tests" / "client"))

from penstock_suites.brokers import running
from penstock_suites.lists import FAILED, PASSED, Exceptions, Outcome, counted, problems, read
from penstock_suites.registry import FROM_REGISTRIES, SUITES
from penstock_suites.sources import SourceError
from penstock_suites.suite import Run, Suite

HERE = Path(__file__).parent
MOST_AGAIN = 6
"""Maximum of failed tests that are run a second time: more failures have a common cause."""


def exceptions_of(name: str, kafka: bool, brokers: int | None = None) -> Exceptions:
    """Return the suite's list. On Apache Kafka the same tests are left out; `lists/NAME.kafka.txt` lists failures.

    `lists/NAME.several.txt` adds the tests that expect a single broker, if `brokers` chooses several.
    """
    own = _read(f"{name}.txt")
    if kafka:
        theirs = _read(f"{name}.kafka.txt")
        own = dataclasses.replace(theirs, left_out={**own.left_out, **theirs.left_out})
    several = _read(f"{name}.several.txt") if brokers is not None and brokers > 1 else Exceptions()
    return Exceptions(
        {**own.left_out, **several.left_out}, {**own.fails, **several.fails}, {**own.unsteady, **several.unsteady}
    )


def _read(file: str) -> Exceptions:
    path = HERE / "lists" / file
    return read(path.read_text()) if path.exists() else Exceptions()


def play(suite: Suite, brokers: int | None, kafka: bool, only: Sequence[str], work: Path) -> dict[str, Outcome]:
    """Build the suite, start its cluster, run it; failed tests run once more, and the second outcome counts."""
    sources = suite.build()
    exceptions = exceptions_of(suite.name, kafka, brokers)
    with running(suite.layout(brokers), work, kafka=kafka) as cluster, suite.around(cluster, work):
        run = Run(sources, cluster, work, list(exceptions.left_out), only)
        outcomes = dict(suite.run(run))
        expected = {**exceptions.fails, **exceptions.unsteady}
        failed = [t for t, o in counted(outcomes, exceptions).items() if o.result == FAILED and t not in expected]
        if failed and not only and len(failed) <= MOST_AGAIN:
            print(f"running again: {', '.join(failed)}", flush=True)
            again = suite.run(dataclasses.replace(run, only=failed))
            outcomes.update({test: outcome for test, outcome in again.items() if test in failed})
    return outcomes


def report(suite: Suite, outcomes: Mapping[str, Outcome], exceptions: Exceptions, kafka: bool) -> list[str]:
    """Print the score and the deviations from the list; return the deviations."""
    found = problems(outcomes, exceptions)
    for problem in found:
        print(problem)
    scored = counted(outcomes, exceptions)
    passed = sum(outcome.result == PASSED for outcome in scored.values())
    peer = "Apache Kafka" if kafka else "Penstock"
    print(
        f"{suite.source.label} on {peer}: {passed} of {len(scored)} passed; {len(exceptions.left_out)} left out,"
        f" {len(exceptions.fails)} listed as failing, {len(found)} problems",
        flush=True,
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"default: {' '.join(FROM_REGISTRIES)}")
    parser.add_argument("--kafka", action="store_true", help="run against Apache Kafka instead")
    parser.add_argument("--brokers", type=int, help="how many brokers, for suites that take any number")
    parser.add_argument("--source", type=Path, help="checkout that has the tests, for suites that no registry serves")
    parser.add_argument("--only", action="append", default=[], metavar="TEST", help="run this test; may be repeated")
    parser.add_argument("--verbose", action="store_true", help="list every test with its outcome")
    parser.add_argument("--keep", action="store_true", help="keep the logs although the run went well")
    chosen = parser.parse_args(arguments)
    for name in chosen.suites:
        if name not in SUITES:
            parser.error(f"suite {name!r} does not exist; choose from {', '.join(SUITES)}")
    failed = False
    for name in chosen.suites or FROM_REGISTRIES:
        suite, work = SUITES[name](chosen.source), Path(tempfile.mkdtemp(prefix=f"suite-{name}-"))
        began_s = time.monotonic()
        try:
            outcomes = play(suite, chosen.brokers, chosen.kafka, chosen.only, work)
        except SourceError as error:
            parser.exit(2, f"{name}: {error}\n")
        for test, outcome in sorted(outcomes.items()) if chosen.verbose else ():
            print(f"{outcome.result:8} {test}")
        exceptions = exceptions_of(name, chosen.kafka, chosen.brokers)
        if chosen.only:
            exceptions = Exceptions(exceptions.left_out)
        found = report(suite, outcomes, exceptions, chosen.kafka)
        failed = failed or bool(found)
        if found or chosen.keep:
            print(f"took {time.monotonic() - began_s:.0f} s; logs are in {work}", flush=True)
        else:
            shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
