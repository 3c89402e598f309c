"""Exceptions that no code handles are logged with their traceback, and counted."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from penstock.runtime.tasks import report, spawn
from penstock.runtime.unhandled_errors import UnhandledErrors


async def fail() -> None:
    raise AssertionError("the invariant")


async def test_failed_tasks_and_callbacks_are_logged_and_counted() -> None:
    errors, loop = UnhandledErrors(), asyncio.get_running_loop()
    errors.install(loop)
    with capture_logs() as logged:
        await asyncio.wait([spawn(fail(), "worker")])
        called = asyncio.Event()
        loop.call_soon(lambda: 1 // 0)
        loop.call_soon(called.set)
        await called.wait()
    loop.set_exception_handler(None)
    assert errors.count == 2
    assert [repr(event["exc_info"]) for event in logged] == [
        "AssertionError('the invariant')",
        "ZeroDivisionError('integer division or modulo by zero')",
    ]
    assert logged[0]["event"] == 'background task "worker" failed'
    assert logged[0]["log_level"] == "error"


async def test_a_reported_exception_is_logged_with_its_fields_and_counted() -> None:
    errors, loop = UnhandledErrors(), asyncio.get_running_loop()
    errors.install(loop)
    with capture_logs() as logged:
        report("a partition stops", AssertionError("the invariant"), partition="orders-1")
    loop.set_exception_handler(None)
    assert errors.count == 1
    (event,) = logged
    assert (event["log_level"], event["event"], event["partition"]) == ("error", "a partition stops", "orders-1")
    assert repr(event["exc_info"]) == "AssertionError('the invariant')"


async def test_a_report_without_an_exception_is_a_warning() -> None:
    errors, loop = UnhandledErrors(), asyncio.get_running_loop()
    errors.install(loop)
    with capture_logs() as logged:
        loop.call_exception_handler({"message": "a task was destroyed"})
    loop.set_exception_handler(None)
    assert errors.count == 0
    assert [(event["log_level"], event["event"]) for event in logged] == [("warning", "a task was destroyed")]
