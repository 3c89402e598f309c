"""`penstock-spark run`: finds Java, starts the Spark session and metrics, runs the query. Called by `root`."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.config.addresses import join_host_port
from penstock_spark.cli.common import SparkExitCode, fail
from penstock_spark.cli.run_output import LineOutput, TerminalOutput
from penstock_spark.jobs.kinds.dlq_replay import SKIPPED
from penstock_spark.jobs.run import java, leftovers
from penstock_spark.jobs.run.failures import cause
from penstock_spark.jobs.run.figures import RunStatistics
from penstock_spark.jobs.run.session import settings
from penstock_spark.jobs.run.stopping import StopSignal
from penstock_spark.jobs.run.supervisor import EndReason, JobOutcome, LagWatch, supervisor
from penstock_spark.jobs.spec.kinds import Audit
from penstock_spark.jobs.spec.specs import JobSpec, SourceSpec, StreamJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_CODES = {
    EndReason.FINISHED: SparkExitCode.OK,
    EndReason.STOPPED: SparkExitCode.OK,
    EndReason.FAILED: SparkExitCode.FAILED,
    EndReason.GAVE_UP: SparkExitCode.GAVE_UP,
}


def run_job(job: JobSpec) -> SparkExitCode:
    """Run a job to its end. Return the exit code."""
    try:
        java.prepare()
    except java.JavaMissing as e:
        fail(str(e), SparkExitCode.NO_JAVA)
    stop = StopSignal()
    # Before the session: pyspark installs its own SIGINT handler if no other handler is set.
    with signals(stop):
        remove_leftovers(job)
        spark = create_session(job)
        try:
            with signals(stop):
                return run_audit(spark, job, stop) if isinstance(job, Audit) else run_stream(spark, job, stop)
        finally:
            end_session(spark)


@contextlib.contextmanager
def signals(stop: StopSignal) -> Iterator[None]:
    """SIGTERM and SIGINT stop the job at the end of a batch; a second signal stops it immediately."""

    def handle_signal(number: int, _: object) -> None:
        if stop.is_set():
            raise SystemExit(SparkExitCode.INTERRUPTED)
        stop.set()

    before = {number: signal.signal(number, handle_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def remove_leftovers(job: JobSpec) -> None:
    """Remove executors of a dead driver of this pod. A failure is reported and does not stop the job."""
    try:
        count = leftovers.remove(settings(job))
    except leftovers.Unreachable as e:
        print(f"cannot remove executors of an earlier driver: {e}", file=sys.stderr, flush=True)
        return
    if count:
        print(f"removed executors of an earlier driver: {count}", file=sys.stderr, flush=True)


def create_session(job: JobSpec) -> SparkSession:
    """Start the Spark session and track its progress; exit with GAVE_UP if Spark does not start."""
    from penstock_spark import track
    from penstock_spark.jobs.run.session import session

    try:
        spark = session(job)
        track(spark)
    except Exception as e:
        fail(f"cannot start Spark: {cause(e)}", SparkExitCode.GAVE_UP)
    return spark


def end_session(spark: SparkSession) -> None:
    """Stop the session."""
    # The call fails if the JVM is gone already.
    with contextlib.suppress(Exception):
        spark.stop()


def run_audit(spark: SparkSession, job: Audit, stop: StopSignal) -> SparkExitCode:
    """Run an audit and print its report."""
    from penstock_spark.cli.audit_report import print_report
    from penstock_spark.jobs.kinds.audit import AuditRetriesExhausted, run

    try:
        report = run(spark, job, stop, LineOutput().failed)
    except AuditRetriesExhausted as e:
        fail(str(e), SparkExitCode.GAVE_UP)
    except Exception as e:
        fail(cause(e), SparkExitCode.FAILED)
    print_report(report)
    return SparkExitCode.OK if report.is_clean else SparkExitCode.DIFFERENT


def run_stream(spark: SparkSession, job: JobSpec, stop: StopSignal) -> SparkExitCode:
    """Run a streaming job with metrics, lag and progress output."""
    from penstock_spark.jobs.launcher import start

    assert isinstance(job, StreamJob), "every kind but audit is a streaming query"
    figures = RunStatistics(job.name, str(type(job).__struct_config__.tag), time.time)
    with serve_metrics(job, figures), run_output() as show:
        source = getattr(job, "source", None)
        if isinstance(source, SourceSpec):
            LagWatch(source, figures, stop).start()
        outcome = supervisor(job, lambda: start(spark, job), figures, show, stop).run()
    return report_outcome(outcome, figures)


@contextlib.contextmanager
def serve_metrics(job: JobSpec, figures: RunStatistics) -> Iterator[None]:
    """Serve the job's metrics in the context, if it has a port for them."""
    if job.metrics is None:
        yield
        return
    try:
        close = figures.serve(job.metrics)
    except OSError as e:
        address = join_host_port(job.metrics.host, job.metrics.port)
        fail(f'cannot serve metrics on "{address}": {e.strerror}; set metrics.port', SparkExitCode.USAGE)
    try:
        yield
    finally:
        close()


@contextlib.contextmanager
def run_output() -> Iterator[LineOutput]:
    """Yield the output of a run: a status line on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield LineOutput()
        return
    terminal = TerminalOutput()
    try:
        yield terminal
    finally:
        terminal.close()


def report_outcome(outcome: JobOutcome, figures: RunStatistics) -> SparkExitCode:
    """Print how the run ended. Return its exit code."""
    code = EXIT_CODES[outcome.ended]
    if outcome.message:
        fail(outcome.message, code)
    counts = "".join(f", {what} {count:,}" for what, count in figures.totals.items() if what != "rows")
    print(f"{outcome.ended.value}: {figures.rows:,} rows in {figures.batches} batches{counts}", file=sys.stderr)
    return SparkExitCode.SKIPPED if code is SparkExitCode.OK and figures.totals.get(SKIPPED) else code
