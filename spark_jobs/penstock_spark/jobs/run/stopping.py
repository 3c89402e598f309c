"""The stop signal of a job: set by a signal handler, checked and awaited by the supervisor. Used by `cli.run`."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class StopSignal:
    """An event that a signal handler may set.

    `threading.Event.set` takes a lock that the interrupted code may hold in `wait`, which is a deadlock.
    `SimpleQueue.put` is reentrant.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakeups: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Return whether the job must stop."""
        return self._is_set

    def set(self) -> None:
        """Request a stop. Safe in signal handlers."""
        self._is_set = True
        self._wakeups.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until a stop is requested or the time is over. Return whether it is requested."""
        try:
            self._wakeups.get(timeout=timeout_s)
        except Empty:
            return self._is_set
        self._wakeups.put(None)  # wakes the next waiter
        return True
