"""A broker process that tests kill, stop and restart on the same data directory and port."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

DEADLINE_S = 60.0
"""Time limit for a condition; far more than a healthy broker on a busy machine needs."""
POLL_S = 0.005
_READY = re.compile(r"^ready kafka=(\S+:\d+) http=(\S+)$", re.MULTILINE)


class BrokerFailed(AssertionError):
    """The broker did not start, or exited; the message contains the end of its log."""


def free_port() -> int:
    """Return a free port of 127.0.0.1 below the range for outgoing connections.

    From that range, the kernel could give the broker's own port to a client that reconnects while the broker is down.
    """
    candidates = list(range(20_000, 32_000))
    random.SystemRandom().shuffle(candidates)
    for port in candidates:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port of 127.0.0.1 between 20,000 and 32,000")


class Broker:
    """One data directory, one port, and the process that serves them, if running.

    `prefix` goes before the command, to run it in a namespace. The process has its own process group, so that tests
    find leftover children; `kill` ends only the process itself, as a crash would.
    """

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        data: Path | None = None,
    ) -> None:
        self.home = home
        self.data = data or home / "data"
        self.port = free_port()
        self.settings = dict(settings or {})
        self.prefix = list(prefix)
        self.log = home / "broker.log"
        self._answer = home / "broker.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: list[int] = []
        self.kills = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def command(self) -> list[str]:
        penstock = Path(sys.executable).with_name("penstock")
        settings = [f"--set={name}={value}" for name, value in self.settings.items()]
        where = ["--data", str(self.data), "--port", str(self.port), "--http-port", "0"]
        return [*self.prefix, str(penstock), "up", *where, *settings]

    def spawn(self) -> None:
        """Start the process and return at once."""
        assert self._process is None, "the broker is running already"
        with self._answer.open("wb") as out, self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
            )
        self._groups.append(self._process.pid)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not _READY.search(self._answer.read_text()):
            self.check_alive()
            if time.monotonic() > deadline:
                raise BrokerFailed(f"no `ready` line within {DEADLINE_S} s:\n{self.tail()}")
            time.sleep(POLL_S)

    def start(self) -> None:
        self.spawn()
        self.wait_ready()

    def http(self) -> str:
        """host:port of the HTTP interface."""
        found = _READY.search(self._answer.read_text())
        assert found is not None, "the broker is not ready"
        return found[2]

    def check_alive(self) -> None:
        assert self._process is not None, "the broker is not running"
        code = self._process.poll()
        if code is not None:
            raise BrokerFailed(f"the broker ended by itself with exit code {code}:\n{self.tail()}")

    def kill(self) -> None:
        """Send SIGKILL to the broker's process only; return when the process has ended."""
        self.check_alive()
        assert self._process is not None
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self._process = None
        self.kills += 1

    def stop(self) -> None:
        """Send SIGTERM; the broker must exit with code 0."""
        self.check_alive()
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(DEADLINE_S)
        self._process = None
        assert code == 0, f"the broker ended with {code} after SIGTERM:\n{self.tail()}"

    def survivors(self) -> list[int]:
        """Return the process groups of killed brokers that still have processes."""
        found = []
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, 0)
                found.append(group)
        return [group for group in found if self._process is None or group != self._process.pid]

    def clean_up(self) -> None:
        """Kill all remaining processes started here, including children that outlived a kill."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]
