"""What a local cluster shows: each process's lines behind its name, as several processes share one terminal.

All of it goes to standard error, so that standard output has the ready line and nothing else, as with one broker.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TextIO

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""ANSI foreground colours, one for each process in turn."""
OWN = "penstock"
"""The name before the supervisor's own lines."""
MAX_LINE_BYTES = 64 << 10
"""A longer line is shown in pieces."""


class Console:
    """Writes whole lines. Colour on a terminal only, and not where NO_COLOR is set (no-color.org)."""

    def __init__(
        self, names: list[str], out: TextIO | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.out = sys.stderr if out is None else out
        self.width = max(map(len, [OWN, *names]))
        self.is_terminal = self.out.isatty()
        self.has_colour = self.is_terminal and not environment.get("NO_COLOR")
        self.colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}

    def write(self, name: str, line: str) -> None:
        prefix = f"{name:<{self.width}} |"
        colour = self.colours.get(name)
        if self.has_colour:
            prefix = f"\x1b[{'1' if colour is None else colour}m{prefix}\x1b[0m"
        with contextlib.suppress(BrokenPipeError):
            print(prefix, line, file=self.out, flush=True)

    def say(self, line: str) -> None:
        """A line of the supervisor's own."""
        self.write(OWN, line)


class LineSplitter:
    """Cuts what a process writes into lines, within a bound."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > MAX_LINE_BYTES:
            whole.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        return [line.decode(errors="replace").rstrip("\r") for line in whole]

    def end(self) -> list[str]:
        """What came after the last line's end."""
        return self.feed(b"\n") if self._rest else []
