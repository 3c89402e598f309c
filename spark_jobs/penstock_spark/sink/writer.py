"""The classes that Spark calls to write: `df.write` and `writeStream` of format "penstock".

Spark creates a writer in a Python process of the driver, a new one for each batch, and pickles it to the tasks. It
commits and aborts a batch job with a copy of that writer, but a streaming batch with a writer that another process
creates from the options alone. So the data for a commit comes with the tasks' messages. If no task has sent one, there
is nothing to commit, and the transaction service has seen each task fail.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock_spark.link.worker_gc import freeze_loaded_objects
from penstock_spark.model.errors import InvalidOption, PenstockSparkError
from penstock_spark.options.sink import DeliveryGuarantee, SinkOptions
from penstock_spark.sink.attempts import RESTART, BatchFailed
from penstock_spark.sink.columns import SinkColumns, sink_columns
from penstock_spark.sink.driver import SinkDriver, find_driver
from penstock_spark.sink.messages import AbortMessage, CommitMessage, PlanMessage
from penstock_spark.sink.rendezvous import executors_host, find_service
from penstock_spark.sink.service_client import (
    ANSWER_MARGIN_S,
    ServiceEndpoint,
    ServiceTimeouts,
    ServiceUnreachable,
    call_service,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

BATCH_PROPERTY, QUERY_PROPERTY = "streaming.sql.batchId", "sql.streaming.queryId"
"""Local properties with the batch and query of a task."""


@dataclass
class TaskMessage(WriterCommitMessage):
    """Result of a task. `wrote`: it has opened the transaction. `skipped`: rows of a batch that an earlier run has
    committed."""

    task: int
    rows: int
    size_bytes: int
    skipped: int = 0
    attempt: str = ""
    wrote: bool = False
    query_id: str = ""


@dataclass(frozen=True)
class WriterTask:
    """State of a task's write, pickled. Without `endpoint` the batch is written at least once."""

    options: SinkOptions
    columns: SinkColumns
    streaming: bool
    attempt: str
    endpoint: ServiceEndpoint | None

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of a task; runs in the task."""
        from penstock_spark.sink.task import TaskIdentity, TaskTransaction, TaskWriter  # not needed to plan

        freeze_loaded_objects()
        context = TaskContext.get()
        assert context is not None, "Spark calls this in tasks"
        identity = TaskIdentity(context.partitionId(), context.attemptNumber())
        # A batch write inside foreachBatch is recognised as repeated only if the user gives it a transactional id: two
        # writes of one batch with a common id would be mistaken for each other.
        if self.streaming or self.options.transactional_id is not None:
            batch_id, query_id = context.getLocalProperty(BATCH_PROPERTY), context.getLocalProperty(QUERY_PROPERTY)
            identity = TaskIdentity(identity.number, identity.attempt_number, query_id or "", int(batch_id or -1))
        transaction = None if self.endpoint is None else TaskTransaction(self.endpoint, self.attempt)
        with TaskWriter(self.options, self.columns, identity, transaction) as task:
            written = task.write(batches)
        return TaskMessage(
            identity.number,
            written.rows,
            written.size_bytes,
            written.skipped,
            self.attempt,
            written.wrote,
            identity.query_id,
        )


def plan(options: SinkOptions, columns: SinkColumns, streaming: bool) -> WriterTask:
    """Plan a batch in the driver; starts no transaction yet."""
    attempt = uuid.uuid4().hex
    if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        return WriterTask(options, columns, streaming, attempt, None)
    driver = find_driver()
    check_speculation(driver)
    service = find_service(driver, starts=True)
    call_service(service, plan_of(options, attempt), ANSWER_MARGIN_S)
    host = executors_host(driver, options.connection.bootstrap)
    return WriterTask(options, columns, streaming, attempt, ServiceEndpoint(host, service.port, service.token))


def check_speculation(driver: SinkDriver) -> None:
    """Raise `InvalidOption` if Spark may run speculative copies of tasks."""
    if driver.speculates:
        raise InvalidOption(
            "spark.speculation is true, and a second copy of a task would write its rows twice; set "
            'spark.speculation=false, or "penstock.delivery" to "at-least-once"'
        )


def plan_of(options: SinkOptions, attempt: str) -> PlanMessage:
    """Return the plan of a run."""
    return PlanMessage(
        attempt=attempt,
        connection=options.connection,
        transactional_id=options.transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
        topic=options.topic,
        skips_repeated=options.skips_repeated,
    )


def commit(options: SinkOptions, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
    """Commit a batch; returns once the commit is decided. Raises `BatchFailed` (`BatchDiffers` if a restart does not
    help), `ServiceUnreachable`."""
    found = [message for message in messages if isinstance(message, TaskMessage)]
    if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        return
    attempts = {message.attempt for message in found}
    if len(found) < len(messages) or len(attempts) > 1:
        raise BatchFailed(f"{len(messages)} tasks have written, but only {len(found)} in one run; {RESTART}")
    tasks = sorted(message.task for message in found if message.wrote)
    if not attempts:
        return
    try:
        service = find_service(find_driver(), starts=False)
    except ServiceUnreachable:
        if not tasks:
            return
        raise
    skipped = sum(message.skipped for message in found)
    rows = skipped + sum(message.rows for message in found)
    limits = ServiceTimeouts.for_options(options.connection.give_up_ms, options.transaction_timeout_ms)
    call_service(service, CommitMessage(attempts.pop(), batch_id, tasks, rows), limits.answer_s)
    if skipped:
        queries = ", ".join({message.query_id for message in found if message.skipped})
        log.warning(
            "query %s: %d rows of batch %d are not written again: an earlier run has committed the batch",
            queries, skipped, batch_id,
        )  # fmt: skip


def abort(options: SinkOptions, attempts: set[str]) -> None:
    """Abort runs, best effort: otherwise the next run or the transaction timeout aborts them."""
    if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        return
    for attempt in attempts:
        try:
            call_service(
                find_service(find_driver(), starts=False),
                AbortMessage(attempt, "Spark aborted the batch"),
                ANSWER_MARGIN_S,
            )
        except PenstockSparkError as e:
            log.warning("cannot abort a batch: %s", e)


class SparkBatchWriter(DataSourceArrowWriter):
    """Writer for `df.write`: one transaction for the whole job if delivery is exactly-once."""

    def __init__(self, writing: WriterTask) -> None:
        self.writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return self.writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the job."""
        commit(self.writing.options, messages, -1)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the job."""
        abort(self.writing.options, {self.writing.attempt})


class SparkStreamWriter(DataSourceStreamArrowWriter):
    """Writer for `writeStream`. The instance that commits does not know the plan."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self.options, self.columns = options, columns
        self._writing: WriterTask | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Plan a run of a batch: Spark pickles only the writer that it plans a batch with."""
        if self._writing is None:
            self._writing = plan(self.options, self.columns, streaming=True)
        return {"options": self.options, "columns": self.columns, "_writing": self._writing}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        assert self._writing is not None, "Spark calls this on the pickled writer"
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch."""
        commit(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort a batch."""
        abort(self.options, {message.attempt for message in messages if isinstance(message, TaskMessage)})


def batch_writer(given: Mapping[str, Any], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer for `df.write`. Raises `InvalidOption`, naming the option or the column."""
    if overwrite:
        raise InvalidOption('a topic cannot be overwritten; use mode("append")')
    options = parsed(given)
    return SparkBatchWriter(plan(options, sink_columns(schema, options.topic), streaming=False))


def stream_writer(given: Mapping[str, Any], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer for `writeStream`. Raises `InvalidOption`.

    `overwrite` is output mode "complete": each batch holds the whole result, which is appended, as in Spark's sink.
    """
    options = parsed(given)
    return SparkStreamWriter(options, sink_columns(schema, options.topic))


def parsed(given: Mapping[str, Any]) -> SinkOptions:
    """Parse the options and log their warnings."""
    options = SinkOptions.parse(given)
    for warning in options.warnings:
        log.warning(warning)
    return options
