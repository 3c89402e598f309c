"""A child process of a local cluster: started behind a guard, its output passed on line by line.

Used by `supervisor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping

from penstock.cli.local_cluster.console import LineSplitter

CHUNK_BYTES = 64 << 10

LineHandler = Callable[[str], None]
"""Called with each line of output."""


class ChildProcess:
    """A program of the cluster. `start` may be called again once it has exited.

    `orphan_signal` is sent to it if this process dies without stopping it.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        on_output: LineHandler,
        on_error: LineHandler,
        environment: Mapping[str, str],
        orphan_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name, self.command = name, command
        self.environment, self.orphan_signal = environment, orphan_signal
        self._on_output, self._on_error = on_output, on_error
        self._process: asyncio.subprocess.Process | None = None
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int:
        """Return the process id; -1 if it was never started."""
        return -1 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the process was started and has not exited."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process. Raises OSError."""
        assert not self.is_running, f"{self.name} is started once at a time"
        guard = [sys.executable, "-m", "penstock.cli.local_cluster.guard", str(os.getpid()), self.orphan_signal.name]
        self._process = process = await asyncio.create_subprocess_exec(
            *guard,
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(self.environment),
            # Own session: Ctrl-C reaches the supervisor only, which then stops the others in order.
            start_new_session=True,
        )
        assert process.stdout is not None, "the output is a pipe"
        assert process.stderr is not None, "the errors are a pipe"
        self._pumps = [
            asyncio.create_task(pump(process.stdout, self._on_output)),
            asyncio.create_task(pump(process.stderr, self._on_error)),
        ]

    async def wait(self) -> int:
        """Wait until the process has exited and its output is passed on. Returns the exit code (negative: signal)."""
        assert self._process is not None, f"{self.name} was started"
        code = await self._process.wait()
        # A grandchild may keep the pipes open: do not wait for it.
        await asyncio.wait(self._pumps, timeout=1.0)
        for task in self._pumps:
            task.cancel()
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal if the process is running."""
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


async def pump(stream: asyncio.StreamReader, on_line: LineHandler) -> None:
    """Pass the stream's lines to `on_line` until its end."""
    lines = LineSplitter()
    while data := await stream.read(CHUNK_BYTES):
        for line in lines.feed(data):
            on_line(line)
    for line in lines.flush():
        on_line(line)


def exit_text(code: int) -> str:
    """Describe an exit code for users."""
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
