"""Prints the output of a local cluster's processes, each line prefixed with the process name.

Everything goes to standard error: standard output contains the ready line only, as with a single broker.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TextIO

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""ANSI foreground colours, assigned to processes in turn."""
SUPERVISOR = "penstock"
"""Prefix of the supervisor's own lines."""
MAX_LINE_BYTES = 64 << 10
"""Longer lines are printed in pieces."""


class Console:
    """Prints whole lines, in colour on a terminal unless NO_COLOR is set (no-color.org)."""

    def __init__(
        self, names: list[str], out: TextIO | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.out = sys.stderr if out is None else out
        self.width = max(map(len, [SUPERVISOR, *names]))
        self.is_terminal = self.out.isatty()
        self.has_colour = self.is_terminal and not environment.get("NO_COLOR")
        self.colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}

    def write(self, name: str, line: str) -> None:
        """Print a line of a process."""
        prefix = f"{name:<{self.width}} |"
        colour = self.colours.get(name)
        if self.has_colour:
            prefix = f"\x1b[{'1' if colour is None else colour}m{prefix}\x1b[0m"
        with contextlib.suppress(BrokenPipeError):
            print(prefix, line, file=self.out, flush=True)

    def log(self, line: str) -> None:
        """Print a line of the supervisor."""
        self.write(SUPERVISOR, line)


class LineSplitter:
    """Splits a process's output into lines of bounded length."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > MAX_LINE_BYTES:
            whole.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        return [line.decode(errors="replace").rstrip("\r") for line in whole]

    def flush(self) -> list[str]:
        """Return the unterminated last line, if any."""
        return self.feed(b"\n") if self._rest else []
