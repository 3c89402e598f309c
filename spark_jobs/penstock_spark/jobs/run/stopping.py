"""How a job is told to stop: set by a signal's handler, asked and waited for by what runs it. Used by `cli.run`."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class StopSignal:
    """An event that a signal's handler may set.

    `threading.Event.set` takes a lock that the wait may hold which the handler has just interrupted: both would then
    wait for ever. `SimpleQueue.put` may be called anywhere.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._told: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._told.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Whether it is set, at once if so and otherwise when it is or the time is over."""
        try:
            self._told.get(timeout=timeout_s)
        except Empty:
            return self._is_set
        self._told.put(None)  # for who else waits
        return True
