"""The transaction service works if no process reads its log, or stops reading it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from penstock_spark_kit.batches_written import Run, batches, values_of, wanted
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import eventually, produce

from penstock_spark.sink.driver import SinkDriver
from penstock_spark.sink.rendezvous import find_service
from penstock_spark.sink.service_client import ServiceEndpoint
from penstock_spark.sink.service_log import non_blocking_stream

pytestmark = pytest.mark.integration

START = """
import sys
from penstock_spark.sink.driver import SinkDriver
from penstock_spark.sink.rendezvous import find_service
find_service(SinkDriver(int(sys.argv[1]), sys.argv[2], {"spark.master": "local[2]"}), starts=True)
"""
DEADLINE_S = 60.0


@dataclass
class Pipe:
    reading: int
    writing: int
    is_read: bool = True

    def end_reading(self) -> None:
        """Close the reading end once: its descriptor number may be reused."""
        if self.is_read:
            self.is_read = False
            os.close(self.reading)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = Pipe(*os.pipe())
    yield ends
    ends.end_reading()
    os.close(ends.writing)


def fill(writing: int) -> None:
    """Fill the pipe with a separate open file description: O_NONBLOCK would apply to every process that shares one."""
    own = os.open(f"/proc/self/fd/{writing}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(own, bytes(512))
    finally:
        os.close(own)


@pytest.fixture(params=["is gone", "does not read"])
def unheard(request: pytest.FixtureRequest, driver: SinkDriver, pipe: Pipe) -> ServiceEndpoint:
    """Start the driver's service with a log pipe that is never read, or has no reader."""
    command = [sys.executable, "-c", START, str(driver.pid), driver.started]
    subprocess.run(command, stderr=pipe.writing, check=True, timeout=DEADLINE_S)
    if request.param == "is gone":
        pipe.end_reading()
    else:
        fill(pipe.writing)
    return find_service(driver, starts=False)


def test_a_line_is_written_whole_while_somebody_reads(pipe: Pipe) -> None:
    line = "ü" * 3000 + "\n"
    non_blocking_stream(pipe.writing).write(line)
    assert os.read(pipe.reading, 10_000).decode() == line


def test_a_line_for_nobody_is_dropped(pipe: Pipe) -> None:
    stream = non_blocking_stream(pipe.writing)
    fill(pipe.writing)
    stream.write("the pipe is full\n")
    pipe.end_reading()
    stream.write("the other end is gone\n")
    stream.flush()


def test_a_batch_is_committed_and_its_driver_hears_of_it(
    penstock: Broker, topic: Callable[..., str], unheard: ServiceEndpoint, start_run: Callable[..., Run]
) -> None:
    name = topic(2)
    run = start_run(unheard, penstock.bootstrap, name)
    run.write(0, batches(100))
    run.commit(0)
    assert values_of(penstock.bootstrap, name) == wanted(100)


def test_a_driver_that_dies_in_the_middle_of_a_batch_has_its_transaction_aborted(
    penstock: Broker,
    topic: Callable[..., str],
    unheard: ServiceEndpoint,
    start_run: Callable[..., Run],
    driver: SinkDriver,
) -> None:
    """Long before the transaction timeout, and without another driver."""
    name = topic(1)
    start_run(unheard, penstock.bootstrap, name).write(0, batches(100))
    os.kill(driver.pid, signal.SIGKILL)
    produce(penstock.bootstrap, name, [b"after"])
    eventually("readers pass the open transaction", lambda: values_of(penstock.bootstrap, name) == [b"after"])
