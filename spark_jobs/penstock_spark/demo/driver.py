"""A job in a driver process of its own: `penstock-spark run`, which can be killed and started again.

What it has written is read from outside, from its checkpoint and its table.
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
STARTED = " started"
FOREIGN = (
    "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR",
    "SPARK_HOME", "SPARK_MASTER", "SPARK_REMOTE",
)  # fmt: skip
"""What would have a driver run on another Spark than the one that is installed beside this package."""


class DemoFailed(PenstockSparkError):
    """The demo cannot go on; says why."""


class DemoDriver:
    """`file` is the job's YAML in a directory that takes everything that Spark leaves behind."""

    def __init__(self, file: Path, checkpoint: Path) -> None:
        self.file, self.checkpoint = file, checkpoint
        self.log = file.with_suffix(".log")
        self.process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, "the driver was started"
        return self.process.pid

    async def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        environment |= {
            "MALLOC_ARENA_MAX": "2",  # the C library would take memory for each of the JVM's threads
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self.file.parent),
        }
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock_spark.cli", "run", str(self.file),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.file.parent,
                start_new_session=True,  # Ctrl-C reaches the demo alone; and a kill takes the JVM along
            )  # fmt: skip

    @property
    def started(self) -> bool:
        """Whether its query runs. Raises `DemoFailed` where the driver has ended."""
        self.check()
        return any(line.endswith(STARTED) for line in self.log.read_text(errors="replace").splitlines())

    def check(self) -> None:
        """Raises `DemoFailed` where the driver has ended by itself."""
        if self.process is not None and self.process.returncode is not None:
            raise DemoFailed(
                f"{self.file.stem}: its driver ended (exit code {self.process.returncode}):\n{self.tail()}"
            )

    def tail(self) -> str:
        return self.log.read_text(errors="replace").strip()[-LOG_TAIL_CHARS:]

    def batch_in_flight(self) -> int | None:
        """The batch that is planned and not finished: Spark writes `offsets/N` before a batch, `commits/N` after it."""
        planned, done = last_batch(self.checkpoint / "offsets"), last_batch(self.checkpoint / "commits")
        return planned if planned > done else None

    async def kill(self) -> None:
        """SIGKILL for the driver and its JVM, whose Python workers end with it. Idempotent."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    async def stop(self) -> None:
        """SIGTERM: it ends when its batch has. Raises `DemoFailed` where that does not end well."""
        self.check()
        assert self.process is not None, "the driver was started"
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                code = await self.process.wait()
        except TimeoutError:
            raise DemoFailed(f"{self.file.stem}: its driver does not stop:\n{self.tail()}") from None
        if code:
            raise DemoFailed(f"{self.file.stem}: its driver stopped with exit code {code}:\n{self.tail()}")


def last_batch(folder: Path) -> int:
    """The highest number among the names in a folder of a checkpoint; -1 where there is none."""
    try:
        return max((int(entry.name) for entry in os.scandir(folder) if entry.name.isdecimal()), default=-1)
    except FileNotFoundError:
        return -1


def files_of(table: Path) -> set[str]:
    """The data files in a table's folder, whether they count or not."""
    return {str(path.relative_to(table)) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}


def counted(table: Path) -> tuple[int, set[str]]:
    """Rows and files of a table's newest version; nothing where there is no table yet."""
    if not DeltaTable.is_deltatable(str(table)):
        return 0, set()
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True))
    return sum(actions["num_records"].to_pylist()), set(actions["path"].to_pylist())
