"""Keeps a job's query alive: starts it, tells of its batches, starts it again from its checkpoint, stops it.

Called by `penstock-spark run`. Everything that waits here can be ended by `stop`, which a signal sets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from penstock_spark.jobs.run import topics
from penstock_spark.jobs.run.failures import cause, is_gone, may_pass
from penstock_spark.jobs.run.figures import BatchDone, Figures, batch_of, lag
from penstock_spark.jobs.run.stopping import StopSignal
from penstock_spark.jobs.spec.specs import RestartSpec, SourceSpec, StreamJob
from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.model.ranges import LATEST, READ_COMMITTED, READ_UNCOMMITTED

POLL_S = 0.5
LAG_EVERY_S = 5.0
ENDING_POLL_S = 0.1


class RunningQuery(Protocol):
    """What is needed of Spark's StreamingQuery."""

    @property
    def recentProgress(self) -> Sequence[Any]: ...  # noqa: N802

    @property
    def status(self) -> dict[str, Any]: ...

    def awaitTermination(self, timeout: int | None = None) -> bool | None: ...  # noqa: N802

    def stop(self) -> None: ...


class RunReporter(Protocol):
    """Where a run is told of."""

    def started(self, attempt: int) -> None: ...

    def batch(self, done: BatchDone, figures: Figures) -> None: ...

    def idle(self, figures: Figures) -> None: ...

    def failed(self, text: str, again_in_s: float) -> None: ...

    def stopping(self) -> None: ...


class EndReason(Enum):
    """How a run ended."""

    FINISHED = "finished"
    """A job that ends by itself has done what there was."""
    STOPPED = "stopped"
    FAILED = "failed"
    """Of something that lasts."""
    GAVE_UP = "gave up"
    """Of something that might pass, too often."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    ended: EndReason
    message: str = ""


class JobSupervisor:
    """Runs one job's query until it ends for good."""

    def __init__(
        self,
        start: Callable[[], RunningQuery],
        restart: RestartSpec,
        figures: Figures,
        show: RunReporter,
        stop: StopSignal,
        stop_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._restart = restart
        self._figures = figures
        self._show = show
        self._stop = stop
        self._stop_timeout_s = stop_timeout_s
        self._clock = clock
        self._failures = 0
        """In a row, without a batch between them."""
        self._last_batch = -1

    def run(self) -> JobOutcome:
        while not self._stop.is_set():
            query: RunningQuery | None = None
            try:
                query = self._start()
                self._show.started(self._figures.restarts)
                return self._follow(query)
            except Exception as e:
                if query is not None:
                    self._tell(query)
                outcome = self._failed(e)
                if outcome is not None:
                    return outcome
        return JobOutcome(EndReason.STOPPED)

    def _follow(self, query: RunningQuery) -> JobOutcome:
        while True:
            ended = query.awaitTermination(POLL_S)  # type: ignore[arg-type]
            told = self._tell(query)
            if ended:
                return JobOutcome(EndReason.STOPPED if self._stop.is_set() else EndReason.FINISHED)
            if self._stop.is_set():
                self._show.stopping()
                self._end(query)
                return JobOutcome(EndReason.STOPPED)
            if not told:
                self._show.idle(self._figures)

    def _tell(self, query: RunningQuery) -> int:
        """Tells of the batches that have ended since; returns how many."""
        told = 0
        for progress in query.recentProgress:
            done = batch_of(progress)
            if done is None or done.batch <= self._last_batch:
                continue
            told += 1
            self._last_batch = done.batch
            self._failures = 0
            self._figures.batch_done(done)
            self._show.batch(done, self._figures)
        return told

    def _end(self, query: RunningQuery) -> None:
        """At a batch's end, so that nothing is done twice; after a time in the middle, which costs only that."""
        deadline = self._clock() + self._stop_timeout_s
        while self._clock() < deadline:
            if self._tell(query) or not query.status.get("isTriggerActive"):
                break
            if query.awaitTermination(ENDING_POLL_S):  # type: ignore[arg-type]
                return
        query.stop()
        self._tell(query)

    def _failed(self, error: Exception) -> JobOutcome | None:
        """None: start again."""
        if self._stop.is_set():
            # What a query says that was told to stop is no news; it goes on from the checkpoint.
            return JobOutcome(EndReason.STOPPED)
        text = cause(error)
        if not may_pass(error):
            return JobOutcome(EndReason.FAILED, text)
        if is_gone(error):
            return JobOutcome(EndReason.GAVE_UP, f"Spark's JVM has ended: {text}")
        self._failures += 1
        if self._failures > self._restart.attempts:
            times = f" ({self._failures} times in a row)" if self._failures > 1 else ""
            return JobOutcome(EndReason.GAVE_UP, f"{text}{times}")
        wait_s = backoff_s(self._restart, self._failures)
        self._figures.restarted()
        self._show.failed(text, wait_s)
        self._stop.wait(wait_s)
        return None


def backoff_s(restart: RestartSpec, failures: int) -> float:
    """Doubles from failure to failure, up to a limit."""
    doubled = restart.backoff.seconds * 2.0 ** min(failures - 1, 40)
    return min(doubled, restart.max_backoff.seconds)


class LagWatch:
    """Asks brokers where topics end, now and then, beside the query: brokers that are away must hold up nothing."""

    def __init__(self, source: SourceSpec, figures: Figures, stop: StopSignal) -> None:
        self._source = source
        self._figures = figures
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        link = topics.link(self._source.brokers, self._source.options)
        isolation = READ_COMMITTED if self._source.isolation == "read_committed" else READ_UNCOMMITTED
        while not self._stop.wait(LAG_EVERY_S):
            done = self._figures.last
            if done is None or not done.ends:
                continue
            try:
                latest = link.offsets(dict.fromkeys(done.ends, LATEST), isolation)
            except PenstockSparkError:
                continue
            self._figures.lag_is(lag(done.ends, latest))


def supervisor(
    job: StreamJob, start: Callable[[], RunningQuery], figures: Figures, show: RunReporter, stop: StopSignal
) -> JobSupervisor:
    """For a job as its file says it."""
    return JobSupervisor(start, job.restart, figures, show, stop, job.stop_timeout.seconds)
