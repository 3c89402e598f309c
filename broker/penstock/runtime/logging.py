"""Structured logs of a process on standard error: text on a terminal, JSON lines otherwise.

`node` calls `configure` once, before the first log event; modules call `get_logger`. Importing this module first also
avoids importing rich: structlog loads it for tracebacks that Penstock does not use, which costs 0.2 s and several
megabytes per broker.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from penstock.runtime.clock import Clock, SystemClock

UNUSED_MODULES = ("rich", "rich.console", "rich.pretty", "rich.traceback")


def import_structlog() -> Any:
    """Import structlog without the optional rich, unless rich is already imported."""
    hidden = [] if "structlog" in sys.modules else [name for name in UNUSED_MODULES if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        import structlog
        import structlog.dev
        import structlog.processors
    finally:
        for name in hidden:
            del sys.modules[name]
    return structlog


structlog = import_structlog()

Event = MutableMapping[str, Any]
Format = Literal["auto", "text", "json"]
LEVELS = ("debug", "info", "warning", "error", "critical")
_level = "info"


def get_logger(name: str) -> Any:
    """Return a logger whose events carry `source=name`; `configure` also applies to loggers created before it."""
    return structlog.get_logger(source=name)


def configure(
    level: str = "info", format: Format = "auto", stream: TextIO | None = None, clock: Clock | None = None
) -> None:
    """Send all logs of the process, including the standard library's, to `stream` (default: standard error).

    Raises ValueError for an unknown level.
    """
    check_level(level)
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    text = format == "text" or (format == "auto" and terminal)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            add_timestamps(clock or SystemClock()),
            structlog.processors.StackInfoRenderer(),
            *renderers(text, terminal),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    set_level(level)


def check_level(level: str) -> None:
    """Raise ValueError for an unknown level."""
    if level not in LEVELS:
        raise ValueError(f'unknown log level "{level}"; choose one of {", ".join(LEVELS)}')


def set_level(level: str) -> None:
    """Change the level of all loggers. Raises ValueError for an unknown level."""
    global _level
    check_level(level)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())))
    forward_standard_library(level)
    _level = level


def current_level() -> str:
    """Return the current level."""
    return _level


def renderers(text: bool, colors: bool) -> list[Callable[..., Any]]:
    """Return the last processors, which render an event as a line."""
    if text:
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain, pad_event_to=0)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def add_timestamps(clock: Clock) -> Callable[[Any, str, Event], Event]:
    """Return a processor that adds the wall clock's time, UTC, in milliseconds."""

    def add_time(_: Any, __: str, event: Event) -> Event:
        when = datetime.fromtimestamp(clock.wall_ms() / 1000, tz=UTC)
        event["timestamp"] = when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return event

    return add_time


HTTP_CLIENT_ERRORS = "aiohttp.http_exceptions"
"""The module of the errors for invalid requests, which aiohttp logs with a traceback."""


class Forwarder(logging.Handler):
    """Forwards records of libraries that use the standard `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record through structlog. What a client sends that is no HTTP is no error of the server."""
        log, error = structlog.get_logger(source=record.name), record.exc_info[1] if record.exc_info else None
        if type(error).__module__ == HTTP_CLIENT_ERRORS:
            log.debug(record.getMessage(), reason=str(error))
            return
        fields: dict[str, Any] = {"exc_info": record.exc_info} if record.exc_info else {}
        log.log(max(record.levelno, logging.DEBUG), record.getMessage(), **fields)


def forward_standard_library(level: str) -> None:
    """Forward warnings and errors of libraries, or everything at level debug."""
    root = logging.getLogger()
    root.handlers = [Forwarder()]
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
