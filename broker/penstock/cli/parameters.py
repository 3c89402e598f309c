"""Validation of all options and arguments: text must be valid UTF-8, numbers within bounds, settings NAME=VALUE.

Applied by `root` to each command when it is loaded, and by `penstock-spark` to its commands.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import typer

from penstock.config.addresses import quoted

MAX_INT16 = (1 << 15) - 1
MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1
MAX_LINGER_MS = 3_600_000
MAX_BATCH_BYTES = 1 << 30
FILE_PARAMETERS = frozenset({"file", "paths", "job", "chart"})
"""Parameters that name files. File names need not be valid UTF-8."""

Callback = Callable[[Any, Any, Any], Any]


def check_parameters(command: Any) -> Any:
    """Add value checks to a command and its subcommands. Returns the command."""
    for parameter in command.params:
        parameter.callback = with_checks(parameter.callback, parameter.name in FILE_PARAMETERS)
    for subcommand in getattr(command, "commands", {}).values():
        check_parameters(subcommand)
    return command


def with_checks(callback: Callback | None, is_file: bool) -> Callback:
    """Return a parameter callback that checks the value before it calls `callback`."""

    def check(context: Any, parameter: Any, value: Any) -> Any:
        for each in value if isinstance(value, list | tuple) else (value,):
            check_value(each, is_file)
        return value if callback is None else callback(context, parameter, value)

    return check


def check_value(value: object, is_file: bool) -> None:
    """Raise `typer.BadParameter` if a number is out of range or text is not valid UTF-8."""
    if isinstance(value, int) and not isinstance(value, bool) and not -MAX_INT64 - 1 <= value <= MAX_INT64:
        raise typer.BadParameter(
            f"a number with {len(str(abs(value)))} digits is out of range; the largest is 2^63 - 1"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise typer.BadParameter(f'"{value}" is not a finite number; use one such as 0.5')
    if isinstance(value, str | os.PathLike) and not is_file:
        check_text(os.fspath(value))


def check_text(text: str) -> None:
    """Raise `typer.BadParameter` if the text is not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{quoted(text)} is not valid UTF-8; encode it as UTF-8") from None


def parse_settings(pairs: Iterable[str], option: str, example: str = "retention.ms=3600000") -> dict[str, str]:
    """Return `name=value` pairs as a dict; a repeated name keeps its last value. Raises `typer.BadParameter`."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(
                f"{quoted(pair)} is not a setting; use NAME=VALUE, for example {example}", param_hint=option
            )
        found[name.strip()] = value
    return found
