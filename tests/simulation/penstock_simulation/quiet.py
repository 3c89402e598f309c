"""Filters the broker's logs during a simulation: only lines that indicate a bug matter.

An exception in a log line that the simulated faults do not explain is a problem of the world.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import structlog

from penstock.client import ClientError
from penstock.log.types import LogError
from penstock.state.store import StoreError

if TYPE_CHECKING:
    from penstock_simulation.world import World

DEPTH = 3
"""Number of collections: a coroutine that awaits again when it is freed must be freed again."""
EXPECTED = (OSError, StoreError, LogError, ClientError)
"""Exceptions that simulated faults cause."""


@contextlib.contextmanager
def logs(world: World, *, verbose: bool = False) -> Iterator[None]:
    """Capture the logs during the block; `verbose` prints them with virtual time."""

    def capture(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        who = world.current.name if world.current is not None else "world"
        error = event.get("exc_info")
        if error is True:
            error = sys.exc_info()[1]
        if isinstance(error, Exception) and not isinstance(error, EXPECTED):
            world.problem(f"{who}: {event.get('event')}: {error!r}")
        if not verbose:
            raise structlog.DropEvent
        rest = " ".join(f"{key}={value!r}" for key, value in event.items() if key not in ("event", "source"))
        return f"{world.now:12.6f} {who} {method} {event.get('event')} {rest}"

    before = structlog.get_config()
    level = logging.DEBUG if verbose else logging.ERROR
    structlog.configure(
        processors=[capture],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def burial() -> Iterator[None]:
    """Suppress warnings while the interrupted coroutines of dead processes are freed."""
    unraisable = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            for _ in range(DEPTH):
                gc.collect()
    finally:
        sys.unraisablehook = unraisable


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield
