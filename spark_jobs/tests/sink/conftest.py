"""A transaction service as a process, which watches a driver of the test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from penstock_spark_kit.batches_written import TIMEOUT_S, Run

from penstock_spark.options.sink import SinkOptions
from penstock_spark.sink.driver import SinkDriver, start_time
from penstock_spark.sink.rendezvous import find_service
from penstock_spark.sink.service_client import ServiceEndpoint, call_service
from penstock_spark.sink.writer import plan_of

StartRun = Callable[..., Run]


@pytest.fixture
def driver() -> Iterator[SinkDriver]:
    """Start a process that represents a driver's JVM: its service ends with it."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield SinkDriver(process.pid, start_time(process.pid), {"spark.master": "local[2]"})
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def service(driver: SinkDriver) -> ServiceEndpoint:
    return find_service(driver, starts=True)


@pytest.fixture
def start_run() -> StartRun:
    """Return `start_run(endpoint, bootstrap, topic, batch, query)`, which plans a run of a batch."""
    count = 0

    def start(
        endpoint: ServiceEndpoint,
        bootstrap: str,
        topic: str,
        batch: int = 0,
        query: str = "",
        ddl: str = "value binary",
        **more: Any,
    ) -> Run:
        nonlocal count
        count += 1
        options = SinkOptions.parse(
            {
                "kafka.bootstrap.servers": bootstrap,
                "topic": topic,
                "penstock.delivery": "exactly-once",
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )
        name = f"run-{count}"
        call_service(endpoint, plan_of(options, name), TIMEOUT_S)
        return Run(endpoint, name, options, batch, query or f"query-of-{topic}", ddl)

    return start
