"""One run of one batch as the transaction service sees it: sans-io, so that every order of events can be tested.

A run is planned, opened by its first task with rows, written by its tasks, and ends once: committed, or failed. What
makes it fail is anything that could put a row into the topic twice or lose one: a task that ended without saying that
it is done, a second attempt of a task, tasks that Spark does not know of at the commit, a newer run.
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

RESTART = "restart the query from its checkpoint (penstock-spark run does so by itself)"
SET_BACK = (
    ": the checkpoint was set back or changed, or the source gives other rows than it did. Nothing is written. Bring "
    "the query's last checkpoint back; or, where what was written is to stand for this batch, set option "
    "'penstock.repeated.batch' to skip until the query has passed it"
)


class BatchFailed(PenstockSparkError):
    """The transaction of a batch is aborted, or must not be committed; says why and what to do."""


class BatchDiffers(BatchFailed):
    """A batch that was committed comes again and is another one: to skip it would lose rows, to write it would double
    some. No restart helps."""


class LastBatch(NamedTuple):
    """What the brokers have of a query: its last batch that was committed, with its rows (-1: nobody noted them)."""

    batch_id: int
    rows: int


class Stage(Enum):
    PLANNED = "planned"
    """Nobody has opened it: there is no transaction."""
    OPENING = "opening"
    OPEN = "open"
    WRITTEN_BEFORE = "written before"
    """The brokers say that an earlier run of this batch was committed."""
    COMMITTING = "committing"
    COMMITTED = "committed"
    FAILED = "failed"


LIVE = (Stage.OPENING, Stage.OPEN, Stage.COMMITTING)
ENDED = (Stage.COMMITTED, Stage.FAILED)


class Attempt:
    """Connections are numbers that the service gives; each belongs to one task."""

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
        """The connection of each task that opened."""
        self.writing: dict[int, int] = {}
        """The task of each connection that is not done."""

    @property
    def name(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id}" if self.query_id else "the batch write"

    @property
    def transactional_id(self) -> str:
        """What the option says, else one that is the query's for as long as its checkpoint lives."""
        return self.plan.transactional_id or f"penstock-spark-{self.query_id or self.plan.attempt}"

    @property
    def marks_batches(self) -> bool:
        """Whether a run of the same batch after a restart can be told by its number."""
        return bool(self.query_id) and self.batch_id >= 0

    def open(self, connection: int, request: OpenMessage) -> bool:
        """A task begins to write; True where the transaction is to be begun first."""
        if request.attempt_number != 0:
            raise self.fail(
                f"task {request.task} was attempted again (attempt {request.attempt_number}: it failed, its executor "
                "was lost, or speculation is on), and rows of its first attempt may be in the transaction, which is "
                f"aborted: {RESTART}; set spark.speculation=false where it is on"
            )
        self.check_not_failed()
        if self.stage not in (Stage.PLANNED, Stage.OPENING, Stage.OPEN, Stage.WRITTEN_BEFORE):
            raise BatchFailed(f"{self.name} has ended: task {request.task} came too late, its rows are not written")
        if request.task in self.tasks:
            raise self.fail(f"task {request.task} was started twice (a stage was run again): {RESTART}")
        begins = self.stage is Stage.PLANNED
        if begins:
            self.query_id, self.batch_id = request.query_id, request.batch_id
            self.stage = Stage.OPENING
        elif (request.query_id, request.batch_id) != (self.query_id, self.batch_id):
            raise self.fail(f"task {request.task} belongs to batch {request.batch_id} of query {request.query_id!r}")
        self.tasks[request.task] = connection
        self.writing[connection] = request.task
        return begins

    def opened(self, producer_id: int, epoch: int, last: LastBatch | None) -> None:
        """The transaction can be used; or is not needed, where `last` is this batch or a later one."""
        self.check_not_failed()
        assert self.stage is Stage.OPENING, f"{self.name} was opened while {self.stage.value}"
        self.producer_id, self.epoch = producer_id, epoch
        self.last = last
        is_committed = last is not None and self.marks_batches and self.batch_id <= last.batch_id
        self.stage = Stage.WRITTEN_BEFORE if is_committed else Stage.OPEN

    def acquire(self, connection: int, number: int, request: AcquireMessage) -> PartitionGrant | None:
        self._check_writing(connection)
        if not request.candidates:
            raise self.fail("a task asked for no partition")
        return self.grants.acquire(connection, number, request.candidates)

    def release(self, connection: int, request: ReleaseMessage) -> PartitionGrant | None:
        """Who gets the partition next."""
        self._check_writing(connection)
        try:
            return self.grants.release(connection, request.partition, request.next_sequence)
        except GrantNotHeld as e:
            raise self.fail(str(e)) from None

    def done(self, connection: int) -> None:
        """All rows of a task are acknowledged."""
        self.check_not_failed()
        if connection not in self.writing:
            raise self.fail("a task that never opened says that it is done")
        if connection in self.grants.holders.values():
            raise self.fail(f"task {self.writing[connection]} is done and still holds partitions")
        del self.writing[connection]

    def lost(self, connection: int) -> None:
        """A connection has ended. Nothing where its task was done."""
        task = self.writing.pop(connection, None)
        if task is not None and self.stage not in (Stage.FAILED, Stage.COMMITTED):
            self.fail(f"task {task} ended before its rows were acknowledged (it failed, or its executor was lost)")

    def commit(self, request: CommitMessage) -> bool:
        """Whether the transaction is to be committed now; False where there is nothing to do (any more)."""
        self.check_not_failed()
        if self.stage is Stage.PLANNED and not request.tasks:
            self.stage = Stage.COMMITTED
            return False
        if sorted(request.tasks) != sorted(self.tasks):
            raise self.fail(
                f"Spark counts tasks {sorted(request.tasks)} as written, here are {sorted(self.tasks)}: {RESTART}"
            )
        if self.writing:
            raise self.fail(f"tasks {sorted(self.writing.values())} are not done: {RESTART}")
        if self.query_id and request.batch_id not in (-1, self.batch_id):
            raise self.fail(f"batch {request.batch_id} is to be committed: {RESTART}")
        if self.stage is Stage.WRITTEN_BEFORE:
            self._compare(request.rows)
        if self.stage in (Stage.WRITTEN_BEFORE, Stage.COMMITTED):
            self.stage = Stage.COMMITTED
            return False
        if self.stage is not Stage.OPEN:
            raise BatchFailed(f"{self.name} is {self.stage.value} and cannot be committed")
        self.stage = Stage.COMMITTING
        return True

    def committed(self) -> None:
        assert self.stage is Stage.COMMITTING, f"{self.name} was committed while {self.stage.value}"
        self.stage = Stage.COMMITTED

    def _compare(self, rows: int) -> None:
        """A run that repeats a batch has as many rows as were written: else it is not what was written.

        After a crash Spark repeats no batch but the last, so an earlier one means a checkpoint that was set back.
        """
        assert self.last is not None, f"{self.name} was written before, and nobody says when"
        if self.plan.skips_repeated:
            return
        if self.batch_id < self.last.batch_id:
            raise self.fail(f"batch {self.last.batch_id} was committed already{SET_BACK}", BatchDiffers)
        if self.last.rows not in (-1, rows):
            raise self.fail(f"it was committed with {self.last.rows} rows and now has {rows}{SET_BACK}", BatchDiffers)

    def fail(self, reason: str, kind: type[BatchFailed] = BatchFailed) -> BatchFailed:
        """Ends the run; the first reason stays. A run that is committed stays so."""
        error = kind(f"{self.name}: {reason}")
        if self.stage is not Stage.COMMITTED:
            self.failure = self.failure or error
            self.stage = Stage.FAILED
        return error

    def forget_partitions(self) -> None:
        """Of a run that has ended nobody asks for them."""
        assert self.stage in ENDED, f"{self.name} is {self.stage.value} and needs its partitions"
        self.grants, self.added = PartitionGrants(), set()

    def check_not_failed(self) -> None:
        if self.stage is Stage.FAILED:
            assert self.failure is not None, "a failed run says why"
            raise type(self.failure)(str(self.failure))

    def waiting(self) -> Iterable[tuple[int, int]]:
        """(connection, number) of the requests that wait for a partition."""
        return [(waiting.holder, waiting.number) for waiting in self.grants.waiting]

    def _check_writing(self, connection: int) -> None:
        self.check_not_failed()
        if self.stage is not Stage.OPEN or connection not in self.writing:
            raise self.fail("a partition was asked for, or given back, by a task that is not writing")
