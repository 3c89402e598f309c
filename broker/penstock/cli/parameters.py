"""Checks that hold for every option and argument of every command: text that can be encoded, numbers within bounds.

Applied by `root` to each command when it is loaded, and by `penstock-spark` to all of its commands.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import typer

from penstock.config.addresses import quoted

MAX_INT16 = (1 << 15) - 1
MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1
MAX_LINGER_MS = 3_600_000
MAX_BATCH_BYTES = 1 << 30
FILES = frozenset({"file", "paths", "job", "chart"})
"""Parameters that are opened as they are: names of files need not be valid UTF-8."""

Callback = Callable[[Any, Any, Any], Any]


def check_parameters(command: Any) -> Any:
    """Has a command and its subcommands refuse values that no command can use. Returns the command."""
    for parameter in command.params:
        parameter.callback = checked(parameter.callback, parameter.name in FILES)
    for subcommand in getattr(command, "commands", {}).values():
        check_parameters(subcommand)
    return command


def checked(callback: Callback | None, is_file: bool) -> Callback:
    """A parameter's callback, behind the checks."""

    def check(context: Any, parameter: Any, value: Any) -> Any:
        for each in value if isinstance(value, list | tuple) else (value,):
            check_value(each, is_file)
        return value if callback is None else callback(context, parameter, value)

    return check


def check_value(value: object, is_file: bool) -> None:
    """Raises `typer.BadParameter`."""
    if isinstance(value, int) and not isinstance(value, bool) and not -MAX_INT64 - 1 <= value <= MAX_INT64:
        raise typer.BadParameter(f"a number of {len(str(abs(value)))} digits is out of range; the largest is 2^63 - 1")
    if isinstance(value, float) and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number; write one such as 0.5")
    if isinstance(value, str | os.PathLike) and not is_file:
        check_text(os.fspath(value))


def check_text(text: str) -> None:
    """Raises `typer.BadParameter`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{quoted(text)} is not valid UTF-8; write it in UTF-8") from None
