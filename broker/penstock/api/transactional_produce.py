"""Verification of the batches of transactional Produce requests (KIP-890). Used by `produce`.

The first batch of a transaction in a partition is verified with the transaction's coordinator. If that is this broker,
the answer is available at once, unless it is a final refusal; otherwise the batch is copied and deferred. All batches
that its producer sends to the partition meanwhile are deferred behind it (`append_queues`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.api.append_queues import AppendQueues, DeferredAppend, QueueKey
from penstock.replica.acceptance import Appended
from penstock.replica.inspection import Inspection
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.txn.state_machine import ProducerIdentity, VerifiedTransaction
from penstock.txn.verification import Answer, Verifier
from penstock.wire.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.wire.errors import ErrorCode

ALL = -1
ABORTABLE_FROM = 11
"""The version from which clients know TRANSACTION_ABORTABLE."""
LEADER_CHANGED = "another broker, or a later leader epoch, leads the partition; refresh metadata and retry"
RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS: "the producer's previous transaction is still being completed",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the transaction's coordinator cannot be reached",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the transaction's coordinator is still loading",
    ErrorCode.NOT_COORDINATOR: "the transaction's coordinator has moved to another broker",
    ErrorCode.NETWORK_EXCEPTION: "the connection to the transaction's coordinator failed",
}
"""Verification errors that pass, and their causes."""
FINAL = {
    ErrorCode.INVALID_REQUEST: "the transactional id is empty; set one",
    ErrorCode.PRODUCER_FENCED: "epoch {epoch} of producer id {id} is not its latest: another instance has been"
    " initialized, or its transaction timed out; initialize the producer again",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "producer id {id} does not belong to this transactional id, or the id has"
    " expired; initialize the producer again",
    ErrorCode.INVALID_TXN_STATE: "the partition is not part of the ongoing transaction; abort the transaction",
    ErrorCode.TRANSACTION_ABORTABLE: "the partition is not part of the ongoing transaction; abort the transaction",
}
"""Verification errors that do not pass, and their causes."""


class TransactionalAppends:
    """The deferred batches of a broker. Without a verifier there are no transactions."""

    def __init__(self, replicas: ReplicaManager, verifier: Verifier | None) -> None:
        self.replicas, self.verifier = replicas, verifier
        self.queues = AppendQueues()


class DeferredBatch:
    """A batch that waits for its verification, or for batches before it. Implements `append_queues.DeferredAppend`."""

    def __init__(
        self,
        gate: Gate,
        partition: Leader,
        batch: memoryview,
        header: BatchHeader,
        answer: Answer | None,
        inspection: Inspection | None,
    ) -> None:
        self.gate, self.partition, self.header, self.answer = gate, partition, header, answer
        self.producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        self.batch, self.inspection = bytearray(batch), inspection
        self.callback: Callable[[Appended], None] | None = None

    def when_appended(self, callback: Callable[[Appended], None]) -> None:
        self.callback = callback

    def complete(self, done: Appended) -> None:
        callback, self.callback = self.callback, None  # the request refers to the batch: no cycle stays behind
        assert callback is not None, "a deferred batch belongs to a request that waits"
        callback(done)

    def attempt(self, before: DeferredAppend | None) -> Appended | asyncio.Future[VerifiedTransaction]:
        """Append the batch if its verification still holds. A batch behind one that was refused shares its answer."""
        if self.partition.ended:
            # The next leader may have been told of the transaction's end.
            return self.gate.leader_changed(self)
        if self.answer is None and self.gate.is_unverified(self.partition, self.header):
            if isinstance(before, DeferredBatch) and before.asks_as(self):
                self.answer = before.answer
            else:
                self.answer = self.gate.ask(self.partition, self.producer)
        if self.answer is not None:
            if isinstance(self.answer, asyncio.Future):
                if not self.answer.done():
                    return self.answer
                self.answer = self.answer.result()
            refusal = self.gate.refused(self.partition, self.header, self.answer)
            if refusal is not None:
                return refusal
        return self.partition.append(memoryview(self.batch), True, True, self.inspection)

    def asks_as(self, other: DeferredBatch) -> bool:
        """Whether another batch needs the same answer as this one got."""
        return (
            self.answer is not None
            and self.producer == other.producer
            and self.partition is other.partition
            and self.gate.transactional_id == other.gate.transactional_id
        )


class Gate:
    """The transactional checks of one request."""

    def __init__(self, appends: TransactionalAppends, transactional_id: str, version: int) -> None:
        self.appends, self.transactional_id, self.version = appends, transactional_id, version

    def refusal(self, acks: int) -> tuple[ErrorCode, str] | None:
        """Why no part of the request can be appended."""
        if self.appends.verifier is None:
            return ErrorCode.INVALID_TXN_STATE, "this broker has no transactions"
        if acks != ALL:
            return ErrorCode.INVALID_REQUIRED_ACKS, f"a transactional producer has acks -1 (all), not {acks}"
        return None

    def append(
        self, partition: Leader, batch: memoryview, inspection: Inspection | None = None
    ) -> Appended | DeferredBatch:
        """Append, refuse or defer a batch as it lies in the receive buffer."""
        if len(batch) < HEADER_SIZE:
            return partition.append(batch, all_in_sync=True)
        header = read_header(batch)
        queues = self.appends.queues
        if queues.queues and queue_key(partition, header) in queues:
            return self.defer(partition, batch, header, None, inspection)
        if not self.is_unverified(partition, header):
            return partition.append(batch, True, True, inspection)
        answer = self.ask(partition, ProducerIdentity(header.producer_id, header.producer_epoch))
        if isinstance(answer, asyncio.Future):
            return self.defer(partition, batch, header, answer, inspection)
        return self.refused(partition, header, answer) or partition.append(batch, True, True, inspection)

    def defer(
        self,
        partition: Leader,
        batch: memoryview,
        header: BatchHeader,
        answer: asyncio.Future[VerifiedTransaction] | None,
        inspection: Inspection | None,
    ) -> DeferredBatch:
        deferred = DeferredBatch(self, partition, batch, header, answer, inspection)
        self.appends.queues.defer(queue_key(partition, header), deferred, answer)
        return deferred

    def is_unverified(self, partition: Leader, header: BatchHeader) -> bool:
        """Whether the coordinator has to confirm that a batch is part of the ongoing transaction."""
        return header.is_transactional and partition.producers.needs_verification(
            header.producer_id, header.producer_epoch
        )

    def ask(self, partition: Leader, producer: ProducerIdentity) -> Answer:
        verifier = self.appends.verifier
        assert verifier is not None, "requests are refused where there are no transactions"
        return verifier.partition(self.transactional_id, producer, partition.name, partition.topic_id, partition.index)

    def refused(self, partition: Leader, header: BatchHeader, answer: VerifiedTransaction) -> Appended | None:
        """The refusal that an answer leads to, if it does at this moment.

        If it passes, the batches that the producer has sent behind this one are refused alike until it comes again.
        """
        verifier = self.appends.verifier
        assert verifier is not None, "requests are refused where there are no transactions"
        error = verifier.settle(header.producer_id, answer)
        if not error:
            return None
        failed = f'batch not verified for the transaction of "{self.transactional_id}"'
        if (cause := RETRIABLE.get(error)) is not None:
            return partition.hold_up(header, ErrorCode.NOT_ENOUGH_REPLICAS, f"{failed}: {cause}; retry")
        cause = FINAL.get(error, error.name).format(id=header.producer_id, epoch=header.producer_epoch)
        return Appended(self.client_error(error), message=f"{failed}: {cause}")

    def leader_changed(self, deferred: DeferredBatch) -> Appended:
        """The refusal of a batch whose leader epoch ended while it waited; see `refused`."""
        replicas, partition, code = self.appends.replicas, deferred.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader = replicas.find(partition.topic_id, partition.index)
        if leader is not None:
            return leader.hold_up(deferred.header, code, LEADER_CHANGED)
        replicas.turn_away(partition.topic_id, partition.index, memoryview(deferred.batch))
        return Appended(code, message=LEADER_CHANGED)

    def client_error(self, error: ErrorCode) -> ErrorCode:
        """The result of a verification as an error that clients know for Produce."""
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
            return ErrorCode.TRANSACTION_ABORTABLE if self.version >= ABORTABLE_FROM else ErrorCode.INVALID_TXN_STATE
        return error


def queue_key(partition: Leader, header: BatchHeader) -> QueueKey:
    return QueueKey(*partition.key, header.producer_id)
