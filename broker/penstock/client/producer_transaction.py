"""The state of a producer's transaction: which calls are valid, which partitions it has, what has failed. No I/O.

`transaction_manager` sends the requests, `sender` reports failed batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from penstock.client.errors import (
    BrokerError,
    ClientError,
    IllegalState,
    ProducerFenced,
    TransactionAbortable,
    UnsupportedByBroker,
)
from penstock.client.transaction_requests import FENCED
from penstock.client.types import TopicPartition
from penstock.wire.errors import ErrorCode

FATAL = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Errors after which the producer can start no further transaction."""


class TransactionStage(Enum):
    """The stages of a producer; ABORTABLE means that the transaction has failed and must be aborted."""

    READY = "ready"
    OPEN = "in a transaction"
    COMMITTING = "committing"
    ABORTABLE = "in a failed transaction"
    ABORTING = "aborting"
    FATAL = "unusable"


class ProducerTransaction:
    """One producer's transactions, one after the other.

    `is_started`: a request that starts the transaction at the coordinator was sent; `is_confirmed`: one succeeded.
    `commit_requested`: an EndTxn that commits was sent, so that only a commit can follow. `needs_new_epoch`: an attempt
    to write may arrive after the end, or sequence numbers are missing, so that the next transaction needs a new epoch.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.stage = TransactionStage.READY
        self.error: ClientError | None = None
        self.needs_new_epoch = False
        self._reset()

    def _reset(self) -> None:
        self.partitions: set[TopicPartition] = set()
        self.pending: set[TopicPartition] = set()
        self.is_started = self.is_confirmed = self.commit_requested = False

    @property
    def is_failed(self) -> bool:
        """Return whether batches must not be sent again."""
        return self.stage in (TransactionStage.ABORTABLE, TransactionStage.ABORTING, TransactionStage.FATAL)

    def start(self) -> None:
        """Start a transaction. Raises `IllegalState`, `ProducerFenced`."""
        self._require(TransactionStage.READY)
        self.stage = TransactionStage.OPEN

    def require_open(self) -> None:
        """Raise unless records and offsets can be added: `IllegalState`, `TransactionAbortable`, `ProducerFenced`."""
        if self.stage is not TransactionStage.OPEN:
            self._require(TransactionStage.OPEN)

    def add_pending(self, tp: TopicPartition) -> bool:
        """Record that a batch waits for its partition. Returns whether the coordinator must be asked to add it."""
        if tp in self.partitions or tp in self.pending:
            return False
        self.pending.add(tp)
        return True

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the coordinator has added partitions."""
        self.partitions.update(partitions)
        self.pending -= self.partitions
        self.is_confirmed = True

    def start_commit(self) -> None:
        """Start to commit, or continue a commit whose outcome is unknown. Raises as `require_open`."""
        self._require(TransactionStage.OPEN, TransactionStage.COMMITTING)
        self.stage = TransactionStage.COMMITTING

    def require_committing(self) -> None:
        """Raise if something has failed since `start_commit`: `TransactionAbortable`, `ProducerFenced`."""
        self._require(TransactionStage.COMMITTING)

    def start_abort(self) -> None:
        """Start to abort, or continue. Raises `IllegalState`, `ProducerFenced`."""
        if self.commit_requested and self.stage is TransactionStage.COMMITTING:
            raise IllegalState("abort: the outcome of the commit is unknown; call commit again")
        stages = TransactionStage
        self._require(stages.OPEN, stages.ABORTABLE, stages.COMMITTING, stages.ABORTING)
        self.stage = stages.ABORTING

    def complete(self) -> None:
        """End the transaction: it is committed or aborted."""
        self.stage, self.error = TransactionStage.READY, None
        self.needs_new_epoch = False
        self._reset()

    def fail(self, error: BaseException, *, is_fatal: bool = False) -> None:
        """Record an error that ends the transaction. The first one counts, unless a later one is fatal."""
        cause = error if isinstance(error, ClientError) else ClientError(str(error))
        if isinstance(cause, BrokerError) and cause.code in FENCED:
            cause = ProducerFenced(f'transactional id "{self.transactional_id}": {cause}')
        if is_fatal or is_fatal_error(cause):
            if self.stage is not TransactionStage.FATAL:
                self.stage, self.error = TransactionStage.FATAL, cause
        elif self.stage in (TransactionStage.OPEN, TransactionStage.COMMITTING):
            self.stage, self.error = TransactionStage.ABORTABLE, cause

    def _require(self, *stages: TransactionStage) -> None:
        if self.stage in stages:
            return
        if self.stage is TransactionStage.FATAL:
            if isinstance(self.error, ProducerFenced):
                raise ProducerFenced(str(self.error))
            raise IllegalState(f"the producer is unusable: {self.error}; create another one") from self.error
        if self.stage is TransactionStage.ABORTABLE:
            raise TransactionAbortable(f"the transaction failed and must be aborted: {self.error}", self.error)
        wanted = " or ".join(stage.value for stage in stages)
        raise IllegalState(f"the producer is {self.stage.value}, not {wanted}")


def is_fatal_error(error: ClientError) -> bool:
    """Return whether the producer can start no further transaction after this error."""
    return isinstance(error, ProducerFenced | UnsupportedByBroker) or (
        isinstance(error, BrokerError) and error.code in FATAL
    )
