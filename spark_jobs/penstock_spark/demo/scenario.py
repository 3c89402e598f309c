"""Runs the demo: produces while two jobs run, kills and restarts one of them, and reads the results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from penstock.cli.demo.processes import DemoBroker
from penstock.cli.demo.scenario import FLIGHTS
from penstock.cli.progress import ProgressDisplay
from penstock.client import Admin, NewTopic, Producer, TopicPartition
from penstock_spark.demo import expected, jobs
from penstock_spark.demo.checks import CheckResult, KillEvent
from penstock_spark.demo.departures import FlightRecord, read_departures, slices
from penstock_spark.demo.driver import DemoDriver, DemoFailed, committed_state, files_of

PARTITIONS = 6
SLICES = 500
"""Number of runs in which flights are sent, each acknowledged before the next. A run is about a day of event time, so
the records that a Spark batch does not see yet are at most a day and a flight's delay (22 h) behind those that it sees.
The job's watermark, 3 days, is larger."""
MIN_SHARE_BEFORE_KILL = 0.4
"""The archive's driver is killed once this share is produced, and while it runs a batch."""
POLL_S = 0.05
DISPLAY_INTERVAL_S = 0.5
START_TIMEOUT_S = 300.0
FINISH_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Settings of a run: `data` is the data set's file, `flights` None means all; producing takes `seconds`."""

    directory: Path
    data: Path
    flights: int | None
    seconds: float


class SparkDemo:
    """Runs the demo once, in its own directory. `print_line` receives progress lines."""

    def __init__(self, settings: DemoSettings, print_line: Callable[[str], None]) -> None:
        self.settings = settings
        self._print_line = print_line
        self._start_s = time.monotonic()
        self._partitions = [TopicPartition(jobs.TOPIC, p) for p in range(PARTITIONS)]
        self._drivers: dict[str, DemoDriver] = {}
        self._total = 0
        self._produced = 0
        self._now_ms = 0
        self._kill: KillEvent | None = None

    async def run(self) -> CheckResult:
        """Run the demo. Raises `DemoFailed`, and errors of broker and client."""
        async with AsyncExitStack() as stack:
            broker = await DemoBroker.start(self.settings.directory)
            stack.push_async_callback(broker.close)
            admin = await stack.enter_async_context(Admin(broker.address))
            await admin.create_topics([NewTopic(jobs.TOPIC, PARTITIONS, configs={"retention.ms": "-1"})])
            self.report(f"broker {broker.address}; topic {jobs.TOPIC}: {PARTITIONS} partitions, retention.ms=-1")
            reading = asyncio.create_task(asyncio.to_thread(read_departures, self.settings.data))
            stack.push_async_callback(quietly, reading)
            await self.start_drivers(stack, broker.address)
            flights = (await reading)[: self.settings.flights]
            await self.wait_started(*self._drivers.values())
            self.report("both queries run; producing flights")
            await self.produce_and_kill(admin, broker.address, flights)
            await self.finish(admin)
            ends = await admin.ends(self._partitions)
            committed = {group: await self.committed(admin, group) for group in jobs.groups()}
            return await asyncio.to_thread(self.read, [ends[tp][1] for tp in self._partitions], flights, committed)

    def report(self, what: str) -> None:
        """Print a line with the elapsed time."""
        self._print_line(f"{time.monotonic() - self._start_s:5.1f} s  {what}")

    # Drivers

    async def start_drivers(self, stack: AsyncExitStack, brokers: str) -> None:
        """Write the job files and start the drivers."""
        directory = self.settings.directory
        self._total = self.settings.flights or FLIGHTS
        for job, file in jobs.write(directory, brokers, self._total).items():
            driver = self._drivers[job] = DemoDriver(file, jobs.checkpoint(directory, job))
            stack.push_async_callback(driver.kill)
            await driver.start()
            self.report(f"penstock-spark run {file.name}: process {driver.pid}")

    async def wait_started(self, *drivers: DemoDriver) -> None:
        """Wait until the queries run."""
        deadline = time.monotonic() + START_TIMEOUT_S
        waiting = list(drivers)
        while waiting := [driver for driver in waiting if not driver.has_started]:
            if time.monotonic() > deadline:
                raise DemoFailed(f"Spark did not start within {START_TIMEOUT_S:.0f} s:\n{waiting[0].tail()}")
            await asyncio.sleep(POLL_S)

    async def kill_in_the_middle(self) -> None:
        """Wait for a batch with uncommitted files, kill the driver and start it again."""
        driver, table = self._drivers[jobs.ARCHIVE], jobs.table(self.settings.directory, jobs.ARCHIVE)
        batch: int | None = None
        deadline = time.monotonic() + self.settings.seconds + FINISH_TIMEOUT_S
        while batch is None:
            await asyncio.sleep(POLL_S)
            driver.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{jobs.ARCHIVE} wrote no batch that could be interrupted; use more flights")
            if self._produced >= MIN_SHARE_BEFORE_KILL * self._total:
                batch = interrupted_batch(driver, table)
        pid, produced = driver.pid, self._produced
        await driver.kill()
        rows, files = committed_state(table)
        uncommitted = len(files_of(table) - files)
        self._kill = KillEvent(pid, batch, rows, uncommitted, produced)
        self.report(
            f"kill -9 {pid}: {jobs.ARCHIVE} was in batch {batch}; its table has {rows:,} flights, and {uncommitted} "
            "uncommitted files"
        )
        await driver.start()
        self.report(f"penstock-spark run {driver.file.name}: process {driver.pid} continues from the checkpoint")

    # Producing

    async def produce_and_kill(self, admin: Admin, brokers: str, flights: list[FlightRecord]) -> None:
        """Produce all flights and kill the archive's driver meanwhile."""
        self._total = len(flights)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(quietly, asyncio.create_task(self.show(admin)))
            await all_of(self.produce(brokers, flights), self.kill_in_the_middle())

    async def produce(self, brokers: str, flights: list[FlightRecord]) -> None:
        """Produce flights at the pace of event time: the year in `seconds`."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        async with Producer(brokers) as producer:
            for part, share in slices(flights, SLICES):
                for flight in part:
                    await producer.send(
                        jobs.TOPIC, flight.message, key=flight.carrier, timestamp_ms=flight.scheduled_ms
                    )
                await producer.flush()
                self._produced += len(part)
                self._now_ms = part[-1].left_ms
                await asyncio.sleep(start_s + share * self.settings.seconds - loop.time())
        self.report(f"{self._produced:,} flights are produced")

    async def show(self, admin: Admin) -> None:
        """Show a progress bar, on a terminal."""
        with ProgressDisplay("flights", total=self._total) as progress:
            while True:
                done = [sum(await self.committed(admin, group)) for group in jobs.groups()]
                day = datetime.fromtimestamp(self._now_ms / 1000, UTC) if self._now_ms else None
                what = f"{day:%d %b %Y}: " if day else ""
                progress.show(self._produced, f"{what}{done[0]:,} archived, {done[1]:,} counted; produced")
                await asyncio.sleep(DISPLAY_INTERVAL_S)

    # Results

    async def committed(self, admin: Admin, group: str) -> list[int]:
        """Return the committed offset of each partition."""
        found = await admin.committed(group, self._partitions)
        return [found[tp].offset if tp in found else 0 for tp in self._partitions]

    async def finish(self, admin: Admin) -> None:
        """Stop each job once it has committed everything, so that the other gets the machine."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(quietly, asyncio.create_task(self.show(admin)))
            drivers = zip(jobs.groups(), self._drivers.values(), strict=True)
            await all_of(*(self.finish_one(admin, group, driver) for group, driver in drivers))

    async def finish_one(self, admin: Admin, group: str, driver: DemoDriver) -> None:
        """Wait until a job has committed everything, then stop it."""
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while (done := sum(await self.committed(admin, group))) < self._total:
            driver.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{driver.file.stem}: {done:,} of {self._total:,} after {FINISH_TIMEOUT_S:.0f} s")
            await asyncio.sleep(POLL_S)
        await driver.stop()
        self.report(f"{driver.file.stem} has processed all flights, and stopped at the end of a batch")

    def read(self, ends: list[int], flights: list[FlightRecord], committed: dict[str, list[int]]) -> CheckResult:
        """Read the tables and the data set."""
        directory = self.settings.directory
        data_set = expected.read_data_set(self.settings.data)
        if self.settings.flights is not None:
            data_set = expected.only(data_set, [flight.message for flight in flights])
        hours = delta(jobs.table(directory, jobs.BY_HOUR)).select(expected.BY_HOUR)
        return CheckResult(data_set, delta(jobs.table(directory, jobs.ARCHIVE)), hours, ends, self._kill, committed)


def interrupted_batch(driver: DemoDriver, table: Path) -> int | None:
    """Return the driver's batch if it has uncommitted files and the table has rows already."""
    batch = driver.batch_in_flight()
    if batch is None:
        return None
    files = files_of(table)
    rows, known = committed_state(table)
    return batch if rows and files - known else None


async def all_of(*work: Coroutine[Any, Any, None]) -> None:
    """Run coroutines concurrently; the first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for coroutine in work:
                tasks.create_task(coroutine)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def quietly(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def delta(path: Path) -> pa.Table:
    """Return a Delta table's latest version. Raises `DemoFailed` if it does not exist."""
    if not DeltaTable.is_deltatable(str(path)):
        raise DemoFailed(f"{path.name}: the job has not created its table")
    return DeltaTable(path).to_pyarrow_table()
