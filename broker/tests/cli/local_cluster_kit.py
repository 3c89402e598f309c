"""A local cluster under test: the real supervisor and a real etcd, with real brokers or stand-ins.

Run as a program, this module is the supervisor (`run DIR BROKERS [FLAGS]`) or a stand-in broker (`broker OPTIONS`). A
stand-in prints a ready line, writes to standard error and exits at SIGTERM. The environment variable STANDIN_<id> makes
it misbehave: fail (exits at once), hang (ignores SIGTERM) or slow (is never ready).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.cli.common import CommandError
from penstock.cli.local_cluster.plan import LocalCluster
from penstock.cli.local_cluster.supervisor import ClusterSupervisor
from penstock.config.options import UpOptions

DEADLINE_S = 60.0
"""Upper bound of every wait; only a failing test reaches it."""


def stand_in(options: UpOptions) -> list[str]:
    words = {"id": options.settings["node.id"], "etcd": options.etcd[0], "port": options.port}
    return [sys.executable, __file__, "broker", json.dumps(words)]


def be_supervisor(directory: str, brokers: int, *flags: str) -> int:
    options = UpOptions(data_dir=directory, port=0, http_port=None)
    cluster = LocalCluster(options, brokers, restart="restart" in flags)
    supervisor = ClusterSupervisor(cluster, stand_in, stop_timeout_s=1.0 if "hasty" in flags else 60.0)
    try:
        return asyncio.run(supervisor.run())
    except CommandError as e:
        tell(f"error: {e}")
        return e.code


def be_broker(broker_id: str, etcd: str, port: int) -> None:
    manner = os.environ.get(f"STANDIN_{broker_id}", "")
    if manner == "fail":
        sys.exit("no good")
    listener = socket.create_server(("127.0.0.1", port))
    # A signal handler that sets an event could deadlock: the interrupted wait holds the event's lock.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if manner != "slow":
        sys.stdout.write(f"ready kafka=127.0.0.1:{listener.getsockname()[1]} http=off\n")
        sys.stdout.flush()
    tell(f"process {os.getpid()}")
    signal.sigwait([signal.SIGTERM])
    while manner == "hang":
        signal.sigwait([signal.SIGTERM])
    with urllib.request.urlopen(f"{etcd}/health", timeout=10) as answer:
        tell(f"ending, etcd answers {answer.status}")


def tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Running:
    """A supervisor process whose output is read as it arrives; leaving the context kills it and its children."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._news: queue.Queue[None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: object, lines: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            lines.append(line.rstrip("\n"))
            self._news.put(None)
        self._news.put(None)

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until `true()` holds. Raises AssertionError with the output at the deadline or if the process exits."""
        deadline = time.monotonic() + DEADLINE_S
        while not true():
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=min(0.5, max(0.0, deadline - time.monotonic())))
            if time.monotonic() > deadline or (self.process.poll() is not None and not self._alive() and not true()):
                raise AssertionError("it did not come true:\n" + "\n".join([*self.out, *self.err]))

    def _alive(self) -> bool:
        return any(reader.is_alive() for reader in self._readers)

    def until_said(self, *words: str, times: int = 1) -> str:
        """Wait for `times` lines with all words on standard error; return the last one."""
        self.until(lambda: len(self.lines_with(*words)) >= times)
        return self.lines_with(*words)[-1]

    def lines_with(self, *words: str) -> list[str]:
        return [line for line in list(self.err) if all(word in line for word in words)]

    def ready(self) -> dict[str, str]:
        """Wait for the ready line; return its fields."""
        self.until(lambda: len(self.out) > 0)
        words = self.out[0].split()
        assert words[0] == "ready", self.out
        return dict(word.split("=", 1) for word in words[1:])

    def pids(self) -> dict[str, int]:
        """Return the process ids of the children by name (`broker-ID`, `etcd`)."""
        found: dict[str, int] = {}
        for pid, command in children_of(self.process.pid):
            if command[0].endswith("etcd"):
                found["etcd"] = pid
            elif '"node.id":"' in command[-1]:
                found["broker-" + command[-1].split('"node.id":"')[1].split('"')[0]] = pid
            elif '"id": "' in command[-1]:
                found["broker-" + command[-1].split('"id": "')[1].split('"')[0]] = pid
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; return the exit code once all output is read."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Return the exit code once all output is read. Raises AssertionError if the process does not exit in time."""
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            left = f"it does not end, below it run {self.pids()}:"
            raise AssertionError("\n".join([left, *self.out, *self.err])) from None
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # its children exit with it
        self.process.wait()
        for reader in self._readers:
            reader.join(DEADLINE_S)


def children_of(parent: int) -> list[tuple[int, list[str]]]:
    """Return (process id, command) of each child process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append((int(entry.name), (entry / "cmdline").read_text().rstrip("\0").split("\0")))
        except (OSError, ValueError):
            continue  # the process has exited
    return found


def is_there(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while any(map(is_there, pids)):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if is_there(pid)]}"
        time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(be_supervisor(sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
    wanted = json.loads(sys.argv[2])
    be_broker(wanted["id"], wanted["etcd"], wanted["port"])
