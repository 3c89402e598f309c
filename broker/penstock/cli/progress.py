"""A progress display on standard error, shown on terminals only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.progress


class ProgressDisplay:
    """Shows a counter, or a bar if `total` is set, while its `with` block runs.

    Displays nothing if standard error is not a terminal, or if `quiet`.
    """

    def __init__(self, what: str, *, total: int | None = None, quiet: bool = False) -> None:
        self._what, self._total = what, total
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        self._quiet = quiet or not sys.stderr.isatty()

    def __enter__(self) -> ProgressDisplay:
        if not self._quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = [SpinnerColumn(), TextColumn("{task.description}")]
            counts = [BarColumn(), MofNCompleteColumn()] if self._total else [TextColumn("{task.completed:,}")]
            self._bar = Bar(*columns, *counts, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, count: int, what: str | None = None) -> None:
        """Set the count, and replace the description if `what` is set."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=count, description=what or self._what)
