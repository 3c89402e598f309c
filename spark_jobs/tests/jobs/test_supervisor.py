"""A supervised query: restarted after temporary errors with growing delays, and stopped at a batch's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.request import urlopen

import pytest
from node_kit import port_of, reserved_port
from pyspark.sql import Row

from penstock.client import TopicPartition
from penstock_spark.jobs.run.failures import cause, may_pass
from penstock_spark.jobs.run.figures import BatchDone, RunStatistics, batch_of, ends_of, lag
from penstock_spark.jobs.run.stopping import StopSignal
from penstock_spark.jobs.run.supervisor import EndReason, JobSupervisor, backoff_s
from penstock_spark.jobs.spec.scalars import Duration
from penstock_spark.jobs.spec.specs import MetricsSpec, RestartSpec
from penstock_spark.model.errors import Refused

AWAY = "penstock_spark.model.errors.Unavailable: no broker of h:9 answers"
WRONG = "pyspark.errors: org.apache.spark ... penstock_spark.model.errors.InvalidOption: option 'x' is wrong\n  at"


def progress(batch: int, rows: int = 10, **more: Any) -> dict[str, Any]:
    return {"batchId": batch, "numInputRows": rows, "durationMs": {"addBatch": 1, "triggerExecution": 500}, **more}


class Script:
    """A query with scripted steps: a batch's progress, an error, or its end (None)."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self._steps = list(steps)
        self.recentProgress: list[Any] = []
        self.stopped = False
        self.before_step: Callable[[], None] = lambda: None

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": bool(self._steps)}

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        self.before_step()
        step = self._steps.pop(0)
        if isinstance(step, str):
            raise RuntimeError(step)
        if step is None:
            return True
        self.recentProgress.append(step)
        return False

    def stop(self) -> None:
        self.stopped = True


class Noted:
    """Records the reports of a run."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def started(self, attempt: int) -> None:
        self.said.append(("started", attempt))

    def batch(self, done: BatchDone, figures: RunStatistics) -> None:
        self.said.append(("batch", done.batch))

    def idle(self, figures: RunStatistics) -> None:
        self.said.append("idle")

    def failed(self, text: str, again_in_s: float) -> None:
        self.said.append(("failed", text, again_in_s))

    def stopping(self) -> None:
        self.said.append("stopping")


class Stop(StopSignal):
    """Returns from waits at once, and records their durations."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return self.is_set()


def run(
    queries: Sequence[Script], restart: RestartSpec | None = None, stop: Stop | None = None
) -> tuple[Any, Noted, Stop]:
    left = list(queries)
    noted, event = Noted(), stop or Stop()
    figures = RunStatistics("job", "archive", lambda: 0.0)
    times = iter(range(10_000))
    supervisor = JobSupervisor(
        lambda: left.pop(0), restart or RestartSpec(), figures, noted, event, 60.0, lambda: float(next(times))
    )
    return supervisor.run(), noted, event


def test_a_query_that_ends_is_finished_and_each_batch_is_told_once() -> None:
    outcome, noted, _ = run([Script([progress(0), progress(1), None])])
    assert outcome.ended is EndReason.FINISHED
    assert [s for s in noted.said if s != "idle"] == [("started", 0), ("batch", 0), ("batch", 1)]


def test_what_may_pass_is_tried_again_and_a_batch_between_makes_pauses_short_again() -> None:
    queries = [Script([AWAY]), Script([AWAY]), Script([progress(0), AWAY]), Script([None])]
    outcome, noted, stop = run(queries, RestartSpec(attempts=2))
    assert outcome.ended is EndReason.FINISHED
    assert stop.waits == [1.0, 2.0, 1.0]
    assert ("failed", "no broker of h:9 answers", 2.0) in noted.said


def test_it_gives_up_when_nothing_comes_through_too_often_in_a_row() -> None:
    outcome, _, stop = run([Script([AWAY]) for _ in range(3)], RestartSpec(attempts=2))
    assert (outcome.ended, outcome.message) == (EndReason.GAVE_UP, "no broker of h:9 answers (3 times in a row)")
    assert len(stop.waits) == 2


def test_a_batch_that_came_through_before_a_failure_is_told_though_nobody_asked_between() -> None:
    script = Script([AWAY])
    script.recentProgress.append(progress(7))
    _, noted, _ = run([script, Script([None])])
    assert ("batch", 7) in noted.said


def test_what_lasts_is_not_tried_again() -> None:
    outcome, _, stop = run([Script([WRONG])])
    assert (outcome.ended, outcome.message, stop.waits) == (EndReason.FAILED, "option 'x' is wrong", [])


def test_what_lasts_is_known_by_its_class_where_it_is_raised_in_the_driver() -> None:
    left: list[Exception] = [Refused("topic flights does not exist"), RuntimeError("never asked for")]

    def start() -> Script:
        raise left.pop(0)

    stop = Stop()
    outcome = JobSupervisor(
        start, RestartSpec(), RunStatistics("job", "archive", lambda: 0.0), Noted(), stop, 1.0
    ).run()
    assert (outcome.ended, outcome.message) == (EndReason.FAILED, "topic flights does not exist")
    assert len(left) == 1


def test_a_start_that_fails_is_tried_again_like_a_batch() -> None:
    left: list[Any] = [RuntimeError(AWAY), Script([None])]

    def start() -> Script:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Script)
        return found

    figures = RunStatistics("job", "archive", lambda: 0.0)
    assert JobSupervisor(start, RestartSpec(), figures, Noted(), Stop(), 1.0).run().ended is EndReason.FINISHED
    assert figures.restarts == 1


def test_stop_waits_for_the_end_of_the_batch() -> None:
    stop = Stop()
    script = Script([progress(0), progress(1), progress(2), progress(3)])
    script.before_step = lambda: stop.set() if len(script.recentProgress) == 1 else None
    outcome, noted, _ = run([script], stop=stop)
    assert outcome.ended is EndReason.STOPPED
    assert script.stopped
    assert noted.said[-1] == ("batch", 2)


def test_stop_waits_no_longer_than_the_job_says() -> None:
    stop = Stop()
    script = Script([{"batchId": 0, "durationMs": {}}] * 1_000)
    script.before_step = stop.set
    outcome, _, _ = run([script], stop=stop)
    assert outcome.ended is EndReason.STOPPED
    assert script.stopped
    assert len(script.recentProgress) < 100


def test_a_failure_while_stopping_is_a_stop() -> None:
    stop = Stop()
    script = Script([AWAY])
    script.before_step = stop.set
    assert run([script], stop=stop)[0].ended is EndReason.STOPPED


def test_without_its_jvm_it_gives_up_at_once_so_that_somebody_starts_the_process_again() -> None:
    def start() -> Script:
        raise ConnectionRefusedError(111, "Connection refused")

    stop = Stop()
    outcome = JobSupervisor(
        start, RestartSpec(), RunStatistics("job", "archive", lambda: 0.0), Noted(), stop, 1.0
    ).run()
    assert (outcome.ended, stop.waits) == (EndReason.GAVE_UP, [])
    assert outcome.message.startswith("Spark's JVM has ended")


def test_pauses_double_up_to_their_limit() -> None:
    restart = RestartSpec(backoff=Duration(500), max_backoff=Duration(3_000))
    assert [backoff_s(restart, n) for n in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff_s(restart, 10_000) == 3.0


@pytest.mark.parametrize(
    ("text", "passes", "said"),
    [
        (AWAY, True, "no broker of h:9 answers"),
        (WRONG, False, "option 'x' is wrong"),
        ("penstock_spark.sink.attempts.BatchFailed: task 3 was attempted again: restart", True, "task 3 was attempted"),
        ("penstock_spark.model.errors.DataLoss: flights-0 5..9 are gone", False, "flights-0 5..9 are gone"),
        (
            "penstock.client.errors.Refused: no\n\nThe above exception was the cause:\n"
            "penstock_spark.model.errors.Unavailable: given up after 2 s",
            True,
            "given up after 2 s",
        ),
        ("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved.", False, "[UNRESOLVED_COLUMN"),
        ("[USER_RAISED_EXCEPTION] flights-0 offset 3: the value is no JSON", False, "flights-0 offset 3: the value is"),
        ("[USER_RAISED_EXCEPTION] t-0 offset 3: no text SQLSTATE: P0001\n\tat x", False, "t-0 offset 3: no text"),
        (
            "[PYTHON_DATA_SOURCE_ERROR] x: Traceback (most recent call last):\n  File x\n    y()\nKeyError: 'z'\n\nat",
            True,
            "KeyError: 'z'",
        ),
        (
            "Traceback (most recent call last):\n  File x\n    y()\nPythonException: An exception was thrown:\n"
            "Traceback (most recent call last):\n  File z\n    y()\nOSError: /lake cannot be written\n\nat",
            True,
            "OSError: /lake cannot be written",
        ),
        ("AnalysisException: [PYTHON_DATA_SOURCE_ERROR] Failed: " + AWAY, True, "no broker of h:9 answers"),
        (
            "penstock_spark.sink.batch_sender.RowsRejected: t-0: 1 rows were not written",
            False,
            "t-0: 1 rows were not written",
        ),
        ("penstock_spark.sink.batch_sender.SendingFailed: t-0: 1 rows were not written", True, "t-0: 1 rows were not"),
        ("penstock_spark.sink.splitting.BadRow: a row names no topic", False, "a row names no topic"),
        ("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff", False, "UnicodeDecodeError: 'utf-8' codec"),
        ("java.net.SocketException: Connection reset", True, "java.net.SocketException"),
        ("OSError: [Errno 28] No space left on device", True, "OSError: [Errno 28] No space"),
    ],
)
def test_what_lasts_is_told_from_what_may_pass_and_the_cause_is_found(text: str, passes: bool, said: str) -> None:
    assert may_pass(text) is passes
    assert cause(text).startswith(said)


def test_progress_without_a_batch_is_no_batch() -> None:
    assert batch_of({"batchId": 4, "numInputRows": 0, "durationMs": {"triggerExecution": 3}}) is None


def test_progress_tells_rows_rate_ends_and_counts() -> None:
    source = {"endOffset": '{"flights": {"0": 5, "1": 7}, "@topics": {"flights": "id"}}'}
    done = batch_of(progress(3, 100, sources=[source], observedMetrics={"penstock": Row(bad=2)}))
    assert done is not None
    assert done == batch_of(progress(3, 100, sources=[source], observedMetrics={"penstock": {"bad": 2}}))
    assert (done.rate, done.observed) == (200.0, {"bad": 2})
    assert done.ends == {TopicPartition("flights", 0): 5, TopicPartition("flights", 1): 7}
    assert lag(done.ends, {TopicPartition("flights", 0): 9, TopicPartition("flights", 2): 4}) == 8


@pytest.mark.parametrize("offset", [None, 5, "x", "[]", '{"logOffset": 3}', '{"a": {"b": 1}}', '{"a": {"0": "x"}}'])
def test_offsets_of_other_sources_are_no_offsets_of_topics(offset: object) -> None:
    assert ends_of(offset) == {}


@pytest.mark.integration
def test_figures_are_served_to_prometheus() -> None:
    figures = RunStatistics("flights", "archive", lambda: 12.0)
    figures.batch_done(BatchDone(1, 500, 250, {"bad": 3}))
    figures.set_lag(42)
    with reserved_port() as reserved:
        stop = figures.serve(MetricsSpec(port=port_of(reserved)))
        try:
            text = urlopen(f"http://127.0.0.1:{port_of(reserved)}/metrics").read().decode()
        finally:
            stop()
    labels = '{job="flights",kind="archive"}'
    assert f"penstock_spark_rows_total{labels} 500.0" in text
    assert f"penstock_spark_lag_records{labels} 42.0" in text
    assert 'penstock_spark_observed_total{job="flights",kind="archive",what="bad"} 3.0' in text
