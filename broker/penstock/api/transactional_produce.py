"""Whether the batches of a transactional Produce request may be appended (KIP-890). Used by `produce`.

The first batch of a transaction in a partition is verified with the transaction's coordinator. Where that is this
broker the answer is there at once, unless it refuses for good; else the batch is held, which is the one case in which
it is copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.replica.acceptance import Appended
from penstock.replica.leader import Leader
from penstock.txn.state_machine import Producer, Verified
from penstock.txn.verification import Verifier
from penstock.wire.batch import HEADER_SIZE, read_header
from penstock.wire.errors import ErrorCode

ALL = -1
UNVERIFIED = "the coordinator does not know this partition to be part of the producer's transaction"
ABORTABLE_FROM = 12
"""The version from which clients know TRANSACTION_ABORTABLE."""
RETRIABLE = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


class Held:
    """A batch that waits for its verification. Those of one producer in one partition get their answers in the order
    in which they asked, so they are appended in that order."""

    def __init__(
        self, gate: Gate, partition: Leader, batch: memoryview, producer_id: int, answer: asyncio.Future[Verified]
    ) -> None:
        self.gate, self.partition, self.producer_id, self.answer = gate, partition, producer_id, answer
        self.batch = bytearray(batch)

    def when_appended(self, callback: Callable[[Appended], None]) -> None:
        def done(answer: asyncio.Future[Verified]) -> None:
            callback(self.append(answer))

        self.answer.add_done_callback(done)

    def append(self, answer: asyncio.Future[Verified]) -> Appended:
        """Appends the batch, if what was found when it was asked for still holds."""
        if answer.cancelled():
            return Appended(ErrorCode.REQUEST_TIMED_OUT, message=UNVERIFIED)
        if self.partition.ended:
            # Whoever leads now may have been told of the transaction's end.
            return Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER, message="another broker leads the partition now")
        error = self.gate.settle(self.producer_id, answer.result())
        if error:
            return Appended(error, message=UNVERIFIED)
        return self.partition.append(memoryview(self.batch), all_in_sync=True, verified=True)


class Gate:
    """One request's. Without a verifier there are no transactions."""

    def __init__(self, transactional_id: str, verifier: Verifier | None, version: int) -> None:
        self.transactional_id, self.verifier, self.version = transactional_id, verifier, version

    def refusal(self, acks: int) -> tuple[ErrorCode, str] | None:
        """Why no part of the request can be taken."""
        if self.verifier is None:
            return ErrorCode.INVALID_TXN_STATE, "this broker has no transactions"
        if acks != ALL:
            return ErrorCode.INVALID_REQUIRED_ACKS, f"a transactional producer has acks -1 (all), not {acks}"
        return None

    def verify(self, partition: Leader, batch: memoryview) -> ErrorCode | Held:
        """NONE for a batch that was verified, an error for one that is not to be appended; UNKNOWN_SERVER_ERROR (a
        negative number) where nothing was asked, because the batch needs no verification or is none."""
        if len(batch) < HEADER_SIZE or self.verifier is None:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        header = read_header(batch)
        if not header.is_transactional or not partition.producers.needs_verification(header.producer_id):
            return ErrorCode.UNKNOWN_SERVER_ERROR
        producer = Producer(header.producer_id, header.producer_epoch)
        answer = self.verifier.partition(
            self.transactional_id, producer, partition.name, partition.topic_id, partition.index
        )
        if isinstance(answer, Verified):
            return self.settle(header.producer_id, answer)
        return Held(self, partition, batch, header.producer_id, answer)

    def settle(self, producer_id: int, answer: Verified) -> ErrorCode:
        assert self.verifier is not None, "somebody answered"
        return self.told(self.verifier.settle(producer_id, answer))

    def told(self, error: ErrorCode) -> ErrorCode:
        """What verification found, in the errors that clients know for Produce."""
        if error in RETRIABLE:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        if error is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
            return ErrorCode.TRANSACTION_ABORTABLE if self.version >= ABORTABLE_FROM else ErrorCode.INVALID_TXN_STATE
        return error
