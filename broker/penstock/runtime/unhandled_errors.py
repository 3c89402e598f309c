"""Logs and counts exceptions that are bugs: those of background tasks and of callbacks, and those that `tasks.report`
passes on.

A broker and an operator install it at their start.
"""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.runtime.logging import get_logger

log = get_logger(__name__)


class UnhandledErrors:
    """The exception handler of an event loop."""

    def __init__(self) -> None:
        self.count = 0
        """Number of exceptions, each of which is a programming error."""

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Become the exception handler of a loop."""
        loop.set_exception_handler(self._handle)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            log.warning(context["message"])
            return
        self.count += 1
        log.error(context["message"], exc_info=error, **context.get("fields", {}))
