"""Runs in a task: encodes and sends rows, and ends when the brokers have acknowledged them all.

With at-least-once delivery, a task has its own idempotent producer, which the worker process keeps for the next task,
so that brokers need not remember one per task. With exactly-once delivery, all tasks of a batch share the producer of
its transaction, and the transaction service grants the partitions (`service`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa

from penstock.client import ClientIdentity, ClusterConnections, UnknownTopic
from penstock_spark.encode.batches import batch_edges, encode
from penstock_spark.encode.murmur import partitions
from penstock_spark.encode.ports import EncodableRows, ProducerId
from penstock_spark.link.link import Link
from penstock_spark.link.retries import retry_until_deadline
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.options.sink import SinkOptions
from penstock_spark.sink.batch_sender import BatchSender, SenderSettings
from penstock_spark.sink.columns import SinkColumns
from penstock_spark.sink.grants import SEQUENCES
from penstock_spark.sink.messages import OpenedReply, OpenMessage, Partition
from penstock_spark.sink.partition_lanes import EncodedBytesBudget
from penstock_spark.sink.service_client import ServiceEndpoint, ServiceTimeouts, TaskSession
from penstock_spark.sink.splitting import Splitter

BUFFER_BYTES = 32 << 20
"""Limit of encoded and unacknowledged bytes in a task."""
IDLE_LIMIT_S = 600.0
"""Maximum idle time of a producer: brokers may expire producer ids that are unused longer."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """A task of a batch; `query_id` is "" and `batch_id` -1 for a batch job."""

    number: int
    attempt_number: int
    query_id: str = ""
    batch_id: int = -1


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """Endpoint of the transaction service, and its key for this run of the batch."""

    endpoint: ServiceEndpoint
    attempt: str


@dataclass(slots=True)
class WriteResult:
    """What a task wrote. `wrote`: the task has opened the batch's transaction. `skipped`: rows of a batch that an
    earlier run has committed."""

    rows: int = 0
    size_bytes: int = 0
    wrote: bool = False
    skipped: int = 0


@dataclass(slots=True)
class ReusableProducer:
    """A producer id with the next sequence number of each partition."""

    producer: ProducerId
    sequences: dict[Partition, int] = field(default_factory=dict)
    used_s: float = 0.0


class IdleProducers:
    """Idle producers of this process by connection. A task pops one, and puts it back when all is acknowledged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[ConnectionOptions, ReusableProducer] = {}

    def pop(self, connection: ConnectionOptions) -> ReusableProducer | None:
        """Remove and return a producer that is not expired."""
        with self._lock:
            found = self._idle.pop(connection, None)
        return found if found is not None and time.monotonic() - found.used_s < IDLE_LIMIT_S else None

    def put(self, connection: ConnectionOptions, producer: ReusableProducer) -> None:
        """Store a producer."""
        producer.used_s = time.monotonic()
        with self._lock:
            self._idle[connection] = producer


_idle = IdleProducers()


class TaskWriter:
    """Writes the rows of one task. A context manager: an exception drops what is in flight."""

    def __init__(
        self,
        options: SinkOptions,
        columns: SinkColumns,
        identity: TaskIdentity,
        transaction: TaskTransaction | None = None,
    ) -> None:
        self.options, self.columns, self.identity, self.transaction = options, columns, identity, transaction
        self.written = WriteResult()
        self._link = Link.to(options.connection)
        self._budget = EncodedBytesBudget(max(BUFFER_BYTES, 2 * options.batch_bytes))
        self._counts: dict[str, int] = {}
        self._sending: BatchSender | None = None
        self._session: TaskSession | None = None
        self._producer = ReusableProducer(ProducerId(-1, -1, False))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._sending is not None or self._session is not None:
            self._link.run(lambda _: self._close())

    def write(self, batches: Iterator[pa.RecordBatch]) -> WriteResult:
        """Write rows; return once all are acknowledged. Raises `PenstockSparkError`."""
        if self.transaction is not None and self.identity.attempt_number:
            self._start()  # a second attempt fails the batch, even if it has no rows
        splitter = Splitter(
            self.columns,
            self.options.topic,
            self.options.batch_bytes,
            partitions,
            batch_edges,
            self._partitions_of,
            self.identity.number,
        )
        for partition, rows in splitter.split(batches, now_ms):
            if self._sending is None and not self.written.skipped and not self._start():
                self.written.skipped += len(rows.value)
                continue
            if self.written.skipped:
                self.written.skipped += len(rows.value)
                continue
            self._put(partition, rows)
        if self._sending is not None:
            self._link.run(lambda _: self._finish())
            if self.transaction is None and self.options.idempotent:
                _idle.put(self.options.connection, self._producer)
        return self.written

    def _start(self) -> bool:
        """Get a producer; False if an earlier run of the batch has written all of it."""
        options = self.options
        if self.transaction is not None:
            opened = self._link.run(lambda _: self._open())
            self.written.wrote = True
            if opened.is_committed:
                self._link.run(lambda _: self._complete())
                return False
            self._producer = ReusableProducer(ProducerId(opened.producer_id, opened.epoch, True))
            transactional_id = opened.transactional_id
        else:
            transactional_id = None
            if options.idempotent:
                self._producer = _idle.pop(options.connection) or self._link.run(self._new_producer)
        settings = SenderSettings(
            transactional_id, options.acks, options.request_bytes, options.in_flight,
            options.connection.request_timeout_ms, options.connection.give_up_ms,
        )  # fmt: skip

        async def new_sender(cluster: ClusterConnections) -> BatchSender:
            return BatchSender(cluster, settings, self._budget, self._session)

        self._sending = self._link.run(new_sender)
        return True

    def _put(self, partition: Partition, rows: EncodableRows) -> None:
        """Encode rows and pass them to the sender; wait while too many bytes are unacknowledged."""
        assert self._sending is not None, "rows without a sender"
        options = self.options
        sequence = -1
        if self.transaction is not None:
            sequence = 0  # the grant sets it later
        elif options.idempotent:
            sequence = self._producer.sequences.get(partition, 0)
        for batch in encode(rows, options.codec, options.batch_bytes, self._producer.producer, sequence):
            self._budget.acquire(len(batch.data))
            self.written.rows += batch.records
            self.written.size_bytes += len(batch.data)
            self._sending.loop.call_soon_threadsafe(self._sending.put, partition, batch)
        if sequence >= 0 and self.transaction is None:
            self._producer.sequences[partition] = (sequence + len(rows.value)) % SEQUENCES

    def _partitions_of(self, topic: str, highest: int) -> int:
        """Return a topic's partition count; refresh it if a row names a higher partition (`highest`)."""
        count = self._counts.get(topic)
        if count is None or highest >= count:
            give_up_ms = self.options.connection.give_up_ms
            count = self._counts[topic] = self._link.run(
                lambda cluster: retry_until_deadline(
                    cluster,
                    give_up_ms,
                    "writing",
                    lambda: count_partitions(cluster, topic, highest, creates=self.options.creates_topics),
                )
            )
        return count

    # --- on the link's loop

    async def _new_producer(self, cluster: ClusterConnections) -> ReusableProducer:
        identity = ClientIdentity()
        give_up_ms = self.options.connection.give_up_ms
        await retry_until_deadline(cluster, give_up_ms, "a producer id", lambda: identity.renew(cluster))
        return ReusableProducer(ProducerId(identity.producer_id, identity.epoch, False))

    async def _open(self) -> OpenedReply:
        assert self.transaction is not None, "no transaction to open"
        options = self.options
        limits = ServiceTimeouts.for_options(options.connection.give_up_ms, options.transaction_timeout_ms)
        self._session = await TaskSession.connect(self.transaction.endpoint, limits)
        task = self.identity
        return await self._session.open(
            OpenMessage(self.transaction.attempt, task.query_id, task.batch_id, task.number, task.attempt_number)
        )

    async def _finish(self) -> None:
        assert self._sending is not None, "nothing to finish"
        await self._sending.finish()
        await self._complete()

    async def _complete(self) -> None:
        if self._session is not None:
            await self._session.complete()

    async def _close(self) -> None:
        if self._sending is not None:
            await self._sending.close()
        if self._session is not None:
            await self._session.close()


async def count_partitions(cluster: ClusterConnections, topic: str, highest: int, *, creates: bool = False) -> int:
    """Return a topic's partition count. Cached metadata may lack a partition that was added. With `creates`, ask the
    brokers to create a missing topic. Raises `ClientError`."""
    try:
        info = await cluster.topic(topic)
    except UnknownTopic:
        if not creates:
            raise
        await cluster.request_creation(topic)
        info = await cluster.topic(topic)
    if highest >= len(info.partitions):
        await cluster.refresh()
        info = await cluster.topic(topic)
    return len(info.partitions)


def now_ms() -> int:
    """Return the wall clock in ms since the epoch."""
    return time.time_ns() // 1_000_000
