"""Progress output of a run: a status line on a terminal, plain lines elsewhere. Called by `run`."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from penstock_spark.jobs.run.figures import BatchDone, RunStatistics


def describe(done: BatchDone, figures: RunStatistics) -> str:
    """Return a line about a finished batch."""
    parts = [
        f"batch {done.batch}",
        f"{done.rows:,} rows",
        f"{done.rate:,.0f} rows/s",
        f"{done.duration_ms / 1000:.1f} s",
        f"total {figures.rows:,}",
    ]
    if figures.lag is not None:
        parts.append(f"lag {figures.lag:,}")
    parts += [f"{what} {count:,}" for what, count in done.observed.items() if what != "rows"]
    if done.watermark is not None:
        parts.append(f"watermark {done.watermark}")
    return "  ".join(parts)


class LineOutput:
    """One line with a timestamp for each batch, for logs."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out

    def _line(self, text: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        print(f"{now} {text}", file=self._out, flush=True)

    def started(self, attempt: int) -> None:
        """Report that the query started; `attempt` is greater than 0 after a restart."""
        self._line("started" if not attempt else f"restarted from the checkpoint (attempt {attempt})")

    def batch(self, done: BatchDone, figures: RunStatistics) -> None:
        """Report a finished batch."""
        self._line(describe(done, figures))

    def idle(self, figures: RunStatistics) -> None:
        """Report progress between batches."""

    def failed(self, text: str, again_in_s: float) -> None:
        """Report a failure and the seconds until the restart."""
        self._line(f"failed: {text}; restarting in {again_in_s:.0f} s")

    def stopping(self) -> None:
        """Report that the query stops after the current batch."""
        self._line("stopping at the end of the batch")


class TerminalOutput(LineOutput):
    """Lines, and below them a status line that is updated between batches."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        super().__init__(out)
        from rich.console import Console

        self._status = Console(file=out).status("starting")
        self._status.start()

    def _line(self, text: str) -> None:
        self._status.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def idle(self, figures: RunStatistics) -> None:
        """Update the status line."""
        lag = f", lag {figures.lag:,}" if figures.lag is not None else ""
        waiting = "waiting for records" if figures.batches else "first batch"
        self._status.update(f"{waiting}: {figures.rows:,} rows in {figures.batches} batches{lag}")

    def close(self) -> None:
        """Remove the status line."""
        self._status.stop()
