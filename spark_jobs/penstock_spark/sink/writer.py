"""The classes that Spark calls to write: `df.write` and `writeStream` of format "penstock".

What runs where: Spark makes a writer in a Python process of the driver, for each batch anew, and pickles it to the
tasks. It commits and aborts a batch job with a copy of that writer, but a streaming batch with a writer that is made
anew in another process, from the options alone. So what a commit has to know comes with the tasks' messages; and where
no task has one, there is nothing to commit, and the transaction service has seen each of them fail.
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

from penstock_spark.link.standing import begin_task
from penstock_spark.model.errors import InvalidOption, PenstockSparkError
from penstock_spark.options.sink import DeliveryGuarantee, SinkOptions
from penstock_spark.sink.attempts import RESTART, BatchFailed
from penstock_spark.sink.columns import Columns, columns_of
from penstock_spark.sink.driver import SinkDriver, find_driver
from penstock_spark.sink.messages import AbortMessage, CommitMessage, PlanMessage
from penstock_spark.sink.rendezvous import executors_host, service_of
from penstock_spark.sink.service_client import (
    ANSWER_MARGIN_S,
    ServiceEndpoint,
    ServiceTimeouts,
    ServiceUnreachable,
    ask,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

BATCH_PROPERTY, QUERY_PROPERTY = "streaming.sql.batchId", "sql.streaming.queryId"
"""Local properties by which Spark tells its tasks what they belong to."""


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task of a batch has done. `wrote`: it opened the transaction. `skipped`: rows of a batch that an earlier
    run has committed."""

    task: int
    rows: int
    size_bytes: int
    skipped: int = 0
    attempt: str = ""
    wrote: bool = False
    query_id: str = ""


@dataclass(frozen=True)
class WriterTask:
    """What a task needs, pickled. Without `endpoint` the batch is written at least once."""

    options: SinkOptions
    columns: Columns
    streaming: bool
    attempt: str
    endpoint: ServiceEndpoint | None

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        from penstock_spark.sink.task import TaskPlace, TaskTransaction, TaskWriter  # not needed to plan

        begin_task()
        context = TaskContext.get()
        assert context is not None, "Spark calls this in tasks"
        place = TaskPlace(context.partitionId(), context.attemptNumber())
        # A batch write inside of foreachBatch is told from its repetition where it has an id of its own: two writes of
        # one batch that share an id would take each other for one.
        if self.streaming or self.options.transactional_id is not None:
            batch_id, query_id = context.getLocalProperty(BATCH_PROPERTY), context.getLocalProperty(QUERY_PROPERTY)
            place = TaskPlace(place.number, place.attempt_number, query_id or "", int(batch_id or -1))
        transaction = None if self.endpoint is None else TaskTransaction(self.endpoint, self.attempt)
        with TaskWriter(self.options, self.columns, place, transaction) as task:
            written = task.write(batches)
        return TaskMessage(
            place.number, written.rows, written.size_bytes, written.skipped, self.attempt, written.wrote, place.query_id
        )


def plan(options: SinkOptions, columns: Columns, streaming: bool) -> WriterTask:
    """In the driver, before a batch; begins nothing yet."""
    attempt = uuid.uuid4().hex
    if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        return WriterTask(options, columns, streaming, attempt, None)
    driver = find_driver()
    check_speculation(driver)
    service = service_of(driver, starts=True)
    ask(service, plan_of(options, attempt), ANSWER_MARGIN_S)
    host = executors_host(driver, options.connection.bootstrap)
    return WriterTask(options, columns, streaming, attempt, ServiceEndpoint(host, service.port, service.token))


def check_speculation(driver: SinkDriver) -> None:
    if driver.speculates:
        raise InvalidOption(
            "spark.speculation is true: a second copy of a task would write its rows twice, so 'penstock.delivery' "
            "cannot be exactly-once: set spark.speculation=false"
        )


def plan_of(options: SinkOptions, attempt: str) -> PlanMessage:
    return PlanMessage(
        attempt=attempt,
        connection=options.connection,
        transactional_id=options.transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
        topic=options.topic,
        skips_repeated=options.skips_repeated,
    )


def commit(options: SinkOptions, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
    """Returns when the batch is committed for good. Raises `BatchFailed` (`BatchDiffers` where no restart helps),
    `ServiceUnreachable`."""
    found = [message for message in messages if isinstance(message, TaskMessage)]
    if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        return
    attempts = {message.attempt for message in found}
    if len(found) < len(messages) or len(attempts) > 1:
        raise BatchFailed(f"{len(messages)} tasks have written, and {len(found)} of one run say so: {RESTART}")
    tasks = sorted(message.task for message in found if message.wrote)
    if not attempts:
        return
    try:
        service = service_of(find_driver(), starts=False)
    except ServiceUnreachable:
        if not tasks:
            return
        raise
    skipped = sum(message.skipped for message in found)
    rows = skipped + sum(message.rows for message in found)
    limits = ServiceTimeouts.of(options.connection.give_up_ms, options.transaction_timeout_ms)
    ask(service, CommitMessage(attempts.pop(), batch_id, tasks, rows), limits.answer_s)
    if skipped:
        queries = ", ".join({message.query_id for message in found if message.skipped})
        log.warning(
            "query %s: %d rows of batch %d are not written again: an earlier run has committed that batch",
            queries, skipped, batch_id,
        )  # fmt: skip


def abort(options: SinkOptions, attempts: set[str]) -> None:
    """Best effort: what is not aborted now is by the next run, or by the brokers when its time is over."""
    if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        return
    for attempt in attempts:
        try:
            ask(
                service_of(find_driver(), starts=False),
                AbortMessage(attempt, "Spark aborted the batch"),
                ANSWER_MARGIN_S,
            )
        except PenstockSparkError as e:
            log.warning("a batch was not aborted: %s", e)


class SparkBatchWriter(DataSourceArrowWriter):
    """For `df.write`: one transaction for the whole job where it is written exactly once."""

    def __init__(self, writing: WriterTask) -> None:
        self.writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self.writing.options, messages, -1)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self.writing.options, {self.writing.attempt})


class SparkStreamWriter(DataSourceStreamArrowWriter):
    """For `writeStream`. The one that commits was not told what was planned."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self.options, self.columns = options, columns
        self._writing: WriterTask | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles the writer that it plans a batch with, and only that one: here a run of a batch begins."""
        if self._writing is None:
            self._writing = plan(self.options, self.columns, streaming=True)
        return {"options": self.options, "columns": self.columns, "_writing": self._writing}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        assert self._writing is not None, "Spark calls this on the pickled writer"
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort(self.options, {message.attempt for message in messages if isinstance(message, TaskMessage)})


def batch_writer(given: Mapping[str, Any], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Raises `InvalidOption`, naming the option or the column."""
    if overwrite:
        raise InvalidOption("a topic cannot be overwritten: use mode('append')")
    options = parsed(given)
    return SparkBatchWriter(plan(options, columns_of(schema, options.topic), streaming=False))


def stream_writer(given: Mapping[str, Any], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """`overwrite` is output mode "complete": each batch holds the whole result, which is appended, as Spark's Kafka
    sink does. Raises `InvalidOption`."""
    options = parsed(given)
    return SparkStreamWriter(options, columns_of(schema, options.topic))


def parsed(given: Mapping[str, Any]) -> SinkOptions:
    options = SinkOptions.parse(given)
    for warning in options.warnings:
        log.warning(warning)
    return options
