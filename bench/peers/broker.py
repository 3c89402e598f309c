"""A service of one process: a recipe (Peer) and a process that runs from it (Broker).

This module ends every process that it starts, by its process id.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import abstractmethod
from pathlib import Path
from typing import IO

from bench import connection, procfs
from bench.peers.service import BrokerFailed, Contender, Service

START_LIMIT_S = 120.0
STOP_LIMIT_S = 120.0
LOG_TAIL_LINES = 30


class Peer(Contender):
    """How to prepare and start one kind of broker."""

    def service(self, cores: set[int], work_dir: Path) -> Broker:
        return Broker(self, cores, work_dir)

    def prepare(self, data_dir: Path, port: int) -> None:
        """Prepare `data_dir` once before the first start; not part of any measurement."""
        del data_dir, port

    @abstractmethod
    def command(self, data_dir: Path, port: int) -> list[str]:
        """Return the command line that serves `data_dir` on a port of 127.0.0.1."""

    def chosen_port(self, data_dir: Path) -> int | None:
        """Return the port that the process chose, for peers that cannot be given one; None until it is known."""
        del data_dir
        return None

    def environment(self) -> dict[str, str]:
        """Return the environment without a developer's Python variables: a broker that compiles its modules at each
        start takes longer to start, and more memory."""
        return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def wait_until_answering(self, address: str, deadline: float) -> None:
        """Wait until the broker serves. Raises TimeoutError at `deadline` (time.monotonic)."""
        connection.wait_until_answering(address, deadline)


_reserved: list[socket.socket] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 that no process gets by chance while this process lives: on Linux a port with a bound
    socket that does not listen is available only to a process that requests this port, as servers do with SO_REUSEADDR.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _reserved.append(reserved)
    return int(reserved.getsockname()[1])


def _raise_open_file_limit() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Broker(Service):
    """One broker in a temporary directory, pinned to `cores`; restarts keep directory and port."""

    def __init__(self, peer: Peer, cores: set[int], work_dir: Path) -> None:
        self.peer = peer
        self.cores = cores
        self.home = Path(tempfile.mkdtemp(prefix=f"bench-{peer.label}-", dir=work_dir))
        self.data_dir = self.home / "data"
        self.log_path = self.home / "broker.log"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        peer.prepare(self.data_dir, self.port)

    @property
    def contender(self) -> Peer:
        return self.peer

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{self.port}"]

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid,)

    @property
    def pid(self) -> int:
        assert self.process is not None, "the broker is not running"
        return self.process.pid

    def spawn(self) -> None:
        """Start the process and return at once."""
        assert self.process is None, "the broker is running already"
        log: IO[bytes]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.peer.command(self.data_dir, self.port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.peer.environment(),
                cwd=self.home,
                start_new_session=True,
                preexec_fn=self._before_exec,
            )

    def _before_exec(self) -> None:
        os.sched_setaffinity(0, self.cores)
        _raise_open_file_limit()

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.spawn()
        self.wait_until_answering()

    def wait_until_answering(self) -> None:
        """Wait until the broker answers. Raises BrokerFailed if it ends or does not answer in time."""
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            self.check()
            self.port = self.peer.chosen_port(self.data_dir) or self.port
            try:
                self.peer.wait_until_answering(self.address, time.monotonic() + 0.5)
                return
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise BrokerFailed(self.failure("did not answer in time")) from None

    def check(self) -> None:
        """Raise BrokerFailed if the process has ended."""
        assert self.process is not None, "the broker is not running"
        if self.process.poll() is not None:
            raise BrokerFailed(self.failure(f"ended with exit code {self.process.returncode}"))

    def failure(self, what: str) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"{self.peer.label} {what}; the end of its log:", *lines])

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL to the whole process group after a timeout."""
        if self.process is None:
            return
        try:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        finally:
            self.process = None

    def kill(self) -> None:
        """Send SIGKILL, or clean up after one that was sent elsewhere; the data stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        """End the broker permanently, with children that outlive it, and remove its directory."""
        if self.process is not None:
            members = procfs.tree(self.process.pid)
            self.kill()
            for member in members[1:]:
                try:
                    os.kill(member, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        shutil.rmtree(self.home, ignore_errors=True)
