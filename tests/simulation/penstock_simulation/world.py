"""Virtual time and its processes. All other parts of the simulation belong to a `World`.

When no process is ready, time advances to the next event. The seed chooses which of several ready processes runs next.
Sometimes it preempts a process between two turns of its loop, so that what arrives meanwhile joins the turn. Within a
turn, callbacks run in asyncio's order. Code between two awaits takes no virtual time.
"""

from __future__ import annotations

import gc
import sys
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from penstock_simulation import quiet
from penstock_simulation.process import Process
from penstock_simulation.streams import Streams, Trace

T = TypeVar("T")

INSTANT_S = 1e-6
PREEMPTED = 0.25
"""Probability that a ready process is preempted."""
PREEMPTED_S = 0.000_5
"""Mean duration of a preemption."""
MAX_BUSY_TURNS = 20_000
"""Turns after which a process that is never idle, while time hardly advances, is a livelock. Time advances while a
process is preempted."""


class Livelock(Exception):
    """A process is busy without end while time does not advance."""


class Deadlock(Exception):
    """No process is ready and no event is scheduled."""


class World:
    """Time, events, and processes. A thread has at most one at a time; call `close` at the end."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.streams = Streams(seed)
        self.trace = Trace(keep_trace)
        self.now = 0.0
        self.current: Process | None = None
        self.runnable: list[Process] = []
        self.processes: list[Process] = []
        self.problems: list[str] = []
        """Unexpected exceptions of processes."""
        self.stopped = False
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = count()
        self._scheduling = self.streams["scheduling"]
        self._graveyard: list[Any] = []
        gc.freeze()  # exclude older objects from the collection in `close`

    # Events

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """Schedule an action at a time, outside of any process."""
        now = self.now
        heappush(self._events, (when if when > now else now, next(self._numbers), action, args))

    def after(self, delay_s: float, action: Callable[..., object], *args: Any) -> None:
        heappush(self._events, (self.now + delay_s, next(self._numbers), action, args))

    def note(self, kind: str, who: str, what: bytes | str | int = b"") -> None:
        self.trace.note(self.now, kind, who, what)

    def problem(self, what: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(f"{self.now:.6f} {what}")

    # Processes

    def spawn(self, name: str, main: Callable[[], Coroutine[Any, Any, None]], machine: Any = None) -> Process:
        """Start a process that runs `main` on its own loop."""
        process = Process(self, name, machine)
        self.processes.append(process)
        self.note("spawn", name)
        process.post(process.begin, main)
        return process

    def bury(self, things: Any) -> None:
        """Keep the objects of a dead process alive, so that none of its code runs, not even destructors."""
        self._graveyard.append(things)

    # Running

    def run(self, until: Callable[[], bool], deadline_s: float = float("inf")) -> bool:
        """Run until the condition holds (True) or virtual time is past the deadline (False)."""
        hooks = sys.get_asyncgen_hooks()
        before = _get_running_loop()
        _set_running_loop(None)
        sys.set_asyncgen_hooks(self._first_iteration, self._finalize)
        collecting = gc.isenabled()
        gc.disable()  # the time of a collection depends on what ran before in this interpreter
        try:
            return self._run(until, deadline_s)
        finally:
            _set_running_loop(before)
            sys.set_asyncgen_hooks(*hooks)
            if collecting:
                gc.enable()

    def _run(self, until: Callable[[], bool], deadline_s: float) -> bool:
        turns, since = 0, self.now
        while not until():
            if self.runnable:
                turns += 1
                if turns > MAX_BUSY_TURNS:
                    raise Livelock(f"time stands still at {self.now:.6f} in {self.runnable[0].name}")
                self._turn()
            elif not self._events:
                raise Deadlock(f"nothing is left to happen at {self.now:.6f}")
            elif self._events[0][0] > deadline_s:
                self.now = deadline_s
                return False
            else:
                self._advance()
                if self.now > since + INSTANT_S:
                    turns, since = 0, self.now
        return True

    def _turn(self) -> None:
        runnable = self.runnable
        last = runnable.pop()
        if runnable:
            chosen = self._scheduling.randrange(len(runnable) + 1)
            if chosen < len(runnable):
                last, runnable[chosen] = runnable[chosen], last
        last.queued, last.is_preempted = False, True
        self.current = last
        _set_running_loop(last.loop)  # type: ignore[arg-type]
        try:
            last.run_turn()
        finally:
            _set_running_loop(None)
        self.current, last.is_preempted = None, False
        if not last.ready:
            last.busy_turns = 0
        else:
            last.busy_turns += 1
            if last.busy_turns > MAX_BUSY_TURNS:
                raise Livelock(f"{last.name} has not been idle for {last.busy_turns} turns at {self.now:.6f}")
            if self._scheduling.random() < PREEMPTED:
                last.preempt(self._scheduling.expovariate(1 / PREEMPTED_S))
            else:
                last.enqueue()

    def _advance(self) -> None:
        """Advance to the next event and run everything due at that time."""
        queue = self._events
        self.now = now = queue[0][0]
        while queue and queue[0][0] <= now:
            _, _, action, args = heappop(queue)
            action(*args)

    def run_main(self, main: Callable[[], Coroutine[Any, Any, T]], machine: Any = None, deadline_s: float = 1e6) -> T:
        """Run one coroutine as a process to its end; return its result. For tests."""
        result: list[T] = []
        error: list[BaseException] = []

        async def body() -> None:
            try:
                result.append(await main())
            except Exception as e:
                error.append(e)

        self.spawn("main", body, machine)
        finished = self.run(lambda: bool(result or error), self.now + deadline_s)
        if error:
            raise error[0]
        assert finished, f"not done by {self.now} s"
        return result[0]

    def close(self) -> None:
        """End all processes at once and release their objects."""
        self.stopped = True
        for process in self.processes:
            if process.alive:
                process.kill()
        self._events.clear()
        with quiet.burial():
            self._graveyard.clear()
            self.processes.clear()
            self.runnable.clear()

    # Asynchronous generators

    def _first_iteration(self, generator: Any) -> None:
        if self.current is not None:
            self.current.generators.add(generator)

    def _finalize(self, generator: Any) -> None:
        """Finalize a dropped generator: its `finally` runs in a task of its process, as in asyncio."""
        process = self.current
        if process is not None and process.alive and generator in process.generators:
            process.generators.discard(generator)
            process.loop.create_task(generator.aclose())
