"""Verifies the batches of transactional Produce requests with the transaction coordinator (KIP-890).

Used by `produce_append`. The first batch of a transaction in a partition is verified, or adds the partition. If this
broker is the coordinator, the result of a verification is available at once, unless it is a final error; otherwise the
batch is copied and deferred.
Later batches of its producer for the partition are deferred behind it (`append_queues`).
"""

from __future__ import annotations

import asyncio

from penstock.api.append_queues import AppendQueues, DeferredAppend, QueueKey
from penstock.api.produce_request import ALL
from penstock.api.produce_wait import BatchResult, UnacknowledgedBatch, batch_result
from penstock.replica.acceptance import Appended
from penstock.replica.inspection import Inspection
from penstock.replica.leader import Leader
from penstock.replica.manager import ReplicaManager
from penstock.txn.state_machine import ProducerIdentity, VerifiedTransaction
from penstock.txn.verification import VerificationResult, Verifier
from penstock.wire.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.wire.errors import ErrorCode

ABORTABLE_VERSION = 11
"""The Produce version from which clients know TRANSACTION_ABORTABLE."""
ADDING_VERSION = 12
"""The Produce version from which a batch adds its partition to the transaction (KIP-890, part 2)."""
LEADER_CHANGED = "another broker, or a later leader epoch, leads the partition; refresh metadata and retry"
RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS: "the previous transaction is being completed, or a change of this one stored",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the transaction's coordinator cannot be reached",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the transaction's coordinator is still loading",
    ErrorCode.NOT_COORDINATOR: "the transaction's coordinator has moved to another broker",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the transaction's coordinator does not know the partition yet",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "the transaction's coordinator does not know another of its partitions yet",
    ErrorCode.NETWORK_EXCEPTION: "the connection to the transaction's coordinator failed",
}
"""Transient verification errors, and their causes."""
FINAL = {
    ErrorCode.INVALID_REQUEST: "the transactional id is empty, or the transaction has too many partitions",
    ErrorCode.PRODUCER_FENCED: "epoch {epoch} of producer id {id} is not its latest: another instance has been"
    " initialized, or its transaction timed out; initialize the producer again",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "producer id {id} does not belong to this transactional id, or the id has"
    " expired; initialize the producer again",
    ErrorCode.INVALID_TXN_STATE: "the partition is not part of the ongoing transaction; abort the transaction",
    ErrorCode.TRANSACTION_ABORTABLE: "the partition is not part of the ongoing transaction; abort the transaction",
}
"""Permanent verification errors, and their causes."""


class TransactionalAppends:
    """The deferred batches of a broker."""

    def __init__(self, replicas: ReplicaManager, verifier: Verifier) -> None:
        self.replicas, self.verifier = replicas, verifier
        self.queues = AppendQueues()


class DeferredBatch(UnacknowledgedBatch):
    """A batch that waits for its verification, or for batches before it. Implements `append_queues.DeferredAppend`."""

    __slots__ = ("batch", "checks", "header", "inspection", "producer", "verification")

    def __init__(
        self,
        checks: TransactionChecks,
        partition: Leader,
        index: int,
        batch: memoryview,
        header: BatchHeader,
        verification: VerificationResult | None,
        inspection: Inspection | None,
    ) -> None:
        super().__init__(partition, index, None)
        self.checks, self.header, self.verification = checks, header, verification
        self.producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        self.batch, self.inspection = bytearray(batch), inspection

    def attempt(self, before: DeferredAppend | None) -> Appended | asyncio.Future[VerifiedTransaction]:
        """Append the batch if its verification still holds. A batch behind a rejected one shares its verification."""
        if self.partition.ended:
            # The next leader may already have the transaction's marker.
            return self.checks.leader_changed(self)
        if self.verification is None and self.checks.is_unverified(self.partition, self.header):
            if isinstance(before, DeferredBatch) and before.shares_verification(self):
                self.verification = before.verification
            else:
                self.verification = self.checks.request_verification(self.partition, self.producer)
        if self.verification is not None:
            if isinstance(self.verification, asyncio.Future):
                if not self.verification.done():
                    return self.verification
                self.verification = self.verification.result()
            refusal = self.checks.rejection(self.partition, self.header, self.verification)
            if refusal is not None:
                return refusal
        return self.partition.append(memoryview(self.batch), True, True, self.inspection)

    def shares_verification(self, other: DeferredBatch) -> bool:
        """Return whether another batch can use the verification of this one."""
        return (
            self.verification is not None
            and self.producer == other.producer
            and self.partition is other.partition
            and self.checks.transactional_id == other.checks.transactional_id
        )


class TransactionChecks:
    """The transactional checks of one request."""

    def __init__(self, appends: TransactionalAppends, transactional_id: str, version: int) -> None:
        self.appends, self.transactional_id, self.version = appends, transactional_id, version

    def append(self, partition: Leader, index: int, batch: memoryview, inspection: Inspection | None) -> BatchResult:
        """Append, reject or defer a batch from the receive buffer."""
        if len(batch) < HEADER_SIZE:
            return batch_result(partition, index, partition.append(batch, all_in_sync=True), ALL)
        header, outcome = read_header(batch), None
        queues = self.appends.queues
        if queues.queues and queue_key(partition, header) in queues:
            return self.defer(partition, index, batch, header, None, inspection)
        if self.is_unverified(partition, header):
            producer = ProducerIdentity(header.producer_id, header.producer_epoch)
            verification = self.request_verification(partition, producer)
            if isinstance(verification, asyncio.Future):
                return self.defer(partition, index, batch, header, verification, inspection)
            outcome = self.rejection(partition, header, verification)
        return batch_result(partition, index, outcome or partition.append(batch, True, True, inspection), ALL)

    def defer(
        self,
        partition: Leader,
        index: int,
        batch: memoryview,
        header: BatchHeader,
        verification: asyncio.Future[VerifiedTransaction] | None,
        inspection: Inspection | None,
    ) -> DeferredBatch:
        """Copy the batch into its queue."""
        deferred = DeferredBatch(self, partition, index, batch, header, verification, inspection)
        self.appends.queues.defer(queue_key(partition, header), deferred, verification)
        return deferred

    def is_unverified(self, partition: Leader, header: BatchHeader) -> bool:
        """Return whether the coordinator must confirm that the batch belongs to the ongoing transaction."""
        return header.is_transactional and partition.producers.needs_verification(
            header.producer_id, header.producer_epoch
        )

    def request_verification(self, partition: Leader, producer: ProducerIdentity) -> VerificationResult:
        """Start the verification of a producer for a partition, or return its result."""
        return self.appends.verifier.verify_partition(
            self.transactional_id, producer, partition, adds=self.version >= ADDING_VERSION
        )

    def rejection(self, partition: Leader, header: BatchHeader, verification: VerifiedTransaction) -> Appended | None:
        """Return the outcome of a batch whose verification failed; None if it holds at this moment.

        After a transient error, the producer's later batches are rejected too until this one is retried.
        """
        error = self.appends.verifier.check_result(header.producer_id, verification)
        if not error:
            return None
        failed = f'batch not verified for the transaction of "{self.transactional_id}"'
        if (cause := RETRIABLE.get(error)) is not None:
            return partition.block_producer(header, ErrorCode.NOT_ENOUGH_REPLICAS, f"{failed}: {cause}; retry")
        cause = FINAL.get(error, error.name).format(id=header.producer_id, epoch=header.producer_epoch)
        return Appended(self.client_error(error), message=f"{failed}: {cause}")

    def leader_changed(self, deferred: DeferredBatch) -> Appended:
        """Return the outcome of a batch whose leader epoch ended while it was deferred; see `rejection`."""
        replicas, partition, code = self.appends.replicas, deferred.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader = replicas.find(partition.topic_id, partition.index)
        if leader is not None:
            return leader.block_producer(deferred.header, code, LEADER_CHANGED)
        replicas.reject_batch(partition.topic_id, partition.index, memoryview(deferred.batch))
        return Appended(code, message=LEADER_CHANGED)

    def client_error(self, error: ErrorCode) -> ErrorCode:
        """Map a verification error to one that Produce clients know."""
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
            return ErrorCode.TRANSACTION_ABORTABLE if self.version >= ABORTABLE_VERSION else ErrorCode.INVALID_TXN_STATE
        return error


def queue_key(partition: Leader, header: BatchHeader) -> QueueKey:
    """Return the key of the queue for a producer and a partition."""
    return QueueKey(*partition.key, header.producer_id)
