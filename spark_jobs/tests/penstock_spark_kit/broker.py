"""An embedded broker as a process that tests can kill and restart with the same data."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from node_kit import port_of, reserved_port

DEADLINE_S = 60.0
"""Deadline for starts and stops; generous, so that only a hanging process reaches it."""
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=500",
    # Tests write records with old timestamps, which retention would delete.
    "log.retention.check.interval.ms=2147483647",
)
PENSTOCK = Path(sys.executable).with_name("penstock")
READY = re.compile(r"ready kafka=(\S+):(\d+) ")


class Broker:
    """One `penstock up` on a free port of loopback; each `start` uses the same port and data."""

    def __init__(self, home: Path, settings: Sequence[str] = SETTINGS) -> None:
        self.home, self.settings = home, tuple(settings)
        self._reserved = reserved_port()  # reserved while the broker is down
        self.port = port_of(self._reserved)
        self.process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.home / "broker.log").read_text(errors="replace")

    def start(self) -> Broker:
        """Start the broker and wait until it serves."""
        assert self.process is None, "the broker runs already"
        sets = [part for setting in self.settings for part in ("--set", setting)]
        command = [str(PENSTOCK), "up", "--data", str(self.home / "data"), "--port", str(self.port)]
        with (self.home / "broker.log").open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, "--http-port", "-1", *sets],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_SET_")},
            )
        assert self.process.stdout is not None
        watchdog = threading.Timer(DEADLINE_S, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        ready = READY.match(line)
        if ready is None:
            self.kill()
            raise AssertionError(f"no `ready` line but {line!r}: {self.log[-4000:]}")
        assert int(ready[2]) == self.port, line
        return self

    def kill(self) -> None:
        """Send SIGKILL: unacknowledged records may be lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM, and wait for the end."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
