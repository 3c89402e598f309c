"""Sends encoded batches to partition leaders: several in flight, retried in order, with bounded memory.

`task` adds batches from Spark's thread and waits on the `EncodedBytesBudget`; everything else runs on the link's loop.
A batch is retried until it is acknowledged, or until `give_up_ms` have passed since its first failure. The first batch
that cannot be sent fails the sender, because the task must then fail.

A lane holds the batches of one partition and sends while its partition is held: always if the task has its own producer
id, else from a grant of the transaction service until the batches that waited at the grant are acknowledged (see
`grants`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from penstock.client.cluster import ClusterConnections
from penstock.client.connection import ClientConnection
from penstock.client.errors import BrokerError, ClientError, error_code
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock_spark.encode.ports import EncodedBatch
from penstock_spark.model.errors import PenstockSparkError, Unavailable
from penstock_spark.sink.grants import SEQUENCES
from penstock_spark.sink.messages import Partition
from penstock_spark.sink.partition_lanes import EncodedBytesBudget, PartitionLane, PendingBatch
from penstock_spark.sink.transactions import EPOCH_ENDED

RESPONSE_MARGIN = 1.25
MAX_TRANSACTIONAL_VERSION = 11
"""Produce version 12 implies transactions v2 (KIP-890)."""
OUT_OF_ORDER = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)


class SendingFailed(PenstockSparkError):
    """A batch was not acknowledged; the message names the partition and the broker's error."""


class RowsRefused(SendingFailed):
    """A broker rejects a batch for its content or its principal; a retry would fail again."""


ROW_ERRORS = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class PartitionLeases(Protocol):
    """Source of the right to write to partitions; `service_client.TaskSession` in a transaction."""

    async def acquire(self, partition: Partition) -> int:
        """Wait until the partition is this task's. Return its next sequence number."""

    async def release(self, partition: Partition, next_sequence: int) -> None:
        """Give the partition back."""


@dataclass(slots=True)
class SenderSettings:
    """Settings of a sender. Without `transactional_id`, batches have their sequence numbers already, or need none."""

    transactional_id: str | None
    acks: int
    request_bytes: int
    in_flight: int
    request_timeout_ms: int
    give_up_ms: int


@dataclass(slots=True)
class BrokerConnection:
    """State of the connection to one broker."""

    in_flight: int = 0
    connection: ClientConnection | None = None
    connecting: bool = False
    draining: bool = False
    ready: dict[Partition, PartitionLane] = field(default_factory=dict)


class BatchSender:
    """Sends the batches of one task. Create it on the loop; call `put` through `loop.call_soon_threadsafe`."""

    def __init__(
        self,
        cluster: ClusterConnections,
        settings: SenderSettings,
        budget: EncodedBytesBudget,
        leases: PartitionLeases | None,
    ) -> None:
        self.cluster, self.settings, self.budget, self.leases = cluster, settings, budget, leases
        self.loop = asyncio.get_running_loop()
        self.failure: BaseException | None = None
        self._lanes: dict[Partition, PartitionLane] = {}
        self._brokers: dict[int, BrokerConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unacknowledged = 0
        self._idle = asyncio.Event()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._closed = False

    def put(self, partition: Partition, batch: EncodedBatch) -> None:
        """Add a batch whose bytes are acquired from the budget."""
        if self._closed:
            self.budget.release(len(batch.data))
            return
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = PartitionLane(partition, held=self.leases is None)
        lane.waiting.append(PendingBatch(batch, lane.next_order))
        lane.next_order += 1
        self._unacknowledged += 1
        self._advance(lane)

    async def finish(self) -> None:
        """Wait until all batches are acknowledged and all partitions released. Raises the sender's failure."""
        while self.failure is None and (self._unacknowledged or self._tasks or any(self._brokers_busy())):
            self._idle.clear()
            await self._idle.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Stop immediately; batches in flight may be written."""
        self._closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _brokers_busy(self) -> list[bool]:
        return [broker.in_flight > 0 for broker in self._brokers.values()]

    # --- lanes

    def _advance(self, lane: PartitionLane) -> None:
        """Start the next step of a lane: acquire, release or send."""
        if self._closed or self.failure is not None:
            return
        granted = self.leases is not None
        if granted and not lane.held:
            if lane.waiting and not lane.acquiring:
                lane.acquiring = True
                self._spawn(self._acquire(lane))
            return
        if granted and lane.is_spent:
            lane.held = False
            self._spawn(self._release(lane))
            return
        if not lane.may_send(granted):
            return
        leader = self.cluster.metadata.leader(*lane.partition)
        if leader < 0:
            self._check_deadline(lane.waiting[0], lane, "it has no leader")
            self.cluster.invalidate()
            self._schedule_retry()
            return
        self._brokers.setdefault(leader, BrokerConnection()).ready[lane.partition] = lane
        self._drain(leader)

    async def _acquire(self, lane: PartitionLane) -> None:
        assert self.leases is not None, "lanes of a task's own producer are always held"
        lane.next_sequence = await self.leases.acquire(lane.partition)
        lane.held, lane.acquiring = True, False
        lane.quota = len(lane.waiting)
        lane.recovering = True
        self._advance(lane)

    async def _release(self, lane: PartitionLane) -> None:
        assert self.leases is not None, "lanes of a task's own producer are never released"
        await self.leases.release(lane.partition, lane.next_sequence)
        self._advance(lane)

    # --- requests

    def _drain(self, node: int) -> None:
        """Send what is ready for a broker. Not reentrant: lanes that become ready at once (acks=0) are served by the
        running call instead of a nested one."""
        broker = self._brokers[node]
        if broker.draining:
            return
        broker.draining = True
        try:
            self._send_ready(node, broker)
        finally:
            broker.draining = False

    def _send_ready(self, node: int, broker: BrokerConnection) -> None:
        while broker.ready and broker.in_flight < self.settings.in_flight and self.failure is None:
            connection = broker.connection
            if connection is None or connection.closed or connection.expiring or not connection.writable:
                if not broker.connecting:
                    broker.connecting = True
                    self._spawn(self._connect(node, broker))
                return
            lanes = self._collect(broker)
            if lanes:
                self._send(node, broker, connection, lanes)

    def _collect(self, broker: BrokerConnection) -> list[tuple[PartitionLane, PendingBatch]]:
        """Pop one batch of each ready lane, as long as they fit into a request."""
        sent: list[tuple[PartitionLane, PendingBatch]] = []
        size_bytes = 0
        granted = self.leases is not None
        for partition in list(broker.ready):
            lane = broker.ready[partition]
            if not lane.may_send(granted):
                del broker.ready[partition]
                continue
            size_bytes += len(lane.waiting[0].data)
            if sent and size_bytes > self.settings.request_bytes:
                break
            del broker.ready[partition]
            batch = lane.waiting.popleft()
            if granted and batch.sequence < 0:
                batch.stamp(lane.next_sequence)
                lane.next_sequence = (lane.next_sequence + batch.records) % SEQUENCES
                lane.quota -= 1
            lane.in_flight.append(batch)
            sent.append((lane, batch))
            if lane.may_send(granted):
                broker.ready[partition] = lane
        return sent

    def _send(
        self,
        node: int,
        broker: BrokerConnection,
        connection: ClientConnection,
        sent: list[tuple[PartitionLane, PendingBatch]],
    ) -> None:
        settings = self.settings
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for lane, batch in sent:
            by_topic.setdefault(lane.partition[0], []).append(PartitionProduceData(lane.partition[1], batch.data))
        request = ProduceRequest(
            transactional_id=settings.transactional_id,
            acks=settings.acks,
            timeout_ms=settings.request_timeout_ms,
            topic_data=[TopicProduceData(name=topic, partition_data=data) for topic, data in by_topic.items()],
        )
        try:
            if settings.acks == 0:
                connection.send_only(request)
                for lane, batch in sent:
                    self._complete(lane, batch)
                return
            future = connection.send(
                request,
                ProduceResponse,
                timeout_ms=settings.request_timeout_ms * RESPONSE_MARGIN,
                max_version=None if settings.transactional_id is None else MAX_TRANSACTIONAL_VERSION,
            )
        except ClientError as e:
            self._request_failed(sent, e)
            return
        broker.in_flight += 1
        future.add_done_callback(partial(self._on_response, node, broker, sent))

    async def _connect(self, node: int, broker: BrokerConnection) -> None:
        try:
            broker.connection = await self.cluster.connection(node)
            await self._wait_writable(node, broker.connection)
        except ClientError as e:
            if not e.retriable:
                raise
            lanes = list(broker.ready.values())
            broker.ready.clear()
            self.cluster.invalidate()
            for lane in lanes:
                if lane.waiting:
                    self._check_deadline(lane.waiting[0], lane, str(e))
            self._schedule_retry()
        finally:
            broker.connecting = False
        if not self._closed:
            self._drain(node)

    async def _wait_writable(self, node: int, connection: ClientConnection) -> None:
        """Wait until the broker has read what was written: with acks=0 nothing else shows that it does not. Raises
        `Unavailable`, `ClientError`."""
        try:
            async with asyncio.timeout(self.settings.give_up_ms / 1000):
                await connection.drained()
        except TimeoutError:
            error = Unavailable(
                f"broker {node} at {connection.address} has not read the requests sent to it within "
                f"{self.settings.give_up_ms} ms (kafka.delivery.timeout.ms)"
            )
            self._fail(error)
            await connection.close()  # the next task opens another
            raise error from None

    # --- answers

    def _on_response(
        self,
        node: int,
        broker: BrokerConnection,
        sent: list[tuple[PartitionLane, PendingBatch]],
        future: asyncio.Future[ProduceResponse],
    ) -> None:
        broker.in_flight -= 1
        self._idle.set()
        error = None if future.cancelled() else future.exception()
        if self._closed or future.cancelled():
            return
        if isinstance(error, ClientError):
            self._request_failed(sent, error)
        elif error is not None:
            self._fail(error)
        else:
            answers = {
                (topic.name, p.index): p for topic in future.result().responses for p in topic.partition_responses
            }
            for lane, batch in sent:
                self._on_batch_response(lane, batch, answers.get(lane.partition))
        self._drain(node)

    def _on_batch_response(
        self, lane: PartitionLane, batch: PendingBatch, answer: PartitionProduceResponse | None
    ) -> None:
        if answer is None:
            self._retry(lane, batch, ClientError("the response lacks the partition"))
            return
        code = error_code(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._complete(lane, batch)
            return
        error = BrokerError(code, "", answer.error_message)
        follows_a_failed_one = any(other.order < batch.order for other in (*lane.in_flight, *lane.waiting))
        if error.retriable or (code in OUT_OF_ORDER and follows_a_failed_one):
            self._retry(lane, batch, error)
        else:
            advice = cure(code, batch, self.settings.transactional_id is not None)
            kind = RowsRefused if code in ROW_ERRORS else SendingFailed
            self._fail(kind(f"{name(lane.partition)}: {batch.records} rows were not written: {error}{advice}"))

    def _request_failed(self, sent: list[tuple[PartitionLane, PendingBatch]], error: ClientError) -> None:
        for lane, batch in sent:
            if error.retriable:
                self._retry(lane, batch, error)
            else:
                self._fail(SendingFailed(f"{name(lane.partition)}: {batch.records} rows were not written: {error}"))

    def _retry(self, lane: PartitionLane, batch: PendingBatch, error: ClientError) -> None:
        lane.put_back(batch)
        self._check_deadline(batch, lane, str(error))
        self.cluster.invalidate()
        self._schedule_retry()

    def _check_deadline(self, batch: PendingBatch, lane: PartitionLane, why: str) -> None:
        """Record the first failure of a batch; fail the sender once `give_up_ms` have passed since then."""
        now = self.loop.time()
        if batch.failing_since < 0:
            batch.failing_since = now
        elif now - batch.failing_since > self.settings.give_up_ms / 1000:
            self._fail(
                Unavailable(
                    f"{name(lane.partition)}: {batch.records} rows were not acknowledged within "
                    f"{self.settings.give_up_ms} ms (kafka.delivery.timeout.ms): {why}"
                )
            )

    def _complete(self, lane: PartitionLane, batch: PendingBatch) -> None:
        lane.in_flight.remove(batch)
        lane.recovering = False
        self._failures = 0
        self._unacknowledged -= 1
        self.budget.release(len(batch.data))
        self._idle.set()
        self._advance(lane)

    def _schedule_retry(self) -> None:
        if self._retry_timer is None and not self._closed:
            self._retry_timer = self.loop.call_later(self.cluster.backoff.delay_s(self._failures), self._retry_all)
            self._failures += 1

    def _retry_all(self) -> None:
        self._retry_timer = None
        for lane in self._lanes.values():
            if lane.waiting:
                self._advance(lane)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.budget.fail(self.failure)
        self._idle.set()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._idle.set()


def cure(code: ErrorCode, batch: PendingBatch, transactional: bool) -> str:
    """Return how to fix a rejected batch; empty if unknown."""
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        if batch.records == 1:
            return f"; one row has {len(batch.data)} bytes: raise the topic's max.message.bytes"
        return f'; the batch has {len(batch.data)} bytes: lower "kafka.batch.size" or raise max.message.bytes'
    if code == ErrorCode.INVALID_TIMESTAMP:
        return (
            "; column \"timestamp\" has a time further from the broker's clock than the topic's "
            "message.timestamp.before.max.ms and message.timestamp.after.max.ms allow: null means the time of writing"
        )
    if transactional and code in EPOCH_ENDED:
        return '; the batch took longer than "kafka.transaction.timeout.ms", or a newer run took over its transaction'
    return ""


def name(partition: Partition) -> str:
    """Return `topic-partition`."""
    return f"{partition[0]}-{partition[1]}"
