"""Sends batches to the partitions' leaders: bounds requests in flight, retries in order, keeps sequences without gaps.

Runs in callbacks of the event loop; tasks exist only while a connection or a producer id is requested.
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
from penstock.client.producer_transaction import ProducerTransaction
from penstock.client.transaction_requests import NEWEST_PRODUCE
from penstock.client.types import TopicPartition
from penstock.wire.batch import TRANSACTIONAL
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

TIMEOUT_FACTOR = 1.25
"""Client timeout of a request, relative to the time that the broker may wait for replicas."""


@dataclass(slots=True)
class NodeState:
    """The sender's state of a broker. `waiting` means that a task drains again once the connection is writable."""

    in_flight: int = 0
    connection: ClientConnection | None = None
    waiting: bool = False
    ready: dict[TopicPartition, PartitionQueue] = field(default_factory=dict)


class Sender:
    """Sends the batches of queues passed to `poke` as soon as requests are possible.

    With a `transaction`, the producer id comes from the transaction manager, and a batch that fails fails the
    transaction, because its records cannot be left out of it.
    """

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
        transaction: ProducerTransaction | None = None,
    ) -> None:
        self.cluster, self.accumulator, self.transaction = cluster, accumulator, transaction
        self.transactional_id = None if transaction is None else transaction.transactional_id
        self.attributes = 0 if transaction is None else TRANSACTIONAL
        self.newest_version = None if transaction is None else NEWEST_PRODUCE
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
        self._backoff_timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._in_flight = 0
        self._renewing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def poke(self, queue: PartitionQueue) -> None:
        """Schedule sending from a queue that may have a batch ready."""
        self._poked[queue.tp] = queue
        if self._scheduled is None and not self._closed:
            self._scheduled = self._loop.call_soon(self._drain)

    async def close(self) -> None:
        """Stop sending. Unacknowledged batches fail."""
        self._closed = True
        for handle in (self._scheduled, self._backoff_timer):
            if handle is not None:
                handle.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for batch in list(self.accumulator.outstanding):
            self._fail(batch, DeliveryFailed(f"{batch.tp}: the producer was closed before the broker acknowledged"))

    def _drain(self) -> None:
        self._scheduled = None
        if self._closed or not self._poked:
            return
        if self._blocked:
            self._renew()
            return
        leaderless: dict[TopicPartition, PartitionQueue] = {}
        poked, self._poked = self._poked, {}
        node_ids: set[int] = set()
        for tp, queue in poked.items():
            if self._expire(queue) or not queue.is_ready:
                continue
            leader = self.cluster.metadata.leader(tp.topic, tp.partition)
            if leader < 0:
                leaderless[tp] = queue
                continue
            self._node(leader).ready[tp] = queue
            node_ids.add(leader)
        for node_id in node_ids:
            self._drain_node(node_id)
        if leaderless:
            self._poked.update(leaderless)
            self.cluster.invalidate()
            self._drain_later()

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
        """Return one batch of each ready partition, oldest partition first, that fit into a request."""
        batches: list[ProducerBatch] = []
        size_bytes = 0
        for tp in list(node.ready):
            queue = node.ready.pop(tp)
            if not queue.is_ready:
                continue
            size_bytes += queue.peek_size_bytes()
            if batches and size_bytes > self.max_request_bytes:
                node.ready[tp] = queue
                break
            batches.append(queue.pop_batch(self.idempotent))
            if queue.is_ready:
                node.ready[tp] = queue
        return batches

    def _send(self, node_id: int, node: NodeState, connection: ClientConnection, batches: list[ProducerBatch]) -> None:
        by_topic: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            batch.attempts += 1
            wire = batch.encode(self.codec, self.identity.producer_id, self.identity.epoch, self.attributes)
            by_topic.setdefault(batch.tp.topic, []).append(PartitionProduceData(batch.tp.partition, wire))
        topics = [TopicProduceData(name=topic, partition_data=data) for topic, data in by_topic.items()]
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=self.acks,
            timeout_ms=int(self.request_timeout_ms),
            topic_data=topics,
        )
        try:
            if self.acks == 0:
                connection.send_only(request)
                for batch in batches:
                    self._complete(batch, BatchResult(-1, -1))
                return
            future = connection.send(
                request,
                ProduceResponse,
                timeout_ms=self.request_timeout_ms * TIMEOUT_FACTOR,
                newest=self.newest_version,
            )
        except ClientError as e:
            self._request_failed(batches, e)
            return
        node.in_flight += 1
        self._in_flight += 1
        future.add_done_callback(partial(self._on_response, node_id, node, batches))

    async def _make_writable(self, node_id: int, node: NodeState) -> None:
        try:
            node.connection = await self.cluster.connection(node_id)
            await node.connection.drained()
            self._failures = 0
        except ClientError:
            self.cluster.invalidate()
            self._poked.update(node.ready)
            node.ready.clear()
            self._drain_later()
        finally:
            node.waiting = False
        if not self._closed:
            self._drain_node(node_id)

    def _on_response(
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
            responses = {
                TopicPartition(topic.name, p.index): p
                for topic in future.result().responses
                for p in topic.partition_responses
            }
            for batch in batches:
                self._on_batch_response(batch, responses.get(batch.tp))
        if self._blocked:
            self._renew()
        self._drain_node(node_id)

    def _on_batch_response(self, batch: ProducerBatch, answer: PartitionProduceResponse | None) -> None:
        if answer is None:
            batch.maybe_written = True
            self._retry(batch, ClientError(f"{batch.tp}: the broker's response does not include the batch"))
            return
        code = error_code(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            base = answer.base_offset if code == ErrorCode.NONE else -1
            self._failures = 0
            self._complete(batch, BatchResult(base, answer.log_append_time_ms))
            return
        error = BrokerError(code, str(batch.tp), answer.error_message)
        queue = self.accumulator.queues[batch.tp]
        if code in GAP_ERRORS and self.idempotent:
            gap = not queue.has_unresolved_before(batch)
            if gap and self.transaction is not None:
                self._give_up(batch, error)
                return
            self._retry(batch, error)
            if gap:
                self._start_renewal()
        elif error.retriable:
            # the broker returns these after the append: the batch may have been written
            batch.maybe_written |= code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            self._retry(batch, error)
        elif answer.record_errors and self.transaction is None:
            self._reject(batch, answer, error)
        else:
            self._give_up(batch, error)

    def _reject(self, batch: ProducerBatch, answer: PartitionProduceResponse, error: BrokerError) -> None:
        """Fail the records that the broker rejected and send the others again."""
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
            self._start_renewal()  # the batch has fewer records, which leaves a sequence gap

    def _request_failed(self, batches: list[ProducerBatch], error: ClientError) -> None:
        for batch in batches:
            if error.retriable:
                self._retry(batch, error)
            else:
                self._give_up(batch, error)

    def _retry(self, batch: ProducerBatch, error: ClientError) -> None:
        queue = self.accumulator.queues[batch.tp]
        is_late = self._loop.time() - batch.created >= self.delivery_timeout_ms / 1000
        if is_late or (self.transaction is not None and self.transaction.is_failed):
            self._give_up(batch, error)
            return
        batch.last_error = error
        queue.put_back(batch)
        self._poked[batch.tp] = queue
        self.cluster.invalidate()
        self._drain_later()

    def _give_up(self, batch: ProducerBatch, error: BaseException) -> None:
        queue = self.accumulator.queues[batch.tp]
        sent = batch.sequence >= 0
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        count = batch.builder.count
        self._fail(batch, DeliveryFailed(f"{batch.tp}: {count} records were not acknowledged: {error}", error))
        if self.transaction is not None:
            self.transaction.needs_new_epoch |= sent
            self.fail_transaction(error)
        elif sent:
            self._start_renewal()  # its sequence numbers would be a permanent gap
        self.poke(queue)

    def fail_transaction(self, error: BaseException) -> None:
        """Record that the transaction cannot be committed, and drop its waiting batches."""
        assert self.transaction is not None, "no transaction"
        self.transaction.fail(error)
        self.drop_queued(error)

    def drop_queued(self, error: BaseException) -> None:
        """Fail the batches that are not in flight."""
        for batch in list(self.accumulator.outstanding):
            if batch not in self.accumulator.queues[batch.tp].in_flight:
                if self.transaction is not None:
                    self.transaction.needs_new_epoch |= batch.sequence >= 0
                self._drop_queued(batch, error)

    async def wait_until_idle(self) -> None:
        """Wait until all batches are acknowledged or have failed."""
        waiting = [batch.future for batch in self.accumulator.outstanding]
        if waiting:
            await asyncio.wait(waiting)

    def pop_failures(self) -> tuple[int, BaseException | None]:
        """Return and reset the number of failed batches, and the first failure."""
        failed, first = self.failed_batches, self.first_failure
        self.failed_batches, self.first_failure = 0, None
        return failed, first

    def _complete(self, batch: ProducerBatch, result: BatchResult) -> None:
        queue = self.accumulator.queues[batch.tp]
        queue.in_flight.remove(batch)
        queue.recovering = False
        self.accumulator.finish(batch, result)
        if queue.is_ready:
            self.poke(queue)

    def _fail(self, batch: ProducerBatch, error: DeliveryFailed) -> None:
        self.failed_batches += 1
        self.first_failure = self.first_failure or error
        self.accumulator.finish(batch, error)

    def _expire(self, queue: PartitionQueue) -> bool:
        """Fail batches that exceed the delivery timeout. Returns whether the queue is empty."""
        oldest = self._loop.time() - self.delivery_timeout_ms / 1000
        if queue.open is not None and queue.open.created <= oldest:
            queue.close_open()
        while queue.closed and queue.closed[0].created <= oldest:
            batch = queue.closed.popleft()
            late = ClientError(f"not sent within {self.delivery_timeout_ms:.0f} ms")
            self._give_up(batch, batch.last_error or late)
        return queue.is_empty

    def _drain_later(self) -> None:
        """Schedule draining after a backoff."""
        if self._backoff_timer is None and not self._closed:
            self._backoff_timer = self._loop.call_later(
                self.cluster.backoff.delay_s(self._failures), self._drain_after_backoff
            )
            self._failures += 1

    def _drain_after_backoff(self) -> None:
        self._backoff_timer = None
        self._drain()

    @property
    def _blocked(self) -> bool:
        """Return whether a producer id is needed before sending."""
        return self.idempotent and not self.identity.is_known

    def _start_renewal(self) -> None:
        """Stop using the producer id; request a new one once all requests are answered."""
        if self.idempotent:
            self.identity.drop()
            self._renew()

    def _renew(self) -> None:
        if not self._renewing and not self._in_flight and not self._closed:
            self._renewing = True
            self._spawn(self._get_identity())

    async def _get_identity(self) -> None:
        try:
            self.restart_sequences()
            await self.identity.renew(
                self.cluster, timeout_ms=0
            )  # a single attempt: batches must be able to expire in between
        except ClientError as e:
            self.cluster.invalidate()
            for batch in list(self.accumulator.outstanding):
                if not e.retriable or self._loop.time() - batch.created >= self.delivery_timeout_ms / 1000:
                    self._drop_queued(batch, e)
            self._drain_later()
            return
        finally:
            self._renewing = False
            for node in self._nodes.values():
                self._poked.update(node.ready)
                node.ready.clear()
        self._drain()

    def restart_sequences(self) -> None:
        """Restart sequences at 0 for a new producer id. Batches that may have been written fail, as they could be
        duplicated.
        """
        for queue in self.accumulator.queues.values():
            queue.next_sequence = 0
            for batch in list(queue.closed):
                if batch.sequence >= 0 and batch.maybe_written:
                    unknown = ClientError(
                        "the outcome of an earlier attempt is unknown and its sequence number is lost"
                    )
                    self._drop_queued(batch, unknown)
                batch.sequence = -1
            queue.recovering = True

    def _drop_queued(self, batch: ProducerBatch, error: BaseException) -> None:
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
