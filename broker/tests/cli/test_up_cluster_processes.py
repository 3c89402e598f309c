"""`penstock up --brokers N` with a real etcd and stand-in brokers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import local_cluster_kit
from local_cluster_kit import Running, is_there, until_gone

from penstock.state.etcd.binary import find_etcd

pytestmark = pytest.mark.integration

NAMES = ["broker-1", "broker-2", "broker-3", "etcd"]


def started(directory: Path, *flags: str, environment: dict[str, str] | None = None) -> Running:
    return Running([sys.executable, local_cluster_kit.__file__, "run", str(directory), "3", *flags], environment)


def test_one_ready_line_names_the_first_broker_and_all_of_them(tmp_path: Path) -> None:
    with started(tmp_path) as cluster:
        ready = cluster.ready()
        addresses = ready["bootstrap"].split(",")
        assert ready["kafka"] == addresses[0]
        assert len(set(addresses)) == 3
        assert ready["http"] == "off"
        assert ready["etcd"].startswith("http://127.0.0.1:")
        assert sorted(cluster.pids()) == NAMES
        assert cluster.end() == 0
    assert len(cluster.out) == 1


def test_each_line_of_a_process_comes_behind_its_name_on_standard_error(tmp_path: Path) -> None:
    with started(tmp_path) as cluster:
        cluster.ready()
        for name in NAMES[:3]:
            cluster.until_said(f"{name} | process ")
        assert not any("\x1b" in line for line in cluster.err), "colour is for terminals"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_brokers_first_and_then_etcd(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as cluster:
        cluster.ready()
        pids = cluster.pids()
        assert cluster.end(number) == 0
        assert len(cluster.lines_with("ending, etcd answers 200")) == 3
        until_gone(list(pids.values()))


def test_a_killed_broker_is_reported_with_its_cure_and_the_others_go_on(tmp_path: Path) -> None:
    with started(tmp_path) as cluster:
        ready = cluster.ready()
        pids = cluster.pids()
        os.kill(pids["broker-2"], signal.SIGKILL)
        line = cluster.until_said("penstock ", "broker-2", "SIGKILL", f"process {pids['broker-2']}")
        port = ready["bootstrap"].split(",")[1].rpartition(":")[2]
        assert f"penstock up --etcd {ready['etcd']} --id 2 --data {tmp_path}/2 --port {port}" in line
        assert all(is_there(pid) for name, pid in pids.items() if name != "broker-2")
        assert cluster.pids().keys() == pids.keys() - {"broker-2"}
        assert cluster.end() == 0


def test_with_restart_it_is_started_again_at_the_same_address(tmp_path: Path) -> None:
    with started(tmp_path, "restart") as cluster:
        address = cluster.ready()["bootstrap"].split(",")[1]
        before = cluster.pids()
        os.kill(before["broker-2"], signal.SIGKILL)
        cluster.until_said("broker-2", "restarting it")
        cluster.until_said("broker-2 |", f"ready kafka={address}", times=2)
        after = cluster.pids()
        assert after.keys() == before.keys()
        assert [name for name in after if after[name] != before[name]] == ["broker-2"]
        assert cluster.end() == 0


def answers(etcd: str) -> bool:
    try:
        with urllib.request.urlopen(f"{etcd}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_killed_etcd_comes_back_with_restart_and_with_what_it_held(tmp_path: Path) -> None:
    with started(tmp_path, "restart") as cluster:
        etcd = cluster.ready()["etcd"]
        before = cluster.pids()["etcd"]
        os.kill(before, signal.SIGTERM)
        cluster.until_said("etcd", "restarting it")
        cluster.until(lambda: cluster.pids().get("etcd", before) != before and answers(etcd))
        assert cluster.end() == 0
        assert len(cluster.lines_with("etcd answers 200")) == 3, f"at {etcd} again"


def test_when_all_brokers_have_ended_it_ends_too(tmp_path: Path) -> None:
    with started(tmp_path) as cluster:
        cluster.ready()
        pids = cluster.pids()
        for name in NAMES[:3]:
            os.kill(pids[name], signal.SIGKILL)
        assert cluster.ended() == 1
        cluster.until_said("all brokers have exited")
        until_gone(list(pids.values()))


def test_a_broker_that_does_not_start_ends_the_whole_with_its_last_lines(tmp_path: Path) -> None:
    with started(tmp_path, environment={"STANDIN_3": "fail"}) as cluster:
        assert cluster.ended() == 1
        cluster.until_said("broker-3 did not start", "exited with code 1")
        cluster.until_said("broker-3 | no good")
        assert cluster.out == []


def test_a_broker_that_does_not_end_is_killed_and_counts_as_a_failure(tmp_path: Path) -> None:
    with started(tmp_path, "hasty", environment={"STANDIN_1": "hang"}) as cluster:
        cluster.ready()
        pids = cluster.pids()
        assert cluster.end() == 1
        assert cluster.lines_with("broker-1 has not exited after 1 s")
        until_gone(list(pids.values()))


def test_a_second_signal_kills_what_is_left(tmp_path: Path) -> None:
    with started(tmp_path, environment={"STANDIN_1": "hang"}) as cluster:
        cluster.ready()
        pids = cluster.pids()
        cluster.process.send_signal(signal.SIGINT)
        cluster.until_said("stopping")
        assert cluster.end(signal.SIGINT) == 1
        until_gone(list(pids.values()))


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with started(tmp_path) as cluster:
        cluster.ready()
        pids = cluster.pids()
        assert len(pids) == 4
        cluster.process.kill()
        cluster.process.wait()
        until_gone(list(pids.values()))


def test_a_signal_while_a_broker_starts_ends_what_was_started(tmp_path: Path) -> None:
    with started(tmp_path, environment={"STANDIN_2": "slow"}) as cluster:
        cluster.until_said("broker-1 | process ")
        cluster.until_said("broker-2 | process ")
        cluster.until_said("broker-3 | process ")
        pids = cluster.pids()
        assert sorted(pids) == NAMES
        assert cluster.end() == 0
        assert len(cluster.lines_with("ending, etcd answers 200")) == 3
        assert cluster.out == [], "not all were ready"
        until_gone(list(pids.values()))


ETCD_WHOSE_PORT_IS_TAKEN = """#!/bin/sh
echo "$@" >> {seen}
[ $(wc -l < {seen}) -le {times} ] && exec echo 'listen tcp 127.0.0.1:2379: bind: address already in use' >&2
exec {etcd} "$@"
"""


def etcd_whose_port_is_taken(directory: Path, times: int) -> tuple[Path, dict[str, str]]:
    """Return the file in which a fake etcd records its calls, and an environment with it on PATH."""
    seen, program = directory / "seen", directory / "bin" / "etcd"
    program.parent.mkdir()
    program.write_text(ETCD_WHOSE_PORT_IS_TAKEN.format(seen=seen, times=times, etcd=find_etcd().path))
    program.chmod(0o755)
    return seen, {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def test_etcd_gets_other_ports_where_somebody_took_one_before_it_listened(tmp_path: Path) -> None:
    seen, environment = etcd_whose_port_is_taken(tmp_path, times=2)
    with started(tmp_path / "data", environment=environment) as cluster:
        etcd = cluster.ready()["etcd"]
        calls = seen.read_text().splitlines()
        assert len(set(calls)) == 3
        assert f"--listen-client-urls={etcd} " in calls[-1]
        assert sorted(cluster.pids()) == NAMES
        assert cluster.end() == 0


def test_it_is_not_tried_for_ever(tmp_path: Path) -> None:
    _, environment = etcd_whose_port_is_taken(tmp_path, times=100)
    with started(tmp_path / "data", environment=environment) as cluster:
        assert cluster.ended() == 1
        cluster.until_said("etcd did not start", "see its last log lines")


def test_a_signal_while_etcd_starts_ends_it(tmp_path: Path) -> None:
    with started(tmp_path) as cluster:
        cluster.until(lambda: "etcd" in cluster.pids())
        pids = cluster.pids()
        # A broker that gets SIGTERM before it blocks the signal counts as failed.
        assert cluster.end() in (0, 1)
        until_gone(list(pids.values()))


PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]])
time.sleep(600)
"""
WATCH = """
import os, signal, sys
from penstock.cli.local_cluster import guard
command = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
sys.exit(guard.watch(os.getppid(), signal.SIGTERM, command))
"""


def test_where_the_kernel_cannot_be_asked_a_guard_looks_for_the_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, WATCH], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_there(pid)
    parent.kill()
    parent.wait()
    until_gone([pid])
    parent.stdout.close()


def test_a_guard_hands_signals_and_the_exit_code_on() -> None:
    guarded = subprocess.Popen([sys.executable, "-c", WATCH], stdout=subprocess.PIPE, text=True)
    assert guarded.stdout is not None
    pid = int(guarded.stdout.readline())
    guarded.terminate()
    assert guarded.wait(60) == 128 + signal.SIGTERM
    assert not is_there(pid)
    guarded.stdout.close()


def test_a_program_that_is_not_there_is_named() -> None:
    guard = [sys.executable, "-m", "penstock.cli.local_cluster.guard", str(os.getpid()), "SIGKILL", "/no/such/program"]
    done = subprocess.run(guard, capture_output=True, text=True)
    assert (done.returncode, "/no/such/program" in done.stderr) == (127, True)


def test_a_guard_whose_parent_has_gone_before_it_begins_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    guard = [sys.executable, "-m", "penstock.cli.local_cluster.guard", str(gone.pid), "SIGKILL", "sleep", "600"]
    assert subprocess.run(guard, timeout=60).returncode == 1
