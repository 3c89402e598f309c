"""The single etcd process of a cluster under test, which cells stop, kill and freeze. It syncs every write."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from penstock_crash.broker import free_port

from penstock_chaos.places import Place

READY_S = 60.0
POLL_S = 0.05
_SERVES = b"serving client traffic"
"""Line that each etcd from 3.4 on logs when it accepts clients."""


class Etcd:
    """One member, its data below `home`. A start after a kill finds all acknowledged writes of the previous run."""

    def __init__(self, program: str, place: Place, home: Path) -> None:
        self.place, self.home = place, home
        self.log = home / "etcd.log"
        self.client_port, self.peer_port = (free_port(), free_port()) if not place.prefix else (2379, 2380)
        self.url = f"http://{place.address}:{self.client_port}"
        peer_url = f"http://{place.address}:{self.peer_port}"
        self._command = [
            *place.prefix,
            program,
            "--name=etcd",
            f"--data-dir={home / 'etcd'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=etcd={peer_url}",
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.is_frozen = False

    def start(self) -> None:
        """Start; return when it accepts clients. Raises AssertionError with its log."""
        assert self._process is None, "etcd runs already"
        begun = self.log.stat().st_size if self.log.exists() else 0
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + READY_S
        while _SERVES not in self.log.read_bytes()[begun:]:
            code = self._process.poll()
            assert code is None, f"etcd ended with {code}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"etcd does not come up:\n{self.tail()}"
            time.sleep(POLL_S)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None, "etcd does not run"
        self._process.send_signal(number)
        self._process.wait(READY_S)
        self._process = None

    def freeze(self) -> None:
        """Send SIGSTOP: connections stay open, but etcd does not answer."""
        assert self._process is not None, "etcd does not run"
        self._process.send_signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        assert self._process is not None, "etcd does not run"
        self._process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def clean_up(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]
