"""Run kafka-python's own integration suite against a broker and compare with the checked-in list of exceptions.

    python tests/conformance/run_kafka_python.py 127.0.0.1:9092

The source distribution is downloaded once from the package index, verified against the hash below, and kept in the
user's cache directory. The broker needs `num.partitions=4`, as in the suite's own configuration, and a cluster needs a
broker 0. Exit code 0 means that all unlisted tests passed and all excepted ones failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

VERSION = "3.0.12"
SHA256 = "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
KAFKA_VERSION = "4.3"
"""Release whose table of API versions kafka-python uses without negotiation, and should infer with it."""

HERE = Path(__file__).parent
MOST_AGAIN = 3
EXCEPTIONS = HERE / "kafka_python_exceptions.txt"
FOR_ONE_BROKER = HERE / "kafka_python_for_one_broker.txt"
"""Tests that are not run on several brokers, because their outcome then depends on timing."""
SUITE_DEADLINE_S = 600
TEST_DEADLINE_S = 60


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`outcome` is passed, failed, skipped or left out; the worst of a test's phases."""

    outcome: str
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Lists:
    """Test ids with reasons: tests that do not pass, and tests that are not run."""

    excepted: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_lists(brokers: int) -> Lists:
    """Return the lists for a cluster of that many brokers."""
    return Lists(read_list(EXCEPTIONS.read_text()), read_list(FOR_ONE_BROKER.read_text()) if brokers > 1 else {})


def read_list(text: str) -> dict[str, str]:
    """Return the reason by test id. Each line has the id, blanks, and the reason; `#` starts a comment line."""
    exceptions: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        test, _, reason = line.partition("  ")
        assert reason.strip(), f"line {number} of the list has no reason: {line!r}"
        assert test not in exceptions, f"line {number} of the list repeats {test}"
        exceptions[test] = reason.strip()
    return exceptions


def judge(outcomes: Mapping[str, Outcome], lists: Lists) -> list[str]:
    """Return the deviations from the lists, one text each; empty if there are none."""
    problems = []
    if not outcomes:
        problems.append("no test ran")
    for test, outcome in outcomes.items():
        if test in lists.left_out:
            continue
        if test not in lists.excepted and outcome.outcome != "passed":
            problems.append(f"{test} {outcome.outcome}:\n{outcome.detail}")
        if test in lists.excepted and outcome.outcome == "passed":
            problems.append(f"{test} passes and is excepted all the same: {lists.excepted[test]}")
    named = [*lists.excepted, *lists.left_out]
    problems += [f"{test} is on a list and does not exist" for test in named if test not in outcomes]
    return problems


def read_outcomes(lines: Iterable[str]) -> dict[str, Outcome]:
    worst = ("left out", "passed", "skipped", "failed")
    outcomes: dict[str, Outcome] = {}
    for line in lines:
        event = json.loads(line)
        test, outcome = event["test"], Outcome(event["outcome"], event["detail"])
        before = outcomes.get(test, outcome)
        outcomes[test] = max(before, outcome, key=lambda o: worst.index(o.outcome))
    return outcomes


def fetch_sdist(cache: Path) -> Path:
    """Return the source distribution from the cache, or from the index through pip; the hash is verified either way."""
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / f"kafka_python-{VERSION}.tar.gz"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _download(archive)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == SHA256, f"{archive} has SHA-256 {found}, not {SHA256}; delete it if it is damaged"
    return archive


def _download(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        requirement = Path(folder) / "requirement.txt"
        requirement.write_text(f"kafka-python=={VERSION} --hash=sha256:{SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-binary", "kafka-python", "--require-hashes", "--dest", folder]
        done = subprocess.run([*command, "-r", str(requirement)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"pip could not fetch kafka-python {VERSION}: {done.stderr}"
        (Path(folder) / archive.name).rename(archive)


def unpack_suite(archive: Path, work: Path) -> None:
    """Unpack `test/` of the distribution, and add the two modules that it lacks."""
    with tarfile.open(archive) as packed:
        root = f"kafka_python-{VERSION}/test/"
        for entry in packed.getmembers():
            if entry.isfile() and entry.name.startswith(root) and ".." not in entry.name:
                target = work / "test" / entry.name.removeprefix(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                content = packed.extractfile(entry)
                assert content is not None
                target.write_bytes(content.read())
    # Otherwise the standard library's package `test` would be found first.
    (work / "test" / "__init__.py").touch()
    shutil.copy(HERE / "kafka_python_service.py", work / "test" / "service.py")


def outcomes_of(bootstrap: str, work: Path, lists: Lists) -> dict[str, Outcome]:
    """Return the suite's outcomes; for failed tests those of a second run.

    The suite itself has races. It is written for one broker: with several, a request about a new topic may reach a
    broker that does not know it yet. On a busy machine the client's own threads sometimes lose track of each other
    permanently.
    """
    archive = fetch_sdist(cache_folder())
    outcomes = run_suite(bootstrap, archive, work / "suite", lists)
    again = worth_another_try(outcomes, lists)
    if again:
        outcomes.update(run_suite(bootstrap, archive, work / "again", lists, again))
    return outcomes


def worth_another_try(outcomes: dict[str, Outcome], lists: Lists) -> list[str]:
    """Return the unexpected failures if they are few: many failures have a common cause."""
    failed = [test for test, found in outcomes.items() if found.outcome == "failed" and test not in lists.excepted]
    return failed if len(failed) <= MOST_AGAIN else []


def run_suite(
    bootstrap: str, archive: Path, work: Path, lists: Lists, tests: Sequence[str] = ("test/integration",)
) -> dict[str, Outcome]:
    """Run the suite in a separate process and directory, isolated from this project's settings."""
    work.mkdir()
    unpack_suite(archive, work)
    outcomes = work / "outcomes.jsonl"
    outcomes.touch()
    (work / "servers").mkdir()
    (work / "pytest.ini").write_text("[pytest]\n")
    environment = {
        **os.environ,
        "KAFKA_URI": f"kafka://{bootstrap}",
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_ROOT": str(work / "servers"),
        "KAFKA_PYTHON_OUTCOMES": str(outcomes),
        "KAFKA_PYTHON_EXCEPTED": "\n".join(lists.excepted),
        "KAFKA_PYTHON_LEFT_OUT": "\n".join(lists.left_out),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", "pytest", *tests, "-q", "-p", "kafka_python_plugin"]
    command += ["-p", "no:cacheprovider", f"--timeout={TEST_DEADLINE_S}", "--log-level=WARNING"]
    done = subprocess.run(
        command,
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SUITE_DEADLINE_S,
        check=False,
    )
    assert done.returncode in (0, 1), f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}"
    return read_outcomes(outcomes.read_text().splitlines())


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock" / "conformance"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bootstrap", help="host:port of a running broker")
    parser.add_argument("--brokers", type=int, default=1, help="how many brokers the cluster has")
    parser.add_argument("--verbose", action="store_true", help="list every test with its outcome")
    arguments = parser.parse_args()
    lists = read_lists(arguments.brokers)
    with tempfile.TemporaryDirectory() as work:
        outcomes = outcomes_of(arguments.bootstrap, Path(work), lists)
    for test, outcome in outcomes.items() if arguments.verbose else ():
        print(f"{outcome.outcome:8} {test}")
    problems = judge(outcomes, lists)
    for problem in problems:
        print(problem)
    passed = sum(outcome.outcome == "passed" for outcome in outcomes.values())
    listed = f"{len(lists.excepted)} excepted, {len(lists.left_out)} left out"
    print(f"{passed} of {len(outcomes)} passed, {listed}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
