"""Spark drivers as processes that a test kills with all of their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
DEADLINE_S = 300.0


class DriverProcess:
    """One run of a driver, with all of its processes in one group. The script prints "started" and, at its end,
    "finished"; other output goes to driver.log in `home`."""

    def __init__(self, script: Path, home: Path, *options: str) -> None:
        path = os.pathsep.join(part for part in [str(TESTS), *sys.path] if part)
        with (home / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "started\n", complaints(home)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def end(self) -> bool:
        """Wait for the end. Return whether the driver finished its work."""
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        return "finished" in out and self.process.returncode == 0


def complaints(home: Path) -> str:
    lines = (home / "driver.log").read_text(errors="replace").splitlines()
    return "\n".join(line[:500] for line in lines if not line.startswith("\t"))[-8000:]
