"""A broker process of a cluster under test, which can be killed, frozen, stopped and restarted on the same data."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from penstock_crash.broker import Broker, free_port

from penstock_chaos.places import Place
from penstock_chaos.secured import CLIENTS, INTERNAL, Secured

SOURCE_VARIABLE = "PENSTOCK_CHAOS_SOURCE"
"""Environment variable: directory with another `penstock` package, with a planted fault or of another release."""


class ClusterBroker(Broker):
    """`penstock up --etcd` with its own address and port, which it keeps over restarts."""

    def __init__(
        self,
        broker_id: int,
        place: Place,
        etcd_url: str,
        home: Path,
        settings: Mapping[str, str],
        disk_prefix: tuple[str, ...] = (),
        data: Path | None = None,
        secured: Secured | None = None,
    ) -> None:
        home.mkdir(exist_ok=True)
        super().__init__(home, settings, [*place.prefix, *disk_prefix], data)
        self.broker_id, self.place, self._etcd_url, self._secured = broker_id, place, etcd_url, secured
        self.internal_port = free_port()
        if place.prefix:
            self.port = 9092

    @property
    def bootstrap(self) -> str:
        return f"{self.place.address}:{self.port}"

    def command(self) -> list[str]:
        settings = [f"--set={name}={value}" for name, value in self.settings.items()]
        cluster = [f"--etcd={self._etcd_url}", f"--id={self.broker_id}"]
        source = os.environ.get(SOURCE_VARIABLE)
        run = [str(Path(sys.executable).with_name("penstock"))]
        if source is not None:
            run = ["env", f"PYTHONPATH={source}", sys.executable, "-m", "penstock.cli"]
        return [*self.prefix, *run, "up", f"--data={self.data}", *self._listen(), *cluster, *settings]

    def _listen(self) -> list[str]:
        """Return the options of the listeners: one in plain text, or one for clients and one for brokers."""
        if self._secured is None:
            return [f"--host={self.place.address}", f"--port={self.port}", "--http-port=-1"]
        ports = {CLIENTS: self.port, INTERNAL: self.internal_port}
        listeners = [f"--listener={name}://{self.place.address}:{port}" for name, port in ports.items()]
        return [*listeners, "--http-port=-1", *self._secured.bootstrap_user()]

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def state(self) -> str:
        """Return the kernel's process state: R, S, T (stopped by a signal) and so on."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
