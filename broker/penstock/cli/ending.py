"""How a program ends whose output is not taken: quietly where the reader has enough, else with a sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import NoReturn


def run_to_the_end(program: Callable[[], object]) -> NoReturn:
    """Runs a program and ends the process with its exit code, or with 1 where the output could not be written.

    What `print` has buffered is written here. Left to the interpreter, that fails after everything else, with a message
    of its own and exit code 120.
    """
    code: int | str | None = 0
    if isinstance(sys.stdout, TextIOWrapper):
        # A name that the terminal's encoding lacks is printed with escapes, instead of ending the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            program()
        except SystemExit as e:
            # typer makes 1 of it where the help meets a reader that has gone.
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
    """What is still buffered goes nowhere, so that the interpreter does not try again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
