"""Prints results: rich tables on a terminal, plain columns elsewhere, JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

Cell = str | int | float | None


def print_json(document: Any) -> None:
    """Print a JSON document, indented on a terminal, else on one line."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    print(json.dumps(document, indent=2 if sys.stdout.isatty() else None, ensure_ascii=not is_unicode))


def cell_text(cell: Cell) -> str:
    """Return a table cell as text."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    return f"{cell:,}" if isinstance(cell, int) else printable(cell)


def printable(value: str) -> str:
    """Escape control characters: a name from a broker must not move the terminal's cursor."""
    return value if value.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in value)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str | None = None, out: TextIO | None = None
) -> None:
    """Print a table; numeric columns are right-aligned. Without a terminal: no colour, two spaces between columns."""
    stream = out or sys.stdout
    right = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    if stream.isatty():
        print_rich(columns, rows, right, title, stream)
        return
    if title:
        print(title, file=stream)
    cells = [[column.upper() for column in columns], *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        print("  ".join(aligned).rstrip(), file=stream)


def print_rich(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[bool], title: str | None, stream: TextIO
) -> None:
    """Print a table with rich."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, header_style="bold")
    for column, numbers in zip(columns, right, strict=True):
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell_text(cell)) for cell in row))
    Console(file=stream).print(table)


def size_text(size_bytes: int) -> str:
    """Return bytes in a binary unit, such as "1.5 MiB"; "-" if negative."""
    if size_bytes < 0:
        return "-"
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
