"""One run of one batch as the transaction service sees it. Sans-io, so that every order of events can be tested.

A run is planned, opened by its first task with rows, written by its tasks, and ends once: committed or failed. It fails
on anything that could duplicate or lose a row: a task that disconnects before it reports completion, a second attempt
of a task, a commit whose tasks differ from those that wrote, a newer run.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.sink.grants import GrantNotHeld, PartitionGrant, PartitionGrants
from penstock_spark.sink.messages import (
    AcquireMessage,
    CommitMessage,
    OpenMessage,
    Partition,
    PlanMessage,
    ReleaseMessage,
)

RESTART = "restart the query from its checkpoint (penstock-spark run does this itself)"
CHECKPOINT_SET_BACK = (
    "; the checkpoint was set back or changed, or the source returned other rows, and nothing is written: restore the "
    'query\'s last checkpoint, or, to keep what is written for this batch, set option "penstock.repeated.batch" to '
    '"skip" until the query has passed it'
)


class BatchFailed(PenstockSparkError):
    """The transaction of a batch is aborted, or must not be committed; the message says why and what to do."""


class BatchDiffers(BatchFailed):
    """A committed batch was repeated with other content. Skipping it would lose rows, writing it would duplicate some.
    A restart does not help."""


class LastBatch(NamedTuple):
    """A query's last committed batch as stored by the brokers, with its row count (-1: not recorded)."""

    batch_id: int
    rows: int


class Stage(Enum):
    """The state of a run."""

    PLANNED = "planned"
    """No task has opened the run: there is no transaction."""
    OPENING = "opening"
    OPEN = "open"
    ALREADY_COMMITTED = "written before"
    """An earlier run of this batch was committed, according to the brokers."""
    COMMITTING = "committing"
    COMMITTED = "committed"
    FAILED = "failed"


LIVE = (Stage.OPENING, Stage.OPEN, Stage.COMMITTING)
ENDED = (Stage.COMMITTED, Stage.FAILED)


class Attempt:
    """The state of one run. Connections are numbers that the service assigns; each belongs to one task."""

    def __init__(self, plan: PlanMessage) -> None:
        self.plan = plan
        self.stage = Stage.PLANNED
        self.grants = PartitionGrants()
        self.query_id, self.batch_id = "", -1
        self.producer_id = self.epoch = -1
        self.added: set[Partition] = set()
        """Partitions that are part of the transaction."""
        self.last: LastBatch | None = None
        self.failure: BatchFailed | None = None
        self.tasks: dict[int, int] = {}
        """Connection by task, for each task that opened the run."""
        self.writing: dict[int, int] = {}
        """Task by connection, for each task that is not complete."""

    @property
    def name(self) -> str:
        """Description of the run in messages."""
        return f"batch {self.batch_id} of query {self.query_id}" if self.query_id else "the batch write"

    @property
    def transactional_id(self) -> str:
        """The option's value, or an id derived from the query id, which is stable as long as the checkpoint exists."""
        return self.plan.transactional_id or f"penstock-spark-{self.query_id or self.plan.attempt}"

    @property
    def marks_batches(self) -> bool:
        """Whether the batch number is committed with the batch, so that a repeated run is recognised."""
        return bool(self.query_id) and self.batch_id >= 0

    def open(self, connection: int, request: OpenMessage) -> bool:
        """Add a task that starts to write. Return whether the transaction must be started first."""
        if request.attempt_number != 0:
            raise self.fail(
                f"task {request.task} was attempted again (attempt {request.attempt_number}: it failed, its executor "
                "was lost, or speculation is on), and rows of its first attempt may be in the transaction, which is "
                f"aborted; {RESTART}, and set spark.speculation=false if it is on"
            )
        self.check_not_failed()
        if self.stage not in (Stage.PLANNED, Stage.OPENING, Stage.OPEN, Stage.ALREADY_COMMITTED):
            raise BatchFailed(f"{self.name} has ended: task {request.task} is too late, its rows are not written")
        if request.task in self.tasks:
            raise self.fail(f"task {request.task} was started twice (a stage was run again); {RESTART}")
        starts = self.stage is Stage.PLANNED
        if starts:
            self.query_id, self.batch_id = request.query_id, request.batch_id
            self.stage = Stage.OPENING
        elif (request.query_id, request.batch_id) != (self.query_id, self.batch_id):
            raise self.fail(f'task {request.task} belongs to batch {request.batch_id} of query "{request.query_id}"')
        self.tasks[request.task] = connection
        self.writing[connection] = request.task
        return starts

    def opened(self, producer_id: int, epoch: int, last: LastBatch | None) -> None:
        """Record that the transaction is open. No transaction is needed if `last` is this batch or a later one."""
        self.check_not_failed()
        assert self.stage is Stage.OPENING, f"{self.name} was opened while {self.stage.value}"
        self.producer_id, self.epoch = producer_id, epoch
        self.last = last
        is_committed = last is not None and self.marks_batches and self.batch_id <= last.batch_id
        self.stage = Stage.ALREADY_COMMITTED if is_committed else Stage.OPEN

    def acquire(self, connection: int, number: int, request: AcquireMessage) -> PartitionGrant | None:
        """Acquire a partition for a task; None if the request must wait."""
        self._check_writing(connection)
        if not request.candidates:
            raise self.fail("a task requested a partition without candidates")
        return self.grants.acquire(connection, number, request.candidates)

    def release(self, connection: int, request: ReleaseMessage) -> PartitionGrant | None:
        """Release a task's partition. Return the next grant of it, if a request waits."""
        self._check_writing(connection)
        try:
            return self.grants.release(connection, request.partition, request.next_sequence)
        except GrantNotHeld as e:
            raise self.fail(str(e)) from None

    def complete_task(self, connection: int) -> None:
        """Record that all rows of a task are acknowledged."""
        self.check_not_failed()
        if connection not in self.writing:
            raise self.fail("a task that has not opened the batch reports completion")
        if connection in self.grants.holders.values():
            raise self.fail(f"task {self.writing[connection]} reports completion and still holds partitions")
        del self.writing[connection]

    def connection_lost(self, connection: int) -> None:
        """Record that a connection has ended. Fails the run unless its task is complete."""
        task = self.writing.pop(connection, None)
        if task is not None and self.stage not in (Stage.FAILED, Stage.COMMITTED):
            self.fail(f"task {task} ended before its rows were acknowledged (it failed, or its executor was lost)")

    def commit(self, request: CommitMessage) -> bool:
        """Prepare the commit. Return whether the transaction must be committed; False if there is nothing to commit."""
        self.check_not_failed()
        if self.stage is Stage.PLANNED and not request.tasks:
            self.stage = Stage.COMMITTED
            return False
        if sorted(request.tasks) != sorted(self.tasks):
            raise self.fail(
                f"Spark counts tasks {sorted(request.tasks)} as written, the service {sorted(self.tasks)}; {RESTART}"
            )
        if self.writing:
            raise self.fail(f"tasks {sorted(self.writing.values())} are not complete; {RESTART}")
        if self.query_id and request.batch_id not in (-1, self.batch_id):
            raise self.fail(f"Spark commits batch {request.batch_id}, which is not the open one; {RESTART}")
        if self.stage is Stage.ALREADY_COMMITTED:
            self._check_repeated(request.rows)
        if self.stage in (Stage.ALREADY_COMMITTED, Stage.COMMITTED):
            self.stage = Stage.COMMITTED
            return False
        if self.stage is not Stage.OPEN:
            raise BatchFailed(f"{self.name} is {self.stage.value} and cannot be committed")
        self.stage = Stage.COMMITTING
        return True

    def committed(self) -> None:
        """Record that the transaction is committed."""
        assert self.stage is Stage.COMMITTING, f"{self.name} was committed while {self.stage.value}"
        self.stage = Stage.COMMITTED

    def _check_repeated(self, rows: int) -> None:
        """Fail if a repeated batch differs from the committed one: it must be the last one, with the same row count.

        After a crash Spark repeats only the last batch, so an earlier one means a checkpoint that was set back.
        """
        assert self.last is not None, f"{self.name} was committed before, without a record of it"
        if self.plan.skips_repeated:
            return
        if self.batch_id < self.last.batch_id:
            raise self.fail(f"batch {self.last.batch_id} was committed already{CHECKPOINT_SET_BACK}", BatchDiffers)
        if self.last.rows not in (-1, rows):
            message = f"it was committed with {self.last.rows} rows and now has {rows}{CHECKPOINT_SET_BACK}"
            raise self.fail(message, BatchDiffers)

    def fail(self, reason: str, kind: type[BatchFailed] = BatchFailed) -> BatchFailed:
        """Fail the run and return the error; the first reason is kept. A committed run stays committed."""
        error = kind(f"{self.name}: {reason}")
        if self.stage is not Stage.COMMITTED:
            self.failure = self.failure or error
            self.stage = Stage.FAILED
        return error

    def forget_partitions(self) -> None:
        """Free the partitions of a run that has ended."""
        assert self.stage in ENDED, f"{self.name} is {self.stage.value} and needs its partitions"
        self.grants, self.added = PartitionGrants(), set()

    def check_not_failed(self) -> None:
        """Raise the failure of a failed run."""
        if self.stage is Stage.FAILED:
            assert self.failure is not None, "a failed run has a failure"
            raise type(self.failure)(str(self.failure))

    def waiting(self) -> Iterable[tuple[int, int]]:
        """Return (connection, number) of the requests that wait for a partition."""
        return [(waiting.holder, waiting.number) for waiting in self.grants.waiting]

    def _check_writing(self, connection: int) -> None:
        self.check_not_failed()
        if self.stage is not Stage.OPEN or connection not in self.writing:
            raise self.fail("a partition was acquired or released by a task that is not writing")
