"""One process of a local cluster: started behind a guard, its lines handed on, ended by a signal.

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

Heard = Callable[[str], None]
"""Takes a line."""


class Child:
    """A program of the cluster. `start` may be called again once it has ended.

    `orphan_signal` is what it gets if this process ends without ending it.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        on_output: Heard,
        on_error: Heard,
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
        return -1 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Returns when the process is there. Raises OSError."""
        assert not self.is_running, f"{self.name} is started once at a time"
        guard = [sys.executable, "-m", "penstock.cli.local_cluster.guard", str(os.getpid()), self.orphan_signal.name]
        self._process = process = await asyncio.create_subprocess_exec(
            *guard,
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(self.environment),
            # A session of its own: Ctrl-C reaches the supervisor alone, which ends the others in order.
            start_new_session=True,
        )
        assert process.stdout is not None, "the output is a pipe"
        assert process.stderr is not None, "the errors are a pipe"
        self._pumps = [
            asyncio.create_task(pump(process.stdout, self._on_output)),
            asyncio.create_task(pump(process.stderr, self._on_error)),
        ]

    async def wait(self) -> int:
        """The exit code, negative for a signal, once the process has ended and all that it wrote is handed on."""
        assert self._process is not None, f"{self.name} was started"
        code = await self._process.wait()
        # A child of its own may hold the pipes open for longer: then they are not waited for.
        await asyncio.wait(self._pumps, timeout=1.0)
        for task in self._pumps:
            task.cancel()
        return code

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


async def pump(stream: asyncio.StreamReader, heard: Heard) -> None:
    lines = LineSplitter()
    while data := await stream.read(CHUNK_BYTES):
        for line in lines.feed(data):
            heard(line)
    for line in lines.end():
        heard(line)


def how_it_ended(code: int) -> str:
    """An exit code for people."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
