"""Structured logs of a process: text on a terminal, JSON lines elsewhere; both on standard error.

`node` calls `configure` once, before anything logs. Whoever logs calls `get_logger`. Importing this module first also
keeps rich out of the process: structlog would load it for tracebacks that we do not draw, at the price of 0.2 s and
some megabytes in a broker.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from penstock.runtime.clock import Clock, SystemClock

RICH = ("rich", "rich.console", "rich.pretty", "rich.traceback")


def import_structlog() -> Any:
    """structlog, without the optional rich behind it unless somebody has loaded that already."""
    hidden = [] if "structlog" in sys.modules else [name for name in RICH if name not in sys.modules]
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
    """A logger whose lines carry `source=name`; it obeys `configure` even when made before it."""
    return structlog.get_logger(source=name)


def configure(
    level: str = "info", format: Format = "auto", stream: TextIO | None = None, clock: Clock | None = None
) -> None:
    """Sends all logs of the process, the standard library's included, to `stream` (default: standard error).

    Raises ValueError for an unknown level.
    """
    check_level(level)
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    text = format == "text" or (format == "auto" and terminal)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            stamp(clock or SystemClock()),
            structlog.processors.StackInfoRenderer(),
            *renderers(text, terminal),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    set_level(level)


def check_level(level: str) -> None:
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: choose one of {', '.join(LEVELS)}")


def set_level(level: str) -> None:
    """Changes the level of all loggers at once. Raises ValueError for an unknown level."""
    global _level
    check_level(level)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())))
    adopt_standard_library(level)
    _level = level


def current_level() -> str:
    """The level that holds."""
    return _level


def renderers(text: bool, colours: bool) -> list[Callable[..., Any]]:
    """The last processors: what turns an event into a line."""
    if text:
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain, pad_event_to=0)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]


def stamp(clock: Clock) -> Callable[[Any, str, Event], Event]:
    """A processor that adds the wall clock's time, UTC, to the millisecond."""

    def add_time(_: Any, __: str, event: Event) -> Event:
        when = datetime.fromtimestamp(clock.wall_ms() / 1000, tz=UTC)
        event["timestamp"] = when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return event

    return add_time


class Forwarder(logging.Handler):
    """Hands the records of libraries that use the standard `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"exc_info": record.exc_info} if record.exc_info else {}
        structlog.get_logger(source=record.name).log(max(record.levelno, logging.DEBUG), record.getMessage(), **fields)


def adopt_standard_library(level: str) -> None:
    """Libraries log warnings and worse, or everything where the level is debug."""
    root = logging.getLogger()
    root.handlers = [Forwarder()]
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
