"""The demo's checks detect each fault; the demo runs and leaves no files or processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import pytest

from penstock.cli.demo.flights import Totals
from penstock.cli.demo.tally import DeliveryTally, check_tally

Change = Callable[[DeliveryTally, dict[int, int]], object]


def fine() -> tuple[DeliveryTally, Totals]:
    """Return a valid run of two partitions with three flights each; partition 1 is read twice from offset 1."""
    tally, expected = DeliveryTally(2), Totals()
    for partition, carrier in ((0, "UA"), (1, "AA")):
        rows = [(carrier, 5), (carrier, None), (carrier, -3)]
        tally.add("one", partition, 0, list(rows))
        for row in rows:
            expected.add(*row)
    tally.add("two", 1, 1, [("AA", None), ("AA", -3)])
    return tally, expected


def failed(change: Change, lag: int = 0, reported: dict[int, int] | None = None) -> list[str]:
    """Return the checks that fail after `change` is made to a valid run."""
    tally, expected = fine()
    lost = {1: 1}
    change(tally, lost)
    checks = check_tally(tally, expected, [3, 3], lost, reported or {1: 1}, lag)
    return [check.what for check in checks if not check.holds]


def test_a_run_where_all_is_well_passes_with_its_repeats_counted() -> None:
    assert failed(lambda tally, lost: None) == []
    tally, _ = fine()
    assert (tally.distinct, tally.repeats) == (6, 2)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda tally, lost: tally.partitions[0].rows.pop(1), "no (partition, offset) is missing"),
        (lambda tally, lost: tally.add("one", 0, 3, [("UA", 1)]), "no (partition, offset) is missing"),
        (lambda tally, lost: tally.add("one", 0, 2, [("UA", -3)]), "every repeat lies past"),
        (lambda tally, lost: tally.add("two", 1, 0, [("AA", 5)]), "every repeat lies past"),
        (lambda tally, lost: tally.add("two", 1, 2, [("AA", 7)]), "a repeat is the same record"),
        (lambda tally, lost: tally.partitions[0].rows.update({0: ("UA", 6)}), "the table equals"),
        (lambda tally, lost: tally.partitions[0].rows.update({0: ("B6", 5)}), "the table equals"),
    ],
)
def test_each_thing_that_is_wrong_fails_its_check(change: Change, check: str) -> None:
    assert any(what.startswith(check) for what in failed(change))


def test_a_commit_that_was_acknowledged_and_is_lost_fails() -> None:
    assert failed(lambda tally, lost: None, reported={1: 2}) == ["no commit that was acknowledged is lost"]


def test_lag_fails() -> None:
    assert failed(lambda tally, lost: None, lag=1) == ["the group's lag is 0"]


def test_totals_are_equal_only_when_all_sums_are() -> None:
    _, expected = fine()
    other = deepcopy(expected)
    assert other == expected
    other.delay_minutes["UA"] += 1
    assert other != expected


def leftovers(pid: int, home: Path) -> list[str]:
    """Return the directories and processes of a demo."""
    return [str(path) for path in home.iterdir()] + list(processes(pid, str(home)))


def processes(parent: int, named: str) -> Iterator[str]:
    """Yield the command lines of the children of `parent` and of all processes whose arguments contain `named`."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has exited
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            # The program's name is in parentheses and may contain any character; state and parent follow it.
            _state, its_parent, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if named in line or int(its_parent) == parent:
                yield line


def begin(home: Path) -> subprocess.Popen[str]:
    """Start a demo that has its directory in `home`, apart from those of other demos."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(home)},
    )


@pytest.mark.timeout(300)
@pytest.mark.integration
def test_the_demo_passes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = begin(tmp_path)
    out, _ = demo.communicate()
    assert demo.returncode == 0, out
    assert "336,776 of 336,776" in out
    assert "FAILED" not in out
    assert "killed" in out
    assert leftovers(demo.pid, tmp_path) == []


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(number: signal.Signals, tmp_path: Path) -> None:
    demo = begin(tmp_path)
    assert demo.stdout is not None
    assert demo.stdout.readline().startswith("broker 127.0.0.1:")
    assert leftovers(demo.pid, tmp_path) != []
    os.kill(demo.pid, number)
    demo.communicate()
    assert demo.returncode == 130
    assert leftovers(demo.pid, tmp_path) == []
