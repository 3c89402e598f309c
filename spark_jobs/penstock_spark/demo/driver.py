"""Runs a job in its own driver process, `penstock-spark run`, which can be killed and restarted.

The job's progress is read from its checkpoint and its table.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from penstock_spark.model.errors import PenstockSparkError

LOG_TAIL_CHARS = 3_000
STOP_TIMEOUT_S = 90.0
STARTED_SUFFIX = " started"
SPARK_VARIABLES = (
    "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR",
    "SPARK_HOME", "SPARK_MASTER", "SPARK_REMOTE",
)  # fmt: skip
"""Environment variables that would select another Spark than the installed one."""


class DemoFailed(PenstockSparkError):
    """The demo failed; the message says why."""


class DemoDriver:
    """A job's driver process. `file` is the job's YAML, in a directory for all files that Spark writes."""

    def __init__(self, file: Path, checkpoint: Path) -> None:
        self.file, self.checkpoint = file, checkpoint
        self.log = file.with_suffix(".log")
        self.process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Process id of the driver."""
        assert self.process is not None, "the driver was started"
        return self.process.pid

    async def start(self) -> None:
        """Start the process."""
        environment = {name: value for name, value in os.environ.items() if name not in SPARK_VARIABLES}
        environment |= {
            "MALLOC_ARENA_MAX": "2",  # limits the C library's memory per thread of the JVM
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self.file.parent),
        }
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock_spark.cli", "run", str(self.file),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.file.parent,
                start_new_session=True,  # Ctrl-C reaches only the demo, and a kill includes the JVM
            )  # fmt: skip

    @property
    def has_started(self) -> bool:
        """Whether the query runs. Raises `DemoFailed` if the driver has ended."""
        self.check()
        return any(line.endswith(STARTED_SUFFIX) for line in self.log.read_text(errors="replace").splitlines())

    def check(self) -> None:
        """Raise `DemoFailed` if the driver has ended."""
        if self.process is not None and self.process.returncode is not None:
            raise DemoFailed(
                f"{self.file.stem}: the driver ended with exit code {self.process.returncode}:\n{self.tail()}"
            )

    def tail(self) -> str:
        """Return the end of the driver's log."""
        return self.log.read_text(errors="replace").strip()[-LOG_TAIL_CHARS:]

    def batch_in_flight(self) -> int | None:
        """Return the batch in progress: Spark writes `offsets/N` before a batch and `commits/N` after it."""
        planned, done = last_batch(self.checkpoint / "offsets"), last_batch(self.checkpoint / "commits")
        return planned if planned > done else None

    async def kill(self) -> None:
        """Kill the driver and its JVM with SIGKILL; the Python workers end with it. Idempotent."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    async def stop(self) -> None:
        """Stop the driver at the end of its batch with SIGTERM. Raises `DemoFailed` if it does not exit with 0."""
        self.check()
        assert self.process is not None, "the driver was started"
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                code = await self.process.wait()
        except TimeoutError:
            raise DemoFailed(f"{self.file.stem}: the driver does not stop:\n{self.tail()}") from None
        if code:
            raise DemoFailed(f"{self.file.stem}: the driver stopped with exit code {code}:\n{self.tail()}")


def last_batch(folder: Path) -> int:
    """Return the highest batch number in a folder of a checkpoint; -1 if there is none."""
    try:
        return max((int(entry.name) for entry in os.scandir(folder) if entry.name.isdecimal()), default=-1)
    except FileNotFoundError:
        return -1


def files_of(table: Path) -> set[str]:
    """Return the data files in a table's folder, committed or not."""
    return {str(path.relative_to(table)) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}


def committed_state(table: Path) -> tuple[int, set[str]]:
    """Return rows and files of a table's latest version; none if the table does not exist."""
    if not DeltaTable.is_deltatable(str(table)):
        return 0, set()
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True))
    return sum(actions["num_records"].to_pylist()), set(actions["path"].to_pylist())
