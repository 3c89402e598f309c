"""asyncio's event loop for one simulated process: timers on virtual time, sockets on the simulated network, threads as
delayed callbacks.

Created by `process`. It implements the methods that the broker and its client use; all others raise
NotImplementedError.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock_simulation.process import Handle, Killed, TimerHandle
from penstock_simulation.quiet import EXPECTED

if TYPE_CHECKING:
    from penstock_simulation.process import Process

THREAD_DELAY_S = 0.000_05
SLOW_THREAD_S = 0.02
TIMER_LATE_S = 1e-9
SLOW_THREADS = 0.05
"""Fraction of thread jobs that are delayed for a long time."""


class ProcessLoop(asyncio.AbstractEventLoop):
    """The loop of `process`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self._threads = process.world.streams["threads"]

    # Time and callbacks

    def time(self) -> float:
        return self.world.now * self.process.rate + self.process.offset_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        self.process.push(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> TimerHandle:
        handle = TimerHandle(when, callback, args, context)
        process = self.process
        if process.alive:
            # Slightly late, so that the time has been reached on the process's own clock.
            self.world.at((when - process.offset_s) / process.rate + TIMER_LATE_S, process.due, handle)
        return handle

    # Tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the thread's job in one step after a delay."""
        future = self.create_future()
        slow = self._threads.random() < SLOW_THREADS
        delay_s = self._threads.expovariate(1 / (SLOW_THREAD_S if slow else THREAD_DELAY_S))
        self.call_later(delay_s, self._run_job, future, func, args)
        return future

    def _run_job(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            result = func(*args)
        except (Killed, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:
            if not future.cancelled():
                future.set_exception(e)
        else:
            if not future.cancelled():
                future.set_result(result)

    def set_default_executor(self, executor: Any) -> None:
        """Do nothing: the simulation has no threads."""

    # State

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.process.alive

    def is_closed(self) -> bool:
        return False

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        """Do nothing: the simulation has no signals; a clean stop calls the handler."""

    def set_exception_handler(self, handler: Any) -> None:
        """Do nothing: each exception is a problem of the world."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.process.alive and not self.world.stopped:
            error = context.get("exception")
            is_expected = "fields" in context and isinstance(error, EXPECTED)  # reported by `runtime.tasks.report`
            if not isinstance(error, Killed) and not is_expected:
                self.world.problem(f"{self.process.name}: {context.get('message')}: {error!r}")

    # Network

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Return the host name: it is the address of a machine."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(host), int(port)))]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        machine = self.process.machine
        assert machine is not None, "a process without a machine has no network"
        return await machine.network.connect(self.process, protocol_factory, str(host), int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        machine = self.process.machine
        assert machine is not None, "a process without a machine has no network"
        sock = options.get("sock")
        if sock is not None:
            port = sock.getsockname()[1]
        return machine.network.listen(self.process, protocol_factory, int(port))
