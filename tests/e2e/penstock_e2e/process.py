"""Processes of applications that tests run, kill and wait for. Used by tests/java and tests/frameworks."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

POLL_S = 0.1
END_LIMIT_S = 60.0
LOG_TAIL = 6000
"""Characters of the log in a failure message."""


class Application:
    """One run of an application; a context manager that kills it at the end if it still runs.

    Standard output and standard error go to `<log>`, which a second run with the same path continues.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.log = log
        self._start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )

    @property
    def output(self) -> str:
        """The output of this run so far."""
        return self.log.read_bytes()[self._start :].decode(errors="replace")

    def check(self) -> None:
        """Raise AssertionError with the end of the log if the application has exited."""
        code = self._process.poll()
        assert code is None, self._ended(code)

    def kill(self) -> None:
        """Send SIGKILL, as the kernel does when memory runs out; return when the process has ended."""
        self.check()
        self._process.kill()
        self._process.wait(END_LIMIT_S)

    def stop(self) -> None:
        """Send SIGTERM; a JVM exits with 143 after its shutdown hooks."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(END_LIMIT_S)
        assert code in (0, 143), self._ended(code)

    def _ended(self, code: int | None) -> str:
        return f"the application ended with exit code {code}:\n{self.output[-LOG_TAIL:]}"

    def __enter__(self) -> Application:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(END_LIMIT_S)


def wait_until(what: str, condition: Callable[[], bool], limit_s: float, *running: Application) -> None:
    """Wait for a condition. Raises AssertionError on timeout, or if one of `running` exits meanwhile."""
    deadline = time.monotonic() + limit_s
    while not condition():
        for application in running:
            application.check()
        if time.monotonic() > deadline:
            tails = "\n".join(application.output[-LOG_TAIL:] for application in running)
            raise AssertionError(f"waited {limit_s:.0f} s for {what}:\n{tails}")
        time.sleep(POLL_S)
