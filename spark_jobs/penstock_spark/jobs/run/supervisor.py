"""Supervises a job's query: starts it, reports its batches, restarts it from its checkpoint, stops it.

Called by `penstock-spark run`. `stop`, which a signal sets, interrupts every wait.
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
from penstock_spark.jobs.run.figures import BatchDone, RunStatistics, batch_of, lag
from penstock_spark.jobs.run.stopping import StopSignal
from penstock_spark.jobs.spec.specs import RestartSpec, SourceSpec, StreamJob
from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.model.ranges import LATEST, READ_COMMITTED, READ_UNCOMMITTED

POLL_S = 0.5
LAG_INTERVAL_S = 5.0
STOP_POLL_S = 0.1


class RunningQuery(Protocol):
    """The part of Spark's StreamingQuery in use."""

    @property
    def recentProgress(self) -> Sequence[Any]:  # noqa: N802
        """Progress of the last batches."""
        ...

    @property
    def status(self) -> dict[str, Any]:
        """State of the query."""
        ...

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query ends."""
        ...

    def stop(self) -> None:
        """Stop the query."""
        ...


class RunReporter(Protocol):
    """Receives the events of a run."""

    def started(self, attempt: int) -> None:
        """Report that the query started; `attempt` is greater than 0 after a restart."""
        ...

    def batch(self, done: BatchDone, figures: RunStatistics) -> None:
        """Report a finished batch."""
        ...

    def idle(self, figures: RunStatistics) -> None:
        """Report that no batch finished since the last call."""
        ...

    def failed(self, text: str, again_in_s: float) -> None:
        """Report a failure and the seconds until the restart."""
        ...

    def stopping(self) -> None:
        """Report that the query stops after the current batch."""
        ...


class EndReason(Enum):
    """Why a run ended."""

    FINISHED = "finished"
    """A job with a defined end has processed its data."""
    STOPPED = "stopped"
    FAILED = "failed"
    """Permanent failure."""
    GAVE_UP = "gave up"
    """Too many transient failures."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a run ended, with an error message if it failed."""

    ended: EndReason
    message: str = ""


class JobSupervisor:
    """Runs one job's query until it ends, with restarts."""

    def __init__(
        self,
        start: Callable[[], RunningQuery],
        restart: RestartSpec,
        figures: RunStatistics,
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
        """Failures in a row, without a finished batch between them."""
        self._last_batch = -1

    def run(self) -> JobOutcome:
        """Run the query until it finishes, stops or fails for good."""
        while not self._stop.is_set():
            query: RunningQuery | None = None
            try:
                query = self._start()
                self._show.started(self._figures.restarts)
                return self._follow(query)
            except Exception as e:
                if query is not None:
                    self._report_batches(query)
                outcome = self._failed(e)
                if outcome is not None:
                    return outcome
        return JobOutcome(EndReason.STOPPED)

    def _follow(self, query: RunningQuery) -> JobOutcome:
        while True:
            ended = query.awaitTermination(POLL_S)  # type: ignore[arg-type]
            reported = self._report_batches(query)
            if ended:
                return JobOutcome(EndReason.STOPPED if self._stop.is_set() else EndReason.FINISHED)
            if self._stop.is_set():
                self._show.stopping()
                self._stop_query(query)
                return JobOutcome(EndReason.STOPPED)
            if not reported:
                self._show.idle(self._figures)

    def _report_batches(self, query: RunningQuery) -> int:
        """Report batches that finished since the last call. Return their number."""
        reported = 0
        for progress in query.recentProgress:
            done = batch_of(progress)
            if done is None or done.batch <= self._last_batch:
                continue
            reported += 1
            self._last_batch = done.batch
            self._failures = 0
            self._figures.batch_done(done)
            self._show.batch(done, self._figures)
        return reported

    def _stop_query(self, query: RunningQuery) -> None:
        """Stop at the end of the batch, so that none is repeated; after the timeout in the middle of it."""
        deadline = self._clock() + self._stop_timeout_s
        while self._clock() < deadline:
            if self._report_batches(query) or not query.status.get("isTriggerActive"):
                break
            if query.awaitTermination(STOP_POLL_S):  # type: ignore[arg-type]
                return
        query.stop()
        self._report_batches(query)

    def _failed(self, error: Exception) -> JobOutcome | None:
        """Handle a failure. Return the outcome, or None to start again."""
        if self._stop.is_set():
            # A stopped query may fail with any error; it continues from the checkpoint.
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
    """Return the delay before the next start: it doubles with each failure, up to a limit."""
    doubled = restart.backoff.seconds * 2.0 ** min(failures - 1, 40)
    return min(doubled, restart.max_backoff.seconds)


class LagWatch:
    """Queries the topics' end offsets at intervals, in a thread: unavailable brokers must not block the supervisor."""

    def __init__(self, source: SourceSpec, figures: RunStatistics, stop: StopSignal) -> None:
        self._source = source
        self._figures = figures
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        link = topics.link(self._source.brokers, self._source.options)
        isolation = READ_COMMITTED if self._source.isolation == "read_committed" else READ_UNCOMMITTED
        while not self._stop.wait(LAG_INTERVAL_S):
            done = self._figures.last
            if done is None or not done.ends:
                continue
            try:
                latest = link.offsets(dict.fromkeys(done.ends, LATEST), isolation)
            except PenstockSparkError:
                continue
            self._figures.set_lag(lag(done.ends, latest))


def supervisor(
    job: StreamJob, start: Callable[[], RunningQuery], figures: RunStatistics, show: RunReporter, stop: StopSignal
) -> JobSupervisor:
    """Return the supervisor of a job."""
    return JobSupervisor(start, job.restart, figures, show, stop, job.stop_timeout.seconds)
