"""Planned failures of the broker double: of a whole request or of one item, once or permanently."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock_operator.ports.brokers import BrokersError


def refused(code: str, message: str) -> BrokersError:
    """Return a permanent error."""
    return BrokersError(message, code=code, is_passing=False)


def timed_out(about: str = "request") -> BrokersError:
    """Return a temporary error."""
    return BrokersError(f"{about} was not answered in time", code="REQUEST_TIMED_OUT", is_passing=True)


class Failures:
    """Planned failures. `unreachable`: all requests; `fail_next`: the next request of a kind; `fail_for`: one item."""

    def __init__(self) -> None:
        self.unreachable: BrokersError | None = None
        self._next: dict[str, deque[BrokersError]] = {}
        self._for: dict[tuple[str, str], tuple[BrokersError, int | None]] = {}

    def fail_next(self, call: str, error: BrokersError | None = None, times: int = 1) -> None:
        """Fail the next `times` requests of this name."""
        self._next.setdefault(call, deque()).extend([error or timed_out(call)] * times)

    def fail_for(self, call: str, name: str, error: BrokersError | None = None, times: int | None = None) -> None:
        """Return this error for `name` in requests of this kind; `times` None: always."""
        self._for[call, name] = (error or timed_out(f"{call} of {name}"), times)

    def mend(self) -> None:
        """Remove all planned failures."""
        self.unreachable = None
        self._next.clear()
        self._for.clear()

    def _fail_if_told(self, call: str) -> None:
        if self.unreachable is not None:
            raise self.unreachable
        waiting = self._next.get(call)
        if waiting:
            raise waiting.popleft()

    def _outcome(self, call: str, name: str, do: Callable[..., None], *arguments: Any) -> BrokersError | None:
        """Return the planned error of one item, or None."""
        told = self._for.get((call, name))
        if told is not None:
            error, left = told
            if left is None or left > 0:
                self._for[call, name] = (error, None if left is None else left - 1)
                return error
        try:
            do(*arguments)
        except BrokersError as e:
            return e
        return None
