"""Verifies the batches of transactional Produce requests with the transaction coordinator (KIP-890). Used by `produce`.

The first batch of a transaction in a partition is verified. If this broker is the coordinator, the result is available
at once, unless it is a final error; otherwise the batch is copied and deferred. Later batches of its producer for the
partition are deferred behind it (`append_queues`).
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
from penstock.txn.verification import VerificationResult, Verifier
from penstock.wire.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.wire.errors import ErrorCode

ALL = -1
ABORTABLE_VERSION = 11
"""The Produce version from which clients know TRANSACTION_ABORTABLE."""
LEADER_CHANGED = "another broker, or a later leader epoch, leads the partition; refresh metadata and retry"
RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS: "the producer's previous transaction is still being completed",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "the transaction's coordinator cannot be reached",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the transaction's coordinator is still loading",
    ErrorCode.NOT_COORDINATOR: "the transaction's coordinator has moved to another broker",
    ErrorCode.NETWORK_EXCEPTION: "the connection to the transaction's coordinator failed",
}
"""Transient verification errors, and their causes."""
FINAL = {
    ErrorCode.INVALID_REQUEST: "the transactional id is empty; set one",
    ErrorCode.PRODUCER_FENCED: "epoch {epoch} of producer id {id} is not its latest: another instance has been"
    " initialized, or its transaction timed out; initialize the producer again",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "producer id {id} does not belong to this transactional id, or the id has"
    " expired; initialize the producer again",
    ErrorCode.INVALID_TXN_STATE: "the partition is not part of the ongoing transaction; abort the transaction",
    ErrorCode.TRANSACTION_ABORTABLE: "the partition is not part of the ongoing transaction; abort the transaction",
}
"""Permanent verification errors, and their causes."""


class TransactionalAppends:
    """The deferred batches of a broker. Without a verifier, the broker serves no transactions."""

    def __init__(self, replicas: ReplicaManager, verifier: Verifier | None) -> None:
        self.replicas, self.verifier = replicas, verifier
        self.queues = AppendQueues()


class DeferredBatch:
    """A batch that waits for its verification, or for batches before it. Implements `append_queues.DeferredAppend`."""

    def __init__(
        self,
        checks: TransactionChecks,
        partition: Leader,
        batch: memoryview,
        header: BatchHeader,
        verification: VerificationResult | None,
        inspection: Inspection | None,
    ) -> None:
        self.checks, self.partition, self.header, self.verification = checks, partition, header, verification
        self.producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        self.batch, self.inspection = bytearray(batch), inspection
        self.callback: Callable[[Appended], None] | None = None

    def when_appended(self, callback: Callable[[Appended], None]) -> None:
        """Call `callback` with the outcome."""
        self.callback = callback

    def complete(self, outcome: Appended) -> None:
        """Report the outcome to the request."""
        callback, self.callback = self.callback, None  # breaks the reference cycle of request and batch
        assert callback is not None, "a deferred batch belongs to a request that waits"
        callback(outcome)

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

    def refusal(self, acks: int) -> tuple[ErrorCode, str] | None:
        """Return the error if the whole request is rejected, else None."""
        if self.appends.verifier is None:
            return ErrorCode.INVALID_TXN_STATE, "this broker does not serve transactions; unset transactional.id"
        if acks != ALL:
            return ErrorCode.INVALID_REQUIRED_ACKS, f'acks "{acks}" is invalid in a transaction; use -1 (all)'
        return None

    def append(
        self, partition: Leader, batch: memoryview, inspection: Inspection | None = None
    ) -> Appended | DeferredBatch:
        """Append, reject or defer a batch from the receive buffer."""
        if len(batch) < HEADER_SIZE:
            return partition.append(batch, all_in_sync=True)
        header = read_header(batch)
        queues = self.appends.queues
        if queues.queues and queue_key(partition, header) in queues:
            return self.defer(partition, batch, header, None, inspection)
        if not self.is_unverified(partition, header):
            return partition.append(batch, True, True, inspection)
        verification = self.request_verification(partition, ProducerIdentity(header.producer_id, header.producer_epoch))
        if isinstance(verification, asyncio.Future):
            return self.defer(partition, batch, header, verification, inspection)
        return self.rejection(partition, header, verification) or partition.append(batch, True, True, inspection)

    def defer(
        self,
        partition: Leader,
        batch: memoryview,
        header: BatchHeader,
        verification: asyncio.Future[VerifiedTransaction] | None,
        inspection: Inspection | None,
    ) -> DeferredBatch:
        """Copy the batch into its queue."""
        deferred = DeferredBatch(self, partition, batch, header, verification, inspection)
        self.appends.queues.defer(queue_key(partition, header), deferred, verification)
        return deferred

    def is_unverified(self, partition: Leader, header: BatchHeader) -> bool:
        """Return whether the coordinator must confirm that the batch belongs to the ongoing transaction."""
        return header.is_transactional and partition.producers.needs_verification(
            header.producer_id, header.producer_epoch
        )

    def request_verification(self, partition: Leader, producer: ProducerIdentity) -> VerificationResult:
        """Start the verification of a producer for a partition, or return its result."""
        verifier = self.appends.verifier
        assert verifier is not None, "requests are rejected if there are no transactions"
        return verifier.verify_partition(
            self.transactional_id, producer, partition.name, partition.topic_id, partition.index
        )

    def rejection(self, partition: Leader, header: BatchHeader, verification: VerifiedTransaction) -> Appended | None:
        """Return the outcome of a batch whose verification failed; None if it holds at this moment.

        After a transient error, the producer's later batches are rejected too until this one is retried.
        """
        verifier = self.appends.verifier
        assert verifier is not None, "requests are rejected if there are no transactions"
        error = verifier.check_result(header.producer_id, verification)
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
