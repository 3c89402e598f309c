"""A simulated process: an event loop on virtual time, which can be killed or paused at any await.

Each process has its own loop object, so asyncio itself separates processes: a task, a future or a lock belongs to one
loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_simulation.machine import Machine
    from penstock_simulation.world import World


class Killed(BaseException):
    """Exception that unwinds the code of a process killed in the middle of an operation."""


class Handle:
    """asyncio's handle: a callback that can be cancelled."""

    __slots__ = ("args", "callback", "context")

    def __init__(
        self, callback: Callable[..., Any] | None, args: Sequence[Any], context: contextvars.Context | None
    ) -> None:
        self.callback, self.args, self.context = callback, args, context

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None


class TimerHandle(Handle):
    """A delayed callback. `when` is a time of its loop."""

    __slots__ = ("_when",)

    def __init__(
        self, when: float, callback: Callable[..., Any], args: Sequence[Any], context: contextvars.Context | None
    ) -> None:
        self.callback, self.args, self.context, self._when = callback, args, context, when

    def when(self) -> float:
        return self._when


class Process:
    """A process, alive until `kill` or `exit`. A restart creates another process."""

    def __init__(self, world: World, name: str, machine: Machine | None) -> None:
        from penstock_simulation.loop import ProcessLoop

        self.world, self.name, self.machine = world, name, machine
        self.alive = True
        self.paused = self.queued = False
        self.is_preempted = False
        """Whether the process is running a turn or is preempted: what becomes ready meanwhile runs in the next turn."""
        self.ready: deque[Handle] = deque()
        self.busy_turns = 0
        """Turns since the process was last idle."""
        self.fuse = -1
        """Callbacks until `on_fuse` is called; -1: never."""
        self.on_fuse: Callable[[], object] = self.kill
        self.at_end: list[Callable[[bool], None]] = []
        """Callbacks for the end of the process, such as releasing locks; the argument says whether power was lost."""
        self.generators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.main: asyncio.Task[None] | None = None
        self.rate: float = machine.rate if machine is not None else 1.0
        self.offset_s: float = machine.boot_offset_s if machine is not None else 0.0
        self.loop = ProcessLoop(self)  # type: ignore[abstract]
        if machine is not None:
            machine.processes.append(self)

    def __repr__(self) -> str:
        return f"<Process {self.name}>"

    # Scheduling

    def post(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run the callback in the process in turn; callable from outside of the process."""
        self.push(Handle(callback, args, None))

    def push(self, handle: Handle) -> None:
        if not self.alive:
            return
        self.ready.append(handle)
        if not self.queued and not self.paused and not self.is_preempted:
            self.enqueue()

    def enqueue(self) -> None:
        if self.alive and not self.paused:
            self.queued = True
            self.world.runnable.append(self)

    def preempt(self, delay_s: float) -> None:
        """Delay the next turn."""
        self.is_preempted = True
        self.world.after(delay_s, self.go_on)

    def go_on(self) -> None:
        self.is_preempted = False
        if self.ready and not self.queued:
            self.enqueue()

    def due(self, handle: TimerHandle) -> None:
        """Run the callback of an expired timer."""
        if self.alive and handle.callback is not None:
            self.push(handle)

    def run_turn(self) -> None:
        """Run the callbacks that are ready; those they schedule run in the next turn."""
        ready = self.ready
        for _ in range(len(ready)):
            if self.fuse >= 0:
                self.fuse -= 1
                if self.fuse < 0:
                    self.on_fuse()
                    if not self.alive or self.paused:
                        return
            handle = ready.popleft()
            callback = handle.callback
            if callback is None:
                continue
            try:
                if handle.context is None:
                    callback(*handle.args)
                else:
                    handle.context.run(callback, *handle.args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except Killed:
                assert not self.alive, "only the dead unwind"
            except BaseException as e:
                self.loop.call_exception_handler({"message": f"callback {callback!r}", "exception": e})
            if not self.alive or self.paused:
                return

    # Lifecycle

    def begin(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.main = self.loop.create_task(main())
        self.main.add_done_callback(self._main_done)

    def _main_done(self, task: asyncio.Task[None]) -> None:
        if not self.alive:
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.problem(f"{self.name} ended with {error!r}")
        self.end(power_lost=False, kind="exit")

    def kill(self) -> None:
        """Kill the process as SIGKILL does: none of its code runs afterwards, and its kernel closes its sockets."""
        self.end(power_lost=False, kind="kill")

    def end(self, *, power_lost: bool, kind: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self.world.note(kind, self.name)
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.world.bury((tasks, list(self.ready), list(self.generators)))
        self.main = None
        self.ready.clear()
        if self.queued:
            self.queued = False
            self.world.runnable.remove(self)
        if self.machine is not None:
            self.machine.processes.remove(self)
        for callback in self.at_end:
            callback(power_lost)
        self.at_end.clear()

    def pause(self) -> None:
        """Stop the process as SIGSTOP does: it does not run and does not notice that time passes."""
        if not self.alive or self.paused:
            return
        self.world.note("pause", self.name)
        self.paused = True
        if self.queued:
            self.queued = False
            self.world.runnable.remove(self)

    def resume(self) -> None:
        """Continue the process, as SIGCONT does."""
        if not self.alive or not self.paused:
            return
        self.world.note("resume", self.name)
        self.paused = False
        if self.ready and not self.queued and not self.is_preempted:
            self.enqueue()
