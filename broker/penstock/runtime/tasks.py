"""Background tasks whose failures are reported.

asyncio keeps the exception of a task that no code awaits until the task is freed, which may be never. `spawn` passes it
to the loop's exception handler at once, as asyncio does with exceptions in callbacks. `report` does the same with an
exception that code has caught to contain it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.runtime.logging import get_logger

T = TypeVar("T")
log = get_logger(__name__)


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start a task that no code awaits for its result; an exception in it is reported."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(report_failure)
    return task


def report_failure(task: asyncio.Future[Any]) -> None:
    """Pass the exception of a finished task, if any, to the exception handler of its loop."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    name = task.get_name() if isinstance(task, asyncio.Task) else repr(task)
    message = f'background task "{name}" failed'
    task.get_loop().call_exception_handler({"message": message, "exception": error, "future": task})


def report(message: str, error: BaseException, **fields: object) -> None:
    """Pass a caught exception that is a bug to the exception handler of the running loop. Fields are logged with it.

    Call it where `except Exception` contains a failure. Errors that are no bug are caught by their types. Without a
    running loop, the exception is logged.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        log.error(message, exc_info=error, **fields)
        return
    loop.call_exception_handler({"message": message, "exception": error, "fields": fields})
