"""The demo from beginning to end: produce while two jobs run, kill one, have it go on, read what came of it."""

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
from penstock_spark.demo.departures import DepartureSender, sendings, slices
from penstock_spark.demo.driver import DemoDriver, DemoFailed, counted, files_of

PARTITIONS = 6
SLICES = 500
"""Flights go out in so many runs, each acknowledged before the next: about a day of event time, so that what a batch
of Spark's does not see yet is never more than a day and a flight's delay (22 h) behind what it sees. The watermark of
the job, 3 days, is above that."""
KILL_FROM_SHARE = 0.4
"""The archive's driver is killed when so much has been produced, and it is in a batch."""
POLL_S = 0.05
SHOW_EVERY_S = 0.5
START_TIMEOUT_S = 300.0
FINISH_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """`data` is the data set's file; `flights` None: all of it; producing takes `seconds`."""

    directory: Path
    data: Path
    flights: int | None
    seconds: float


class SparkDemo:
    """Runs once, in a directory of its own. `say` takes what happens, a line at a time."""

    def __init__(self, settings: DemoSettings, say: Callable[[str], None]) -> None:
        self.settings = settings
        self._say = say
        self._began = time.monotonic()
        self._partitions = [TopicPartition(jobs.TOPIC, p) for p in range(PARTITIONS)]
        self._drivers: dict[str, DemoDriver] = {}
        self._total = 0
        self._produced = 0
        self._now_ms = 0
        self._kill: KillEvent | None = None

    async def run(self) -> CheckResult:
        """Raises `DemoFailed`, and what broker and client have to say."""
        async with AsyncExitStack() as stack:
            broker = await DemoBroker.start(self.settings.directory)
            stack.push_async_callback(broker.close)
            admin = await stack.enter_async_context(Admin(broker.address))
            await admin.create_topics([NewTopic(jobs.TOPIC, PARTITIONS, configs={"retention.ms": "-1"})])
            self.say(f"broker {broker.address}; topic {jobs.TOPIC}: {PARTITIONS} partitions, retention.ms=-1")
            reading = asyncio.create_task(asyncio.to_thread(sendings, self.settings.data))
            stack.push_async_callback(quietly, reading)
            await self.start_drivers(stack, broker.address)
            flights = (await reading)[: self.settings.flights]
            await self.started(*self._drivers.values())
            self.say("both queries run; flights begin to leave")
            await self.produce_and_kill(admin, broker.address, flights)
            await self.finish(admin)
            ends = await admin.ends(self._partitions)
            committed = {group: await self.committed(admin, group) for group in jobs.groups()}
            return await asyncio.to_thread(self.read, [ends[tp][1] for tp in self._partitions], flights, committed)

    def say(self, what: str) -> None:
        self._say(f"{time.monotonic() - self._began:5.1f} s  {what}")

    # Drivers

    async def start_drivers(self, stack: AsyncExitStack, brokers: str) -> None:
        directory = self.settings.directory
        self._total = self.settings.flights or FLIGHTS
        for job, file in jobs.write(directory, brokers, self._total).items():
            driver = self._drivers[job] = DemoDriver(file, jobs.checkpoint(directory, job))
            stack.push_async_callback(driver.kill)
            await driver.start()
            self.say(f"penstock-spark run {file.name}: process {driver.pid}")

    async def started(self, *drivers: DemoDriver) -> None:
        """Returns when their queries run."""
        deadline = time.monotonic() + START_TIMEOUT_S
        waiting = list(drivers)
        while waiting := [driver for driver in waiting if not driver.started]:
            if time.monotonic() > deadline:
                raise DemoFailed(f"Spark has not started within {START_TIMEOUT_S:.0f} s:\n{waiting[0].tail()}")
            await asyncio.sleep(POLL_S)

    async def kill_in_the_middle(self) -> None:
        """Waits for a batch that has written files that do not count yet, kills the driver, starts another."""
        driver, table = self._drivers[jobs.ARCHIVE], jobs.table(self.settings.directory, jobs.ARCHIVE)
        batch: int | None = None
        deadline = time.monotonic() + self.settings.seconds + FINISH_TIMEOUT_S
        while batch is None:
            await asyncio.sleep(POLL_S)
            driver.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{jobs.ARCHIVE} was not caught while it wrote a batch: there are too few flights")
            if self._produced >= KILL_FROM_SHARE * self._total:
                batch = writing(driver, table)
        pid, produced = driver.pid, self._produced
        await driver.kill()
        rows, files = counted(table)
        loose = len(files_of(table) - files)
        self._kill = KillEvent(pid, batch, rows, loose, produced)
        self.say(
            f"kill -9 {pid}: {jobs.ARCHIVE} was in batch {batch}; its table has {rows:,} flights, and {loose} files "
            "that do not count"
        )
        await driver.start()
        self.say(f"penstock-spark run {driver.file.name}: process {driver.pid} goes on from the checkpoint")

    # Producing

    async def produce_and_kill(self, admin: Admin, brokers: str, flights: list[DepartureSender]) -> None:
        self._total = len(flights)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(quietly, asyncio.create_task(self.show(admin)))
            await all_of(self.produce(brokers, flights), self.kill_in_the_middle())

    async def produce(self, brokers: str, flights: list[DepartureSender]) -> None:
        """At the pace of event time: the year in `seconds`."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with Producer(brokers) as producer:
            for part, share in slices(flights, SLICES):
                for flight in part:
                    await producer.send(
                        jobs.TOPIC, flight.message, key=flight.carrier, timestamp_ms=flight.scheduled_ms
                    )
                await producer.flush()
                self._produced += len(part)
                self._now_ms = part[-1].left_ms
                await asyncio.sleep(began + share * self.settings.seconds - loop.time())
        self.say(f"{self._produced:,} flights are produced")

    async def show(self, admin: Admin) -> None:
        """The bar, where there is a terminal."""
        with ProgressDisplay("flights", total=self._total) as progress:
            while True:
                done = [sum(await self.committed(admin, group)) for group in jobs.groups()]
                day = datetime.fromtimestamp(self._now_ms / 1000, UTC) if self._now_ms else None
                what = f"{day:%d %b %Y}: " if day else ""
                progress.show(self._produced, f"{what}{done[0]:,} archived, {done[1]:,} counted; produced")
                await asyncio.sleep(SHOW_EVERY_S)

    # The end

    async def committed(self, admin: Admin, group: str) -> list[int]:
        found = await admin.committed(group, self._partitions)
        return [found[tp].offset if tp in found else 0 for tp in self._partitions]

    async def finish(self, admin: Admin) -> None:
        """Stops each job as soon as it has committed everything, so that it leaves the machine to the other."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(quietly, asyncio.create_task(self.show(admin)))
            drivers = zip(jobs.groups(), self._drivers.values(), strict=True)
            await all_of(*(self.finish_one(admin, group, driver) for group, driver in drivers))

    async def finish_one(self, admin: Admin, group: str, driver: DemoDriver) -> None:
        deadline = time.monotonic() + FINISH_TIMEOUT_S
        while (done := sum(await self.committed(admin, group))) < self._total:
            driver.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{driver.file.stem}: {done:,} of {self._total:,} after {FINISH_TIMEOUT_S:.0f} s")
            await asyncio.sleep(POLL_S)
        await driver.stop()
        self.say(f"{driver.file.stem} has done all of them, and stopped at the end of a batch")

    def read(self, ends: list[int], flights: list[DepartureSender], committed: dict[str, list[int]]) -> CheckResult:
        directory = self.settings.directory
        data_set = expected.read_data_set(self.settings.data)
        if self.settings.flights is not None:
            data_set = expected.only(data_set, [flight.message for flight in flights])
        hours = delta(jobs.table(directory, jobs.BY_HOUR)).select(expected.BY_HOUR)
        return CheckResult(data_set, delta(jobs.table(directory, jobs.ARCHIVE)), hours, ends, self._kill, committed)


def writing(driver: DemoDriver, table: Path) -> int | None:
    """The batch that a driver is in, if it has written files for it which no version of the table names, and the table
    has rows already."""
    batch = driver.batch_in_flight()
    if batch is None:
        return None
    files = files_of(table)
    rows, known = counted(table)
    return batch if rows and files - known else None


async def all_of(*work: Coroutine[Any, Any, None]) -> None:
    """Does several things at once; the first that fails ends the others, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for coroutine in work:
                tasks.create_task(coroutine)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def quietly(task: asyncio.Task[Any]) -> None:
    """Cancels a task, and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def delta(path: Path) -> pa.Table:
    """A Delta table's newest version. Raises `DemoFailed` where there is none."""
    if not DeltaTable.is_deltatable(str(path)):
        raise DemoFailed(f"{path.name}: the job has written no table")
    return DeltaTable(path).to_pyarrow_table()
