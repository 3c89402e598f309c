"""Runs compaction jobs in a worker process, or in a thread for simulated files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Protocol

import msgspec

from penstock.log.compaction.cleaner import run_job
from penstock.log.compaction.job import CompactionJob, CompactionResult
from penstock.runtime.files import Files

IDLE_S = 30.0
MAX_LINE_BYTES = 64 << 20


class CompactionRunner(Protocol):
    """Runs one job at a time."""

    async def run(self, job: CompactionJob) -> CompactionResult:
        """Run a job and return its result."""

    async def stop(self) -> None:
        """Stop the current job."""


class ThreadRunner:
    """Runs jobs on the given files in a thread, for simulations and tests: it holds the GIL of the event loop."""

    def __init__(self, files: Files) -> None:
        self.files = files

    async def run(self, job: CompactionJob) -> CompactionResult:
        """Run a job in a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, run_job, self.files, job)

    async def stop(self) -> None:
        """Do nothing: a thread cannot be stopped."""


class ProcessRunner:
    """Starts the worker for the first job and stops it when idle."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.idle: asyncio.TimerHandle | None = None
        self.busy = False

    async def run(self, job: CompactionJob) -> CompactionResult:
        """Run a job; if the worker dies or cannot be started, the job fails and the next one gets a new worker."""
        if self.idle is not None:
            self.idle.cancel()
        self.busy = True
        try:
            process = self.process or await self.start()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
            if not line:
                raise ConnectionError("the compaction worker died")
            return msgspec.json.decode(line, type=CompactionResult)
        except (OSError, msgspec.DecodeError, ValueError) as e:
            await self.stop()
            return CompactionResult(job.name, error=str(e))
        finally:
            self.busy = False
            if self.process is not None:
                self.idle = asyncio.get_running_loop().call_later(IDLE_S, self.stop_idle)

    async def start(self) -> asyncio.subprocess.Process:
        """Start the worker process."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock.log.compaction.worker",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
        )
        return self.process

    def stop_idle(self) -> None:
        """Stop an idle worker by closing its standard input."""
        self.idle = None
        process = self.process
        if process is not None and not self.busy:
            self.process = None
            assert process.stdin is not None
            process.stdin.close()

    async def stop(self) -> None:
        """Kill the worker, even in the middle of a job."""
        if self.idle is not None:
            self.idle.cancel()
            self.idle = None
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
