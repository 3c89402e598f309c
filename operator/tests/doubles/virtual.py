"""Virtual time: an event loop whose timers fire as soon as it is idle, and a clock that follows it.

def test_something() -> None:
    run_virtually(the_test_as_a_coroutine())
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Keeps the time constant while callbacks are ready; otherwise advances it to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_now = 1_000.0
        real_select = self._selector.select

        def select(timeout: float | None = None) -> Any:
            ready = real_select(0)
            if ready:
                return ready
            assert timeout is not None, "no timer is pending: a deadlock"
            self._virtual_now += timeout
            return ready

        self._selector.select = select

    def time(self) -> float:
        return self._virtual_now


class LoopClock:
    """A `Clock` with the running loop's time. The wall clock is ahead by `leap_ms`."""

    leap_ms = 0

    def wall_ms(self) -> int:
        return 1_790_000_000_000 + self.boot_ms() + self.leap_ms

    def boot_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1_000)


def run_virtually(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test)
