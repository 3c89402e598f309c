"""CPU time and termination of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import procfs
from bench.peers.broker import Broker, Peer
from bench.peers.service import BrokerFailed

BURN_IN_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while sum(range(1000)): pass"])
print(child.pid, flush=True)
time.sleep(60)
"""


def _wait_for_cpu(pid: int, seconds: float) -> float:
    while (used := procfs.cpu_s(pid)) < seconds:
        assert (Path("/proc") / str(pid)).exists(), "the process ended before it had used its time"
    return used


def test_a_childs_cpu_time_and_memory_count_for_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", BURN_IN_CHILD], stdout=subprocess.PIPE)
    child = 0
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert procfs.tree(parent.pid) == [parent.pid, child]
        assert _wait_for_cpu(parent.pid, 0.3) >= 0.3
        assert procfs.cpu_s(child) > 0.1
        assert procfs.resident_bytes(parent.pid) > procfs.resident_bytes(child) > 1_000_000
    finally:
        parent.kill()
        parent.wait()
        if child:
            os.kill(child, 9)


ITS_OWN_TIME = """
import os
from bench import procfs
before = procfs.cpu_s(os.getpid())
own = sum(os.times()[:4])
while sum(os.times()[:4]) < own + 0.2:
    sum(range(1000))
print(procfs.cpu_s(os.getpid()) - before)
"""


def test_cpu_time_agrees_with_the_process_itself() -> None:
    """Uses a process without children, whose time would count too."""
    done = subprocess.run(
        [sys.executable, "-c", ITS_OWN_TIME],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert float(done.stdout) == pytest.approx(0.2, abs=0.05)


class _Failing(Peer):
    label = "failing"

    def version(self) -> str:
        return "none"

    def command(self, data_dir: Path, port: int) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.exit('no such disk')"]


def test_a_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    broker = Broker(_Failing(), os.sched_getaffinity(0), tmp_path)
    with pytest.raises(BrokerFailed, match=r"failing ended with exit code 1(.|\n)*no such disk"):
        broker.start()
    broker.remove()
    assert list(tmp_path.iterdir()) == []


class _Deaf(Peer):
    label = "deaf"

    def version(self) -> str:
        return "none"

    def command(self, data_dir: Path, port: int) -> list[str]:
        return [sys.executable, "-c", BURN_IN_CHILD]


def _runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.timeout(30)
def test_removing_a_broker_ends_its_children_too(tmp_path: Path) -> None:
    broker = Broker(_Deaf(), os.sched_getaffinity(0), tmp_path)
    broker.spawn()
    while len(members := procfs.tree(broker.pid)) < 2:
        broker.check()
    broker.remove()
    while any(_runs(member) for member in members):  # a signal takes effect a moment later
        continue
