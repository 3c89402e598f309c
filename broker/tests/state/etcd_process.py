"""Real etcd processes for tests: one member or several on loopback, in a temporary directory, ended by their pids.

    with EtcdCluster(directory, members=3) as etcd:
        store = EtcdStore(EtcdOptions(endpoints=etcd.endpoints))
        etcd.members[0].pause()

Tests of other packages import it by putting this folder on `sys.path`, as `conftest.py` of this folder does.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from penstock.state.etcd.binary import find_etcd

START_DEADLINE_S = 60.0
"""Generous timeout, which only a member that fails to start reaches."""


class ReservedPorts:
    """Ports of 127.0.0.1 that the kernel assigns to no other process until `release`. Only a process that binds one
    explicitly with SO_REUSEADDR, as etcd does, can listen on it (on Linux); until then, connections are refused."""

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for s in self._sockets:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", 0))
        self.numbers: list[int] = [s.getsockname()[1] for s in self._sockets]

    def release(self) -> None:
        for s in self._sockets:
            s.close()

    def __enter__(self) -> list[int]:
        return self.numbers

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class EtcdMember:
    """An etcd process. It can be paused, killed, and restarted on its data; it keeps its ports meanwhile."""

    def __init__(self, name: str, directory: Path, scheme: str) -> None:
        self.name, self.directory = name, directory
        self.ports = ReservedPorts(3)
        self.client_port, self.peer_port, self.health_port = self.ports.numbers
        self.url = f"{scheme}://127.0.0.1:{self.client_port}"
        self.peer_url = f"http://127.0.0.1:{self.peer_port}"
        self.arguments: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.is_paused = False

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def start(self) -> None:
        """Start the process without waiting; `wait_ready` waits."""
        assert self.process is None, f"{self.name} runs already"
        health = f"--listen-metrics-urls=http://127.0.0.1:{self.health_port}"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD")}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self.arguments, health], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )

    def wait_ready(self) -> None:
        """Wait until the member serves clients and has a leader. Raises AssertionError with its log."""
        deadline = time.monotonic() + START_DEADLINE_S
        while not self.is_healthy():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-3000:]
                raise AssertionError(f"etcd {self.name} did not come up (exit code {self.process.poll()}):\n{tail}")
            time.sleep(0.02)

    def is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def pause(self) -> None:
        """Stop the process with SIGSTOP: connections stay open without responses."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        while not self._has_stopped():
            time.sleep(0.001)  # each thread stops only when the kernel schedules it
        self.is_paused = True

    def _has_stopped(self) -> bool:
        assert self.process is not None
        for thread in Path(f"/proc/{self.process.pid}/task").glob("*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                if thread.read_text().rpartition(")")[2].split()[0] != "T":
                    return False
        return True

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        """Kill the process with SIGKILL; `start` restarts it on its data."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.is_paused = False


class EtcdCluster:
    """An etcd of one or more members; a context manager that starts them and finally kills them."""

    def __init__(
        self, directory: Path | None = None, members: int = 1, arguments: Sequence[str] = (), is_durable: bool = False
    ) -> None:
        self._own_directory = tempfile.TemporaryDirectory(prefix="etcd-") if directory is None else None
        self.directory = Path(self._own_directory.name) if self._own_directory else directory
        self._size, self._arguments, self._is_durable = members, list(arguments), is_durable
        self.members: list[EtcdMember] = []

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.url for member in self.members)

    def start(self) -> None:
        scheme = "https" if any(a.startswith("--cert-file") for a in self._arguments) else "http"
        assert self.directory is not None
        folder = self.directory / "etcd-0"
        folder.mkdir(parents=True)
        self.members = [EtcdMember(f"m{i}", folder, scheme) for i in range(self._size)]
        initial = ",".join(f"{m.name}={m.peer_url}" for m in self.members)
        for member in self.members:
            member.arguments = [
                find_etcd().path,
                f"--name={member.name}",
                f"--data-dir={folder / member.name}",
                f"--listen-client-urls={member.url}",
                f"--advertise-client-urls={member.url}",
                f"--listen-peer-urls={member.peer_url}",
                f"--initial-advertise-peer-urls={member.peer_url}",
                f"--initial-cluster={initial}",
                f"--initial-cluster-token={folder}",
                "--log-level=warn",
                # A single member elects itself even on a slow machine; a short timeout permits leases of one second.
                *(["--heartbeat-interval=20", "--election-timeout=200"] if self._size == 1 else []),
                # Enough without power loss: writes survive a killed process.
                *([] if self._is_durable else ["--unsafe-no-fsync"]),
                *self._arguments,
            ]
            member.start()
        for member in self.members:
            member.wait_ready()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def end(self) -> None:
        """Kill all members and release their ports."""
        self.kill()
        for member in self.members:
            member.ports.release()

    def __enter__(self) -> EtcdCluster:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        for member in self.members:  # at least 64 MB each; the logs stay for failed tests
            shutil.rmtree(member.directory / member.name, ignore_errors=True)
        if self._own_directory is not None:
            self._own_directory.cleanup()
