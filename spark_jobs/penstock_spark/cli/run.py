"""`penstock-spark run`: Java, signals, session, metrics, then the query until it ends. Called by `root`."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.config.addresses import join_host_port
from penstock_spark.cli.common import SparkExitCode, fail
from penstock_spark.cli.showing import LineOutput, TerminalOutput
from penstock_spark.jobs.kinds.dlq_replay import SKIPPED
from penstock_spark.jobs.run import java, leftovers
from penstock_spark.jobs.run.failures import cause
from penstock_spark.jobs.run.figures import Figures
from penstock_spark.jobs.run.session import settings
from penstock_spark.jobs.run.stopping import StopSignal
from penstock_spark.jobs.run.supervisor import EndReason, JobOutcome, LagWatch, supervisor
from penstock_spark.jobs.spec.kinds import Audit
from penstock_spark.jobs.spec.specs import JobSpec, SourceSpec, StreamJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODES = {
    EndReason.FINISHED: SparkExitCode.OK,
    EndReason.STOPPED: SparkExitCode.OK,
    EndReason.FAILED: SparkExitCode.FAILED,
    EndReason.GAVE_UP: SparkExitCode.GAVE_UP,
}


def run_job(job: JobSpec) -> SparkExitCode:
    """Runs a job to its end. The exit code says how that was."""
    try:
        java.prepare()
    except java.JavaMissing as e:
        fail(str(e), SparkExitCode.NO_JAVA)
    stop = StopSignal()
    # Before the session: Spark takes SIGINT for itself, where nobody else has.
    with signals(stop):
        remove_leftovers(job)
        spark = session_of(job)
        try:
            with signals(stop):
                return run_audit(spark, job, stop) if isinstance(job, Audit) else run_stream(spark, job, stop)
        finally:
            end_session(spark)


@contextlib.contextmanager
def signals(stop: StopSignal) -> Iterator[None]:
    """SIGTERM and SIGINT stop the job at a batch's end; the second one does so at once."""

    def asked(number: int, _: object) -> None:
        if stop.is_set():
            raise SystemExit(SparkExitCode.INTERRUPTED)
        stop.set()

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remove_leftovers(job: JobSpec) -> None:
    """Of a driver that died where this one begins; a job can do without."""
    try:
        count = leftovers.remove(settings(job))
    except leftovers.Unreachable as e:
        print(f"executors that a driver left here cannot be removed: {e}", file=sys.stderr, flush=True)
        return
    if count:
        print(f"removed executors of the driver that died here: {count}", file=sys.stderr, flush=True)


def session_of(job: JobSpec) -> SparkSession:
    from penstock_spark import track
    from penstock_spark.jobs.run.session import session

    try:
        spark = session(job)
        track(spark)
    except Exception as e:
        fail(f"Spark does not start: {cause(e)}", SparkExitCode.GAVE_UP)
    return spark


def end_session(spark: SparkSession) -> None:
    # A JVM that is gone already cannot be asked to go.
    with contextlib.suppress(Exception):
        spark.stop()


def run_audit(spark: SparkSession, job: Audit, stop: StopSignal) -> SparkExitCode:
    from penstock_spark.cli.auditing import print_report
    from penstock_spark.jobs.kinds.audit import GaveUp, run

    try:
        report = run(spark, job, stop, LineOutput().failed)
    except GaveUp as e:
        fail(str(e), SparkExitCode.GAVE_UP)
    except Exception as e:
        fail(cause(e), SparkExitCode.FAILED)
    print_report(report)
    return SparkExitCode.OK if report.is_clean else SparkExitCode.DIFFERENT


def run_stream(spark: SparkSession, job: JobSpec, stop: StopSignal) -> SparkExitCode:
    from penstock_spark.jobs.starting import start

    assert isinstance(job, StreamJob), "every kind but audit is a streaming query"
    figures = Figures(job.name, str(type(job).__struct_config__.tag), time.time)
    with serving(job, figures), showing() as show:
        source = getattr(job, "source", None)
        if isinstance(source, SourceSpec):
            LagWatch(source, figures, stop).start()
        outcome = supervisor(job, lambda: start(spark, job), figures, show, stop).run()
    return ended(outcome, figures)


@contextlib.contextmanager
def serving(job: JobSpec, figures: Figures) -> Iterator[None]:
    if job.metrics is None:
        yield
        return
    try:
        close = figures.serve(job.metrics)
    except OSError as e:
        address = join_host_port(job.metrics.host, job.metrics.port)
        fail(f"metrics cannot be served on {address}: {e.strerror}", SparkExitCode.USAGE)
    try:
        yield
    finally:
        close()


@contextlib.contextmanager
def showing() -> Iterator[LineOutput]:
    if not sys.stderr.isatty():
        yield LineOutput()
        return
    terminal = TerminalOutput()
    try:
        yield terminal
    finally:
        terminal.close()


def ended(outcome: JobOutcome, figures: Figures) -> SparkExitCode:
    """Says how it went, in a line."""
    code = CODES[outcome.ended]
    if outcome.message:
        fail(outcome.message, code)
    counts = "".join(f", {what} {count:,}" for what, count in figures.totals.items() if what != "rows")
    print(f"{outcome.ended.value}: {figures.rows:,} rows in {figures.batches} batches{counts}", file=sys.stderr)
    return SparkExitCode.SKIPPED if code is SparkExitCode.OK and figures.totals.get(SKIPPED) else code
