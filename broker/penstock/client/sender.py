"""Sends batches to the partitions' leaders: bounds requests in flight, retries in order, keeps sequences without gaps.

Runs in callbacks of the event loop; tasks exist only while a connection or a producer id is requested.
"""

from __future__ import annotations

import asyncio

from penstock.client.accumulator import Accumulator, BatchResult, PartitionQueue, ProducerBatch
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError, DeliveryFailed, error_code
from penstock.client.identity import ClientIdentity
from penstock.client.produce_dispatcher import ProduceDispatcher
from penstock.client.producer_transaction import ProducerTransaction
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.produce import PartitionProduceResponse

GAP_ERRORS = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)


class Sender(ProduceDispatcher[PartitionQueue, ProducerBatch]):
    """Sends the batches of a producer, and resolves their deliveries.

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
        super().__init__(
            cluster,
            acks=acks,
            max_in_flight=max_in_flight,
            max_request_bytes=max_request_bytes,
            request_timeout_ms=request_timeout_ms,
            transactional_id=None if transaction is None else transaction.transactional_id,
        )
        self.accumulator, self.transaction = accumulator, transaction
        self.attributes = 0 if transaction is None else TRANSACTIONAL
        self.codec, self.idempotent = codec, idempotent
        self.delivery_timeout_ms = delivery_timeout_ms
        self.identity = ClientIdentity()
        self.failed_batches = 0
        self.first_failure: BaseException | None = None
        self._renewing = False

    async def close(self) -> None:
        """Stop sending. Unacknowledged batches fail."""
        await super().close()
        for batch in list(self.accumulator.outstanding):
            self._fail(batch, DeliveryFailed(f"{batch.tp}: the producer was closed before the broker acknowledged"))

    def _prepare(self, queue: PartitionQueue) -> bool:
        return not self._expire(queue) and queue.is_ready

    def _pop(self, queue: PartitionQueue) -> ProducerBatch:
        return queue.pop_batch(self.idempotent)

    def _encode(self, batch: ProducerBatch) -> bytes:
        batch.attempts += 1
        return batch.encode(self.codec, self.identity.producer_id, self.identity.epoch, self.attributes)

    def _on_unacknowledged(self, batch: ProducerBatch) -> None:
        self._complete(batch, BatchResult(-1, -1))

    def _on_drained(self) -> None:
        if self._blocked:
            self._unblock()

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

    def _request_failed(self, batches: list[ProducerBatch], error: ClientError, *, sent: bool) -> None:
        for batch in batches:
            batch.maybe_written |= sent
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

    @property
    def _blocked(self) -> bool:
        """Return whether a producer id is needed before sending."""
        return self.idempotent and not self.identity.is_known

    def _start_renewal(self) -> None:
        """Stop using the producer id; request a new one once all requests are answered."""
        if self.idempotent:
            self.identity.drop()
            self._unblock()

    def _unblock(self) -> None:
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
