"""An application of a framework, run in the environment that `make frameworks` prepares."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

HOME = Path(__file__).parents[1]
ENVIRONMENT = Path(sys.prefix) / "frameworks"
"""Below the workspace's own, so that `make clean` removes both."""
POLL_S = 0.1
END_LIMIT_S = 30.0


class FrameworkApplication:
    """One run of `applications/<name>.py`; a context manager that kills what still runs."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        python = ENVIRONMENT / "bin" / "python"
        assert python.exists(), f'"{python}" does not exist; run the tests with `make frameworks`, which makes it'
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(python), str(HOME / "applications" / f"{name}.py"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            )

    def check(self) -> None:
        """Raises AssertionError with the end of the log if the application has ended."""
        code = self._process.poll()
        assert code is None, f"the application ended with exit code {code}:\n{self.tail()}"

    def kill(self) -> None:
        """Send SIGKILL; returns when the process is gone."""
        self.check()
        self._process.kill()
        self._process.wait(END_LIMIT_S)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def wait_until(self, what: str, condition: Callable[[], bool], limit_s: float) -> None:
        """Wait for a condition. Raises AssertionError if it takes too long, or if the application ends meanwhile."""
        deadline = time.monotonic() + limit_s
        while not condition():
            self.check()
            assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what}:\n{self.tail()}"
            time.sleep(POLL_S)

    def __enter__(self) -> FrameworkApplication:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(END_LIMIT_S)
