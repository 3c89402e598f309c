"""Brokers that fail when a test says so: a whole request, or one thing in it, once or until told otherwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock_operator.ports.brokers import BrokersError


def refused(code: str, message: str) -> BrokersError:
    """An error that does not pass by itself."""
    return BrokersError(message, code=code, is_passing=False)


def timed_out(about: str = "request") -> BrokersError:
    """One that does."""
    return BrokersError(f"{about} was not answered in time", code="REQUEST_TIMED_OUT", is_passing=True)


class Failures:
    """`unreachable` fails everything; `fail_next` the next request of a kind; `fail_for` one thing in each request."""

    def __init__(self) -> None:
        self.unreachable: BrokersError | None = None
        self._next: dict[str, deque[BrokersError]] = {}
        self._for: dict[tuple[str, str], tuple[BrokersError, int | None]] = {}

    def fail_next(self, call: str, error: BrokersError | None = None, times: int = 1) -> None:
        """The next `times` requests of this name raise."""
        self._next.setdefault(call, deque()).extend([error or timed_out(call)] * times)

    def fail_for(self, call: str, name: str, error: BrokersError | None = None, times: int | None = None) -> None:
        """In requests of this name, the answer for `name` is this error; `times` None: always."""
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
        """What becomes of one thing in a request for many."""
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
