"""An exception in a background task is reported when the task ends, and no task of the product can lose one."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

import penstock
from penstock.runtime.tasks import report, report_failure, spawn

PACKAGE = Path(penstock.__file__).parent
OPERATOR = Path(__file__).parents[3] / "operator" / "penstock_operator"
AWAITED = {
    "api/authentication.py",
    "api/dispatch.py",
    "client/cluster.py",
    "client/polling.py",
    "client/produce_dispatcher.py",
    "client/rebalancing.py",
    "client/share/subscription.py",
    "control/controller/controller.py",
    "control/controller/election.py",
    "control/controller/keeper.py",
    "control/topic_admin.py",
    "group/offset_cache.py",
    "group/shard_revisions.py",
    "http/app.py",
    "http/background.py",
    "log/maintenance.py",
    "node/process.py",
    "replica/fetcher.py",
    "runtime/tasks.py",
    "share/group_settings.py",
    "state/etcd/auth.py",
    "state/etcd/channels.py",
    "txn/verification.py",
    "clusters/observer.py",
    "engine/operator.py",
    "engine/runner.py",
    "groups/discovery.py",
    "groups/replays.py",
}
"""Modules that start tasks without `spawn`, and await or report the result of each. The command line is left out: its
commands await what they start."""

LOGGED = {
    "node/process.py",
    "runtime/tasks.py",
    "runtime/unhandled_errors.py",
    "main.py",
    "engine/runner.py",
    "clusters/controller.py",
}
"""Modules that log exceptions with a traceback themselves: the process ends, or the operator's metric of failed objects
counts them. All others call `report`, which counts."""


async def problems_of(*works: Any) -> list[dict[str, Any]]:
    """Run works as background tasks that the test keeps, and return what was reported."""
    loop, found = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: found.append(context))
    try:
        tasks = [spawn(work, f"task {number}") for number, work in enumerate(works)]
        await asyncio.wait(tasks)
    finally:
        loop.set_exception_handler(None)
    return found


async def test_a_failed_invariant_is_reported_although_no_code_awaits_the_task() -> None:
    async def fail() -> None:
        raise AssertionError("the invariant")

    (problem,) = await problems_of(fail())
    assert repr(problem["exception"]) == "AssertionError('the invariant')"
    assert problem["message"] == 'background task "task 0" failed'


async def test_a_task_that_ends_or_is_cancelled_reports_nothing() -> None:
    async def cancel() -> None:
        raise asyncio.CancelledError

    assert await problems_of(asyncio.sleep(0), cancel()) == []


async def test_a_task_returns_its_result() -> None:
    assert await spawn(asyncio.sleep(0, "done"), "result") == "done"


async def test_a_future_that_is_no_task_is_reported_too() -> None:
    loop, found = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: found.append(context))
    future: asyncio.Future[None] = loop.create_future()
    future.set_exception(ValueError("x"))
    report_failure(future)
    loop.set_exception_handler(None)
    assert isinstance(found[0]["exception"], ValueError)


def test_without_a_loop_a_reported_exception_is_logged() -> None:
    with capture_logs() as logged:
        report("a listener failed", ValueError("x"), listener="CLIENTS")
    (event,) = logged
    assert (event["log_level"], event["event"], event["listener"]) == ("error", "a listener failed", "CLIENTS")
    assert repr(event["exc_info"]) == "ValueError('x')"


def test_exceptions_that_are_contained_are_reported() -> None:
    assert set(modules_that_log_exceptions()) == LOGGED


def test_only_modules_that_await_their_tasks_start_them_without_spawn() -> None:
    assert set(modules_with_tasks()) == AWAITED


def modules_with_tasks() -> Iterator[str]:
    """Yield the modules of the broker, its client and the operator that start tasks themselves."""
    for package in (PACKAGE, OPERATOR):
        for path in package.rglob("*.py"):
            name = path.relative_to(package).as_posix()
            if not name.startswith("cli/") and starts_tasks(path):
                yield name


def starts_tasks(path: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr in ("create_task", "ensure_future") for call in calls)


def modules_that_log_exceptions() -> Iterator[str]:
    """Yield the modules of the broker, its client and the operator that log a traceback without `report`."""
    for package in (PACKAGE, OPERATOR):
        for path in package.rglob("*.py"):
            if logs_exceptions(path):
                yield path.relative_to(package).as_posix()


def logs_exceptions(path: Path) -> bool:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    logged = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute) and call.args}
    return "exception" in logged or any(keyword.arg == "exc_info" for call in calls for keyword in call.keywords)
