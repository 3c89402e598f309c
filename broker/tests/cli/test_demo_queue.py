"""`penstock demo queue`: its checks detect each fault, and it runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from penstock.cli.demo.queue import BAD_JOB, FAILING_JOB, JOBS, QueueDemo


def finished() -> QueueDemo:
    demo = QueueDemo("127.0.0.1:1")
    demo.deliveries.update(range(JOBS))
    demo.deliveries[FAILING_JOB] += 1
    demo.done = {number: "one" for number in range(JOBS) if number != BAD_JOB}
    demo.rejected, demo.letters, demo.backlog = [BAD_JOB], [BAD_JOB], 0
    return demo


def failed(demo: QueueDemo) -> list[str]:
    return [what for what, holds, _ in demo.checks() if not holds]


def test_a_run_without_faults_passes() -> None:
    assert failed(finished()) == []


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda demo: demo.done.pop(3), "each job is done or rejected"),
        (lambda demo: demo.deliveries.update([3]), "only the job that failed was delivered again"),
        (lambda demo: demo.rejected.append(3), "one job was rejected"),
        (lambda demo: demo.letters.clear(), "the rejected job is a dead letter"),
        (lambda demo: setattr(demo, "backlog", 1), "the queue is empty"),
    ],
)
def test_each_fault_fails_its_check(change: Callable[[QueueDemo], object], check: str) -> None:
    demo = finished()
    change(demo)
    assert failed(demo) == [check]


@pytest.mark.integration
@pytest.mark.timeout(180)
def test_the_demo_tells_its_story_and_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "demo", "queue"], capture_output=True, text=True, timeout=170
    )
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        f"{JOBS} jobs wait in topic jobs",
        f"job {FAILING_JOB} fails at worker",
        f"job {FAILING_JOB} succeeds at worker",
        f"job {BAD_JOB} cannot be done",
        f"job {BAD_JOB} is in topic dlq.workers",
    ):
        assert line in done.stdout
    assert "FAILED" not in done.stdout
