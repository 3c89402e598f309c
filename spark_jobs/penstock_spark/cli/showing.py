"""How a run is told of: a table that grows on a terminal, plain lines elsewhere. Called by `run`."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from penstock_spark.jobs.run.figures import BatchDone, Figures


def describe(done: BatchDone, figures: Figures) -> str:
    """A batch in a line."""
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
    """One line for each batch, with the time: what a log is to hold."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self._out = out

    def _line(self, text: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        print(f"{now} {text}", file=self._out, flush=True)

    def started(self, attempt: int) -> None:
        self._line("started" if not attempt else f"started again from the checkpoint ({attempt})")

    def batch(self, done: BatchDone, figures: Figures) -> None:
        self._line(describe(done, figures))

    def idle(self, figures: Figures) -> None:
        pass

    def failed(self, text: str, again_in_s: float) -> None:
        self._line(f"failed: {text}; starts again in {again_in_s:.0f} s")

    def stopping(self) -> None:
        self._line("stopping at the end of the batch")


class TerminalOutput(LineOutput):
    """Lines, and below them one that changes: what is known between batches."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        super().__init__(out)
        from rich.console import Console

        self._status = Console(file=out).status("starting")
        self._status.start()

    def _line(self, text: str) -> None:
        self._status.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def idle(self, figures: Figures) -> None:
        lag = f", lag {figures.lag:,}" if figures.lag is not None else ""
        waiting = "waiting for records" if figures.batches else "first batch"
        self._status.update(f"{waiting}: {figures.rows:,} rows in {figures.batches} batches{lag}")

    def close(self) -> None:
        self._status.stop()
