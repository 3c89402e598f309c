"""Takes batches from the accumulator to the leaders of their partitions, and sees them through: requests in flight are
bounded, failures are retried in order, sequences are kept without gaps.

Everything runs in callbacks of the event loop; a task exists only while a connection or a producer id is being got.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial

from penstock.client.accumulator import Accumulator, BatchResult, PartitionQueue, ProducerBatch
from penstock.client.cluster import ClusterConnections
from penstock.client.connection import ClientConnection
from penstock.client.errors import BrokerError, ClientError, DeliveryFailed, error_code
from penstock.client.identity import ClientIdentity
from penstock.client.types import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

GAP_ERRORS = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)

ANSWER_MARGIN = 1.25
"""How much longer an answer may take than the broker was told to wait for replicas."""


@dataclass(slots=True)
class NodeState:
    """A broker as the sender sees it. `waiting` says that a task will drain again when it can be written to."""

    in_flight: int = 0
    connection: ClientConnection | None = None
    waiting: bool = False
    ready: dict[TopicPartition, PartitionQueue] = field(default_factory=dict)


class Sender:
    """Give it queues with `poke`; it takes batches when there is room."""

    def __init__(
        self,
        cluster: ClusterConnections,
        accumulator: Accumulator,
        *,
        acks: int,
        codec: int,
        idempotent: bool,
        max_in_flight: int,
        max_request_bytes: int,
        request_timeout_ms: float,
        delivery_timeout_ms: float,
    ) -> None:
        self.cluster, self.accumulator = cluster, accumulator
        self.acks, self.codec, self.idempotent = acks, codec, idempotent
        self.max_in_flight, self.max_request_bytes = max_in_flight, max_request_bytes
        self.request_timeout_ms, self.delivery_timeout_ms = request_timeout_ms, delivery_timeout_ms
        self.identity = ClientIdentity()
        self.failed_batches = 0
        self.first_failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[int, NodeState] = {}
        self._poked: dict[TopicPartition, PartitionQueue] = {}
        self._scheduled: asyncio.Handle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._failures = 0
        self._in_flight = 0
        self._renewing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def poke(self, queue: PartitionQueue) -> None:
        """This queue may have something to take."""
        self._poked[queue.tp] = queue
        if self._scheduled is None and not self._closed:
            self._scheduled = self._loop.call_soon(self._drain)

    async def close(self) -> None:
        """Stops; what has not been acknowledged fails."""
        self._closed = True
        for handle in (self._scheduled, self._again):
            if handle is not None:
                handle.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for batch in list(self.accumulator.outstanding):
            self._fail(batch, DeliveryFailed(f"{batch.tp}: the producer was closed before the broker acknowledged"))

    # Taking

    def _drain(self) -> None:
        self._scheduled = None
        if self._closed or not self._poked:
            return
        if self._blocked:
            self._renew()
            return
        stuck: dict[TopicPartition, PartitionQueue] = {}
        poked, self._poked = self._poked, {}
        touched: set[int] = set()
        for tp, queue in poked.items():
            if self._expire(queue) or not queue.ready:
                continue
            leader = self.cluster.metadata.leader(tp.topic, tp.partition)
            if leader < 0:
                stuck[tp] = queue
                continue
            self._node(leader).ready[tp] = queue
            touched.add(leader)
        for node_id in touched:
            self._drain_node(node_id)
        if stuck:
            self._poked.update(stuck)
            self.cluster.invalidate()
            self._later()

    def _node(self, node_id: int) -> NodeState:
        return self._nodes.setdefault(node_id, NodeState())

    def _drain_node(self, node_id: int) -> None:
        node = self._node(node_id)
        while node.ready and node.in_flight < self.max_in_flight and not self._blocked:
            connection = node.connection
            if connection is None or connection.closed or connection.expiring or not connection.writable:
                if not node.waiting:
                    node.waiting = True
                    self._spawn(self._make_writable(node_id, node))
                return
            batches = self._collect(node)
            if batches:
                self._send(node_id, node, connection, batches)

    def _collect(self, node: NodeState) -> list[ProducerBatch]:
        """One batch of each ready partition, oldest partition first, while they fit into a request."""
        batches: list[ProducerBatch] = []
        size_bytes = 0
        for tp in list(node.ready):
            queue = node.ready.pop(tp)
            if not queue.ready:
                continue
            size_bytes += queue.peek_size_bytes()
            if batches and size_bytes > self.max_request_bytes:
                node.ready[tp] = queue
                break
            batches.append(queue.take(self.idempotent))
            if queue.ready:
                node.ready[tp] = queue
        return batches

    def _send(self, node_id: int, node: NodeState, connection: ClientConnection, batches: list[ProducerBatch]) -> None:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            batch.attempts += 1
            wire = batch.encode(self.codec, self.identity.producer_id, self.identity.epoch)
            by_topic.setdefault(batch.tp.topic, []).append(PartitionProduceData(batch.tp.partition, wire))
        topics = [TopicProduceData(name=topic, partition_data=data) for topic, data in by_topic.items()]
        request = ProduceRequest(acks=self.acks, timeout_ms=int(self.request_timeout_ms), topic_data=topics)
        try:
            if self.acks == 0:
                connection.send_only(request)
                for batch in batches:
                    self._settle(batch, BatchResult(-1, -1))
                return
            future = connection.send(request, ProduceResponse, timeout_ms=self.request_timeout_ms * ANSWER_MARGIN)
        except ClientError as e:
            self._request_failed(batches, e)
            return
        node.in_flight += 1
        self._in_flight += 1
        future.add_done_callback(partial(self._answered, node_id, node, batches))

    async def _make_writable(self, node_id: int, node: NodeState) -> None:
        try:
            node.connection = await self.cluster.connection(node_id)
            await node.connection.drained()
            self._failures = 0
        except ClientError:
            self.cluster.invalidate()
            self._poked.update(node.ready)
            node.ready.clear()
            self._later()
        finally:
            node.waiting = False
        if not self._closed:
            self._drain_node(node_id)

    # Answers

    def _answered(
        self, node_id: int, node: NodeState, batches: list[ProducerBatch], future: asyncio.Future[ProduceResponse]
    ) -> None:
        node.in_flight -= 1
        self._in_flight -= 1
        if self._closed:
            if not future.cancelled():
                future.exception()
            return
        error = future.exception()
        if error is not None:
            assert isinstance(error, ClientError), f"unexpected {error!r}"
            for batch in batches:
                batch.maybe_written = True
            self._request_failed(batches, error)
        else:
            answers = {
                TopicPartition(topic.name, p.index): p
                for topic in future.result().responses
                for p in topic.partition_responses
            }
            for batch in batches:
                self._batch_answered(batch, answers.get(batch.tp))
        if self._blocked:
            self._renew()
        self._drain_node(node_id)

    def _batch_answered(self, batch: ProducerBatch, answer: PartitionProduceResponse | None) -> None:
        if answer is None:
            batch.maybe_written = True
            self._retry(batch, ClientError(f"{batch.tp}: the broker did not say what became of a batch"))
            return
        code = error_code(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            base = answer.base_offset if code == ErrorCode.NONE else -1
            self._failures = 0
            self._settle(batch, BatchResult(base, answer.log_append_time_ms))
            return
        error = BrokerError(code, str(batch.tp), answer.error_message)
        queue = self.accumulator.queues[batch.tp]
        if code in GAP_ERRORS and self.idempotent:
            gap = not queue.unresolved_before(batch)
            self._retry(batch, error)
            if gap:
                self._start_renewal()
        elif error.retriable:
            # these two are sent after the append, so that the batch may be there
            batch.maybe_written |= code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            self._retry(batch, error)
        elif answer.record_errors:
            self._reject(batch, answer, error)
        else:
            self._give_up(batch, error)

    def _reject(self, batch: ProducerBatch, answer: PartitionProduceResponse, error: BrokerError) -> None:
        """The broker refused a batch because of some of its records: they fail, the others are sent again."""
        messages = {
            named.batch_index: named.batch_index_error_message or error.code.name for named in answer.record_errors
        }
        batch.reject(messages, error)
        if not batch.builder.count:
            self._give_up(batch, error)
            return
        self.failed_batches += 1
        self.first_failure = self.first_failure or next(iter(batch.rejected.values()))
        self._retry(batch, error)
        if batch.sequence >= 0:
            self._start_renewal()  # the sequence numbers of its records have changed

    def _request_failed(self, batches: list[ProducerBatch], error: ClientError) -> None:
        for batch in batches:
            if error.retriable:
                self._retry(batch, error)
            else:
                self._give_up(batch, error)

    def _retry(self, batch: ProducerBatch, error: ClientError) -> None:
        queue = self.accumulator.queues[batch.tp]
        if self._loop.time() - batch.created >= self.delivery_timeout_ms / 1000:
            self._give_up(batch, error)
            return
        batch.last_error = error
        queue.put_back(batch)
        self._poked[batch.tp] = queue
        self.cluster.invalidate()
        self._later()

    def _give_up(self, batch: ProducerBatch, error: BaseException) -> None:
        queue = self.accumulator.queues[batch.tp]
        sent = batch.sequence >= 0
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        count = batch.builder.count
        self._fail(batch, DeliveryFailed(f"{batch.tp}: {count} records were not acknowledged: {error}", error))
        if sent:
            self._start_renewal()  # its sequence numbers would be missing for ever
        self.poke(queue)

    def _settle(self, batch: ProducerBatch, result: BatchResult) -> None:
        queue = self.accumulator.queues[batch.tp]
        queue.in_flight.remove(batch)
        queue.recovering = False
        self.accumulator.finish(batch, result)
        if queue.ready:
            self.poke(queue)

    def _fail(self, batch: ProducerBatch, error: DeliveryFailed) -> None:
        self.failed_batches += 1
        self.first_failure = self.first_failure or error
        self.accumulator.finish(batch, error)

    def _expire(self, queue: PartitionQueue) -> bool:
        """Fails what has waited too long to be sent; True where nothing is left."""
        oldest = self._loop.time() - self.delivery_timeout_ms / 1000
        if queue.open is not None and queue.open.created <= oldest:
            queue.close_open()
        while queue.closed and queue.closed[0].created <= oldest:
            batch = queue.closed.popleft()
            late = ClientError(f"not sent within {self.delivery_timeout_ms:.0f} ms")
            self._give_up(batch, batch.last_error or late)
        return queue.empty

    # Waiting

    def _later(self) -> None:
        """Drains again after a while."""
        if self._again is None and not self._closed:
            self._again = self._loop.call_later(self.cluster.backoff.delay_s(self._failures), self._now)
            self._failures += 1

    def _now(self) -> None:
        self._again = None
        self._drain()

    @property
    def _blocked(self) -> bool:
        """Whether a producer id is needed first."""
        return self.idempotent and not self.identity.known

    def _start_renewal(self) -> None:
        """Nothing more is sent under this id; a new one follows when all requests have been answered."""
        if self.idempotent:
            self.identity.drop()
            self._renew()

    def _renew(self) -> None:
        if not self._renewing and not self._in_flight and not self._closed:
            self._renewing = True
            self._spawn(self._get_identity())

    async def _get_identity(self) -> None:
        try:
            self._restart_sequences()
            await self.identity.renew(self.cluster, timeout_ms=0)  # once: between attempts batches run out of time
        except ClientError as e:
            self.cluster.invalidate()
            for batch in list(self.accumulator.outstanding):
                if not e.retriable or self._loop.time() - batch.created >= self.delivery_timeout_ms / 1000:
                    self._drop_queued(batch, e)
            self._later()
            return
        finally:
            self._renewing = False
            for node in self._nodes.values():
                self._poked.update(node.ready)
                node.ready.clear()
        self._drain()

    def _restart_sequences(self) -> None:
        """Under a new id sequences start at 0. What may have been written is not sent under it: it could double."""
        for queue in self.accumulator.queues.values():
            queue.next_sequence = 0
            for batch in list(queue.closed):
                if batch.sequence >= 0 and batch.maybe_written:
                    unknown = ClientError("the outcome of an earlier attempt is unknown, and its sequence is lost")
                    self._drop_queued(batch, unknown)
                batch.sequence = -1
            queue.recovering = True

    def _drop_queued(self, batch: ProducerBatch, error: ClientError) -> None:
        queue = self.accumulator.queues[batch.tp]
        if batch in queue.closed:
            queue.closed.remove(batch)
        elif queue.open is batch:
            queue.close_open(append=False)
        self._fail(batch, DeliveryFailed(f"{batch.tp}: {batch.builder.count} records were not sent: {error}", error))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
