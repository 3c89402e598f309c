"""Processes that the demo starts: a broker and group members. `close` stops a process in any state."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.common import CommandError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
MAX_LINE_BYTES = 16 * 1024 * 1024
LOG_TAIL_BYTES = 2_000

Process = asyncio.subprocess.Process
# Own session: Ctrl-C reaches the demo only, which then stops the others in order.
SUBPROCESS_OPTIONS: dict[str, Any] = {"start_new_session": True}


async def stop_process(process: Process) -> None:
    """Terminate a process; kill it after `STOP_TIMEOUT_S`. Idempotent."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class DemoBroker:
    """A `penstock up` process with its own data directory, on free ports."""

    def __init__(self, process: Process, address: str) -> None:
        self.process, self.address = process, address

    @classmethod
    async def start(cls, directory: Path) -> DemoBroker:
        """Start the broker and wait until it is ready. Raises `CommandError` with the end of its log."""
        log = directory / "broker.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock.cli", "up", "--data", str(directory / "data"),
                "--port", "0", "--http-port", "0",
                "--set", "group.initial.rebalance.delay.ms=500",
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors, **SUBPROCESS_OPTIONS,
            )  # fmt: skip
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                assert process.stdout is not None, "the broker's output is a pipe"
                words = (await process.stdout.readline()).decode().split()
        except BaseException:
            await stop_process(process)
            raise
        address = next((word.removeprefix("kafka=") for word in words if word.startswith("kafka=")), None)
        if words[:1] != ["ready"] or address is None:
            await stop_process(process)
            tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
            raise CommandError(f"the broker did not start (exit code {process.returncode}):\n{tail}")
        return cls(process, address)

    async def close(self) -> None:
        """Stop the broker."""
        await stop_process(self.process)


class ConsumerProcess:
    """A member process. Each document it writes is passed to `on_document` with the member's name."""

    def __init__(self, name: str, process: Process, on_document: Callable[[str, dict[str, Any]], None]) -> None:
        self.name, self.process = name, process
        self._on_document = on_document
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls, name: str, arguments: list[str], on_document: Callable[[str, dict[str, Any]], None], directory: Path
    ) -> ConsumerProcess:
        """Start a member; its log goes to `directory`."""
        with (directory / f"member-{name}.log").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock.cli.demo.member", *arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, limit=MAX_LINE_BYTES,
                **SUBPROCESS_OPTIONS,
            )  # fmt: skip
        return cls(name, process, on_document)

    async def _listen(self) -> None:
        assert self.process.stdout is not None, "a member's output is a pipe"
        while True:
            line = await self.process.stdout.readline()
            if not line.endswith(b"\n"):
                return  # end of file, or a line cut off by the kill
            self._on_document(self.name, msgspec.json.decode(line))

    @property
    def is_running(self) -> bool:
        """Return whether the process has not exited."""
        return self.process.returncode is None

    def go(self) -> None:
        """Let the member start reading."""
        assert self.process.stdin is not None, "a member's input is a pipe"
        self.process.stdin.write(b"go\n")

    async def kill(self) -> None:
        """Send SIGKILL and process all output written before."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._listening

    async def leave(self) -> int:
        """Let the member leave its group and exit. Returns its exit code."""
        assert self.process.stdin is not None, "a member's input is a pipe"
        self.process.stdin.close()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await self._listening
            return await self.process.wait()

    async def close(self) -> None:
        """Stop the process."""
        await stop_process(self.process)
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
