"""A run of a batch is committed when exactly the tasks that Spark counts have written all rows, and otherwise fails;
its result is final."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.sink.attempts import Attempt, BatchDiffers, BatchFailed, LastBatch, Stage
from penstock_spark.sink.messages import AcquireMessage, CommitMessage, OpenMessage, PlanMessage, ReleaseMessage

A = ("t", 0)
ROWS = 100


def plan(transactional_id: str | None = None, skips_repeated: bool = False) -> PlanMessage:
    return PlanMessage("run-1", ConnectionOptions("localhost:9092"), transactional_id, 60_000, "t", skips_repeated)


def opening(task: int, attempt_number: int = 0, query: str = "q", batch: int = 7) -> OpenMessage:
    return OpenMessage("run-1", query, batch, task, attempt_number)


def opened(tasks: int = 1) -> Attempt:
    """Return an attempt in which task n writes over connection 100 + n."""
    attempt = Attempt(plan())
    for task in range(tasks):
        attempt.open(100 + task, opening(task))
    attempt.opened(5, 1, None)
    return attempt


def test_the_first_task_that_opens_begins_the_transaction_and_the_others_use_it() -> None:
    attempt = Attempt(plan())
    assert attempt.open(100, opening(0)) is True
    assert attempt.open(101, opening(1)) is False


def test_the_transactional_id_is_the_options_else_the_querys_else_the_runs_own() -> None:
    given = Attempt(plan("mine"))
    given.open(1, opening(0))
    assert given.transactional_id == "mine"
    assert opened().transactional_id == "penstock-spark-q"
    batch_job = Attempt(plan())
    batch_job.open(1, opening(0, query="", batch=-1))
    assert batch_job.transactional_id == "penstock-spark-run-1"
    assert not batch_job.marks_batches


def test_a_batch_whose_tasks_are_done_is_committed_once() -> None:
    attempt = opened(2)
    attempt.complete_task(100)
    attempt.complete_task(101)
    assert attempt.commit(CommitMessage("run-1", 7, [1, 0], ROWS)) is True
    attempt.committed()
    assert attempt.commit(CommitMessage("run-1", 7, [0, 1], ROWS)) is False, "asked again, because the answer was lost"


def test_a_batch_without_rows_is_committed_without_a_transaction() -> None:
    attempt = Attempt(plan())
    assert attempt.commit(CommitMessage("run-1", 7, [], ROWS)) is False
    assert attempt.stage is Stage.COMMITTED


def test_a_batch_that_an_earlier_run_committed_is_not_committed_again() -> None:
    attempt = Attempt(plan())
    attempt.open(100, opening(0))
    attempt.opened(5, 1, LastBatch(7, ROWS))
    attempt.complete_task(100)
    assert attempt.commit(CommitMessage("run-1", 7, [0], ROWS)) is False


def repeated(last: LastBatch, skips_repeated: bool = False) -> Attempt:
    """Return an attempt of batch 7 with complete tasks, for brokers whose last batch is `last`."""
    attempt = Attempt(plan(skips_repeated=skips_repeated))
    attempt.open(100, opening(0))
    attempt.opened(5, 1, last)
    attempt.complete_task(100)
    return attempt


@pytest.mark.parametrize("last", [LastBatch(7, ROWS - 1), LastBatch(7, ROWS + 1), LastBatch(7, 0), LastBatch(8, ROWS)])
def test_a_batch_that_is_not_what_was_committed_is_refused_with_the_cure(last: LastBatch) -> None:
    attempt = repeated(last)
    with pytest.raises(BatchDiffers, match=r'checkpoint.*option "penstock\.repeated\.batch"'):
        attempt.commit(CommitMessage("run-1", 7, [0], ROWS))
    with pytest.raises(BatchDiffers):
        attempt.commit(CommitMessage("run-1", 7, [0], ROWS))


@pytest.mark.parametrize("last", [LastBatch(7, 1), LastBatch(9, ROWS)])
def test_it_is_skipped_where_the_option_says_so(last: LastBatch) -> None:
    assert repeated(last, skips_repeated=True).commit(CommitMessage("run-1", 7, [0], ROWS)) is False


def test_a_batch_whose_rows_nobody_noted_is_taken_for_the_one_that_was_committed() -> None:
    assert repeated(LastBatch(7, -1)).commit(CommitMessage("run-1", 7, [0], ROWS)) is False


def test_a_batch_behind_the_last_one_is_written() -> None:
    assert repeated(LastBatch(6, 5)).commit(CommitMessage("run-1", 7, [0], ROWS)) is True


def second_attempt(attempt: Attempt) -> None:
    attempt.open(200, opening(5, attempt_number=1))


def same_task_again(attempt: Attempt) -> None:
    attempt.open(200, opening(0))


def other_batch(attempt: Attempt) -> None:
    attempt.open(200, opening(5, batch=8))


def give_back_what_it_has_not(attempt: Attempt) -> None:
    attempt.release(100, ReleaseMessage(A, 1))


def done_while_holding(attempt: Attempt) -> None:
    attempt.acquire(100, 1, AcquireMessage([A]))
    attempt.complete_task(100)


def ask_for_nothing(attempt: Attempt) -> None:
    attempt.acquire(100, 1, AcquireMessage([]))


def write_without_opening(attempt: Attempt) -> None:
    attempt.acquire(300, 1, AcquireMessage([A]))


def commit_while_writing(attempt: Attempt) -> None:
    attempt.commit(CommitMessage("run-1", 7, [0], ROWS))


def commit_with_unknown_task(attempt: Attempt) -> None:
    attempt.complete_task(100)
    attempt.commit(CommitMessage("run-1", 7, [0, 1], ROWS))


def commit_without_a_task_that_wrote(attempt: Attempt) -> None:
    attempt.complete_task(100)
    attempt.commit(CommitMessage("run-1", 7, [], ROWS))


def commit_other_batch(attempt: Attempt) -> None:
    attempt.complete_task(100)
    attempt.commit(CommitMessage("run-1", 6, [0], ROWS))


@pytest.mark.parametrize(
    "wrong",
    [
        second_attempt,
        same_task_again,
        other_batch,
        give_back_what_it_has_not,
        done_while_holding,
        ask_for_nothing,
        write_without_opening,
        commit_while_writing,
        commit_with_unknown_task,
        commit_without_a_task_that_wrote,
        commit_other_batch,
    ],
)
def test_what_could_double_or_lose_rows_fails_the_batch(wrong: Callable[[Attempt], None]) -> None:
    attempt = opened()
    with pytest.raises(BatchFailed, match="batch 7 of query q"):
        wrong(attempt)
    assert attempt.stage is Stage.FAILED
    with pytest.raises(BatchFailed):
        attempt.commit(CommitMessage("run-1", 7, [0], ROWS))


def test_a_second_attempt_names_the_cure() -> None:
    with pytest.raises(BatchFailed, match=r"restart the query from its checkpoint.*spark\.speculation=false"):
        second_attempt(opened())


def test_a_connection_that_ends_before_its_task_is_done_fails_the_batch() -> None:
    attempt = opened()
    attempt.connection_lost(100)
    assert attempt.stage is Stage.FAILED


def test_a_connection_that_ends_after_its_task_is_done_changes_nothing() -> None:
    attempt = opened()
    attempt.complete_task(100)
    attempt.connection_lost(100)
    assert attempt.commit(CommitMessage("run-1", 7, [0], ROWS)) is True


def test_a_task_that_comes_after_the_end_is_refused_and_the_commit_stands() -> None:
    attempt = opened()
    attempt.complete_task(100)
    attempt.commit(CommitMessage("run-1", 7, [0], ROWS))
    attempt.committed()
    with pytest.raises(BatchFailed, match="too late"):
        attempt.open(200, opening(1))
    with pytest.raises(BatchFailed):
        attempt.open(200, opening(0, attempt_number=1))
    assert attempt.stage is Stage.COMMITTED


def test_the_first_reason_of_a_failure_is_the_one_that_is_told() -> None:
    attempt = opened()
    attempt.fail("first")
    attempt.fail("second")
    with pytest.raises(BatchFailed, match="first"):
        attempt.check_not_failed()


class Runs(RuleBasedStateMachine):
    """Any order of actions of tasks, executors and Spark. After a commit no task of the batch was written twice, all
    that wrote are counted, and each of them was complete."""

    def __init__(self) -> None:
        super().__init__()
        self.attempt = Attempt(plan())
        self.connection = 0
        self.opens: list[int] = []
        self.done: set[int] = set()
        self.of: dict[int, int] = {}
        self.lost = False
        self.retried = False

    @rule(task=st.integers(0, 2), number=st.sampled_from([0, 0, 0, 1]))
    def open(self, task: int, number: int) -> None:
        self.connection += 1
        ended = self.attempt.stage in (Stage.COMMITTED, Stage.COMMITTING)
        self.retried |= number > 0 and not ended
        try:
            begins = self.attempt.open(self.connection, opening(task, number))
        except BatchFailed:
            return
        self.opens.append(task)
        self.of[self.connection] = task
        if begins:
            self.attempt.opened(1, 1, None)

    @precondition(lambda self: self.of)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from(sorted(self.of)))
        try:
            self.attempt.complete_task(connection)
        except BatchFailed:
            return
        self.done.add(self.of[connection])

    @precondition(lambda self: self.of)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from(sorted(self.of)))
        ended = self.attempt.stage is Stage.COMMITTED
        self.attempt.connection_lost(connection)
        self.lost |= not ended and self.of[connection] not in self.done

    @rule(tasks=st.sets(st.integers(0, 2)))
    def commit(self, tasks: set[int]) -> None:
        before = self.attempt.stage
        try:
            if self.attempt.commit(CommitMessage("run-1", 7, sorted(tasks), ROWS)):
                self.attempt.committed()
        except BatchFailed:
            return
        if before is not Stage.COMMITTED:
            assert tasks == set(self.opens) == self.done
            assert len(self.opens) == len(set(self.opens))
            assert not self.lost
            assert not self.retried

    @invariant()
    def a_failure_is_told(self) -> None:
        assert (self.attempt.failure is not None) == (self.attempt.stage is Stage.FAILED)


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=100, stateful_step_count=12)
