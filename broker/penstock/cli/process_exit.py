"""Runs a console script and ends its process: silently if the reader closed the pipe, else with an error message."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import NoReturn


def run_to_the_end(program: Callable[[], object]) -> NoReturn:
    """Run `program` and exit with its code, or with 1 if standard output cannot be written.

    Flushes standard output here. The interpreter's own flush at exit would report the failure with its own message and
    exit code 120.
    """
    code: int | str | None = 0
    if isinstance(sys.stdout, TextIOWrapper):
        # Characters that the terminal's encoding cannot represent are escaped instead of raising UnicodeEncodeError.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            program()
        except SystemExit as e:
            # typer exits with 1 if the reader closes the pipe while help is printed.
            code = 0 if isinstance(e.__context__, BrokenPipeError) else e.code
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as e:
        discard_output()
        print(f"error: {f'{e.filename}: {e.strerror}' if e.filename else e}", file=sys.stderr)
        code = 1
    sys.exit(code)


def discard_output() -> None:
    """Redirect standard output to /dev/null, so that the interpreter does not retry the flush at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
