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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from penstock.client import (
    BrokerError,
    ClientConnection,
    ClientError,
    ClusterConnections,
    ErrorCode,
    PartitionProduceResponse,
    ProduceDispatcher,
    TopicPartition,
)
from penstock_spark.encode.ports import EncodedBatch
from penstock_spark.model.errors import PenstockSparkError, Unavailable
from penstock_spark.sink.messages import Partition
from penstock_spark.sink.partition_lanes import EncodedBytesBudget, PartitionLane, PendingBatch
from penstock_spark.sink.transactions import EPOCH_ENDED

OUT_OF_ORDER = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)


class SendingFailed(PenstockSparkError):
    """A batch was not acknowledged; the message names the partition and the broker's error."""


class RowsRejected(SendingFailed):
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


class BatchSender(ProduceDispatcher[PartitionLane, PendingBatch]):
    """Sends the batches of one task. Create it on the loop; call `put` through `loop.call_soon_threadsafe`."""

    def __init__(
        self,
        cluster: ClusterConnections,
        settings: SenderSettings,
        budget: EncodedBytesBudget,
        leases: PartitionLeases | None,
    ) -> None:
        super().__init__(
            cluster,
            acks=settings.acks,
            max_in_flight=settings.in_flight,
            max_request_bytes=settings.request_bytes,
            request_timeout_ms=settings.request_timeout_ms,
            transactional_id=settings.transactional_id,
        )
        self.settings, self.budget, self.leases = settings, budget, leases
        self.loop = asyncio.get_running_loop()
        self.failure: BaseException | None = None
        self._lanes: dict[TopicPartition, PartitionLane] = {}
        self._unacknowledged = 0
        self._idle = asyncio.Event()

    def put(self, partition: Partition, batch: EncodedBatch) -> None:
        """Add a batch whose bytes are acquired from the budget."""
        if self._closed:
            self.budget.release(len(batch.data))
            return
        tp = TopicPartition(*partition)
        lane = self._lanes.get(tp)
        if lane is None:
            lane = self._lanes[tp] = PartitionLane(tp, is_granted=self.leases is not None)
        lane.append(batch)
        self._unacknowledged += 1
        self.poke(lane)

    async def finish(self) -> None:
        """Wait until all batches are acknowledged and all partitions released. Raises the sender's failure."""
        while self.failure is None and not self._is_finished:
            self._idle.clear()
            await self._idle.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def _is_finished(self) -> bool:
        is_held = any(lane.is_granted and lane.held for lane in self._lanes.values())
        return not (self._unacknowledged or self._tasks or self._in_flight or is_held)

    # --- lanes

    def _prepare(self, queue: PartitionLane) -> bool:
        """Acquire or release the partition if that is the lane's next step, else return whether it can send."""
        if queue.is_granted and not queue.held:
            if queue.waiting and not queue.acquiring:
                queue.acquiring = True
                self._spawn(self._acquire(queue))
            return False
        if queue.is_spent:
            queue.held = False
            self._spawn(self._release(queue))
            return False
        return queue.is_ready

    async def _acquire(self, lane: PartitionLane) -> None:
        assert self.leases is not None, "lanes of a task's own producer are always held"
        lane.next_sequence = await self.leases.acquire(lane.tp)
        lane.held, lane.acquiring = True, False
        lane.quota = len(lane.waiting)
        lane.recovering = True
        self.poke(lane)

    async def _release(self, lane: PartitionLane) -> None:
        assert self.leases is not None, "lanes of a task's own producer are never released"
        await self.leases.release(lane.tp, lane.next_sequence)
        self.poke(lane)

    # --- requests

    @property
    def _blocked(self) -> bool:
        return self.failure is not None

    def _pop(self, queue: PartitionLane) -> PendingBatch:
        return queue.pop_batch()

    def _encode(self, batch: PendingBatch) -> bytearray:
        return batch.data

    def _on_unacknowledged(self, batch: PendingBatch) -> None:
        self._complete(batch)

    def _on_obstacle(self, queues: Iterable[PartitionLane], error: ClientError) -> None:
        for lane in queues:
            if not error.retriable:
                self._fail(error)
            elif lane.waiting:
                self._check_deadline(lane.waiting[0], str(error))

    async def _wait_writable(self, node_id: int, connection: ClientConnection) -> None:
        """Wait until the broker has read what was written: with acks=0 nothing else shows that it does not. Raises
        `Unavailable`, `ClientError`."""
        try:
            async with asyncio.timeout(self.settings.give_up_ms / 1000):
                await connection.drained()
        except TimeoutError:
            error = Unavailable(
                f"broker {node_id} at {connection.address} has not read the requests sent to it within "
                f"{self.settings.give_up_ms} ms (kafka.delivery.timeout.ms)"
            )
            self._fail(error)
            await connection.close()  # the next task opens another
            raise error from None

    # --- answers

    def _on_drained(self) -> None:
        self._idle.set()

    def _on_batch_response(self, batch: PendingBatch, answer: PartitionProduceResponse | None) -> None:
        if answer is None:
            self._retry(batch, ClientError("the response lacks the partition"))
            return
        if answer.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._complete(batch)
            return
        error = BrokerError(answer.error_code, "", answer.error_message)
        lane = self._lanes[batch.tp]
        follows_a_failed_one = any(other.order < batch.order for other in (*lane.in_flight, *lane.waiting))
        if error.retriable or (error.code in OUT_OF_ORDER and follows_a_failed_one):
            self._retry(batch, error)
        else:
            advice = cure(error.code, batch, self.settings.transactional_id is not None)
            kind = RowsRejected if error.code in ROW_ERRORS else SendingFailed
            self._fail(kind(f"{batch.tp}: {batch.records} rows were not written: {error}{advice}"))

    def _request_failed(self, batches: list[PendingBatch], error: ClientError, *, sent: bool) -> None:
        for batch in batches:
            if error.retriable:
                self._retry(batch, error)
            else:
                self._fail(SendingFailed(f"{batch.tp}: {batch.records} rows were not written: {error}"))

    def _retry(self, batch: PendingBatch, error: ClientError) -> None:
        lane = self._lanes[batch.tp]
        lane.put_back(batch)
        self._check_deadline(batch, str(error))
        self._poked[lane.tp] = lane
        self.cluster.invalidate()
        self._drain_later()

    def _check_deadline(self, batch: PendingBatch, why: str) -> None:
        """Record the first failure of a batch; fail the sender once `give_up_ms` have passed since then."""
        now = self.loop.time()
        if batch.failing_since < 0:
            batch.failing_since = now
        elif now - batch.failing_since > self.settings.give_up_ms / 1000:
            self._fail(
                Unavailable(
                    f"{batch.tp}: {batch.records} rows were not acknowledged within "
                    f"{self.settings.give_up_ms} ms (kafka.delivery.timeout.ms): {why}"
                )
            )

    def _complete(self, batch: PendingBatch) -> None:
        lane = self._lanes[batch.tp]
        lane.in_flight.remove(batch)
        lane.recovering = False
        self._failures = 0
        self._unacknowledged -= 1
        self.budget.release(len(batch.data))
        self._idle.set()
        self.poke(lane)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.budget.fail(self.failure)
        self._idle.set()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        super()._on_task_done(task)
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
