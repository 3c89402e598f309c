"""A broker process to attack, in a temporary directory."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 30.0
STOP_S = 30.0
READY = re.compile(r"ready kafka=(?P<host>[^ ]+):(?P<port>\d+) ")
SETTINGS = ("group.initial.rebalance.delay.ms=0",)


@dataclass
class Broker:
    """A running broker: its process, address and data directory."""

    process: subprocess.Popen[str]
    host: str
    port: int
    data: Path
    log: Path

    def status_kib(self, name: str) -> int:
        """Return a line of /proc/PID/status in KiB: VmRSS is the resident memory, VmHWM its maximum."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise ValueError(f"/proc has no {name}")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


@contextmanager
def started(settings: Sequence[str] = SETTINGS) -> Iterator[Broker]:
    """Start `penstock up`. At exit the process must still run, and must stop cleanly."""
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as folder:
        data, log = Path(folder) / "data", Path(folder) / "log"
        command = [str(Path(sys.executable).parent / "penstock"), "up", "--data", str(data)]
        command += ["--port", "0", "--http-port", "0"]
        for setting in settings:
            command += ["--set", setting]
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                assert process.stdout is not None, "it has one"
                ready = READY.match(process.stdout.readline())
                if ready is None:
                    process.kill()
                    raise RuntimeError(f"penstock up did not start:\n{log.read_text()}")
                broker = Broker(process, ready["host"], int(ready["port"]), data, log)
                yield broker
                if process.poll() is not None:
                    raise RuntimeError(f"the broker has ended with {process.returncode}:\n{broker.tail()}")
                process.terminate()
                code = process.wait(STOP_S)
                if code != 0:
                    raise RuntimeError(f"the broker ended with {code} when told to stop:\n{broker.tail()}")
            finally:
                if process.poll() is None:
                    process.kill()
