"""The processes that the demo starts: a broker, and the members of a group. Whatever happens, `close` ends them."""

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
# A session of its own: Ctrl-C reaches the demo alone, which then ends the others in order.
OPTIONS: dict[str, Any] = {"start_new_session": True}


async def end(process: Process) -> None:
    """Asks a process to end, and kills it where it does not. Idempotent."""
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
    """`penstock up` in a directory, on free ports."""

    def __init__(self, process: Process, address: str) -> None:
        self.process, self.address = process, address

    @classmethod
    async def start(cls, directory: Path) -> DemoBroker:
        """Returns when the broker says that it is ready. Raises `CommandError` with the end of its log."""
        log = directory / "broker.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock.cli", "up", "--data", str(directory / "data"),
                "--port", "0", "--http-port", "0",
                "--set", "group.initial.rebalance.delay.ms=500",
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors, **OPTIONS,
            )  # fmt: skip
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                assert process.stdout is not None, "the broker's output is a pipe"
                words = (await process.stdout.readline()).decode().split()
        except BaseException:
            await end(process)
            raise
        address = next((word.removeprefix("kafka=") for word in words if word.startswith("kafka=")), None)
        if words[:1] != ["ready"] or address is None:
            await end(process)
            tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
            raise CommandError(f"the broker did not start (exit code {process.returncode}):\n{tail}")
        return cls(process, address)

    async def close(self) -> None:
        await end(self.process)


class ConsumerProcess:
    """The demo's side of one member: hands each document that the member writes to `heard`, with the member's name."""

    def __init__(self, name: str, process: Process, heard: Callable[[str, dict[str, Any]], None]) -> None:
        self.name, self.process = name, process
        self._heard = heard
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls, name: str, arguments: list[str], heard: Callable[[str, dict[str, Any]], None], directory: Path
    ) -> ConsumerProcess:
        with (directory / f"member-{name}.log").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock.cli.demo.member", *arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, limit=MAX_LINE_BYTES,
                **OPTIONS,
            )  # fmt: skip
        return cls(name, process, heard)

    async def _listen(self) -> None:
        assert self.process.stdout is not None, "a member's output is a pipe"
        while True:
            line = await self.process.stdout.readline()
            if not line.endswith(b"\n"):
                return  # the end, or a line that a kill cut in two
            self._heard(self.name, msgspec.json.decode(line))

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def go(self) -> None:
        """Lets the member read."""
        assert self.process.stdin is not None, "a member's input is a pipe"
        self.process.stdin.write(b"go\n")

    async def kill(self) -> None:
        """SIGKILL, and everything that it had written until then."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._listening

    async def leave(self) -> int:
        """Has the member leave its group and end; returns its exit code."""
        assert self.process.stdin is not None, "a member's input is a pipe"
        self.process.stdin.close()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await self._listening
            return await self.process.wait()

    async def close(self) -> None:
        await end(self.process)
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
