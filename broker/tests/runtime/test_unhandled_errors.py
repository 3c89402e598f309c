"""Exceptions that no code handles are logged with their traceback, and counted."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from penstock.runtime.tasks import spawn
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


async def test_a_report_without_an_exception_is_a_warning() -> None:
    errors, loop = UnhandledErrors(), asyncio.get_running_loop()
    errors.install(loop)
    with capture_logs() as logged:
        loop.call_exception_handler({"message": "a task was destroyed"})
    loop.set_exception_handler(None)
    assert errors.count == 0
    assert [(event["log_level"], event["event"]) for event in logged] == [("warning", "a task was destroyed")]
