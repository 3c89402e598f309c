"""States of a producer's transaction, without a broker."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.client import (
    BrokerError,
    ClientError,
    ErrorCode,
    IllegalState,
    ProducerFenced,
    TopicPartition,
    TransactionAbortable,
    UnsupportedByBroker,
)
from penstock.client.producer_transaction import ProducerTransaction, TransactionStage

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
TOO_LARGE = BrokerError(ErrorCode.MESSAGE_TOO_LARGE, "t-0")


def opened() -> ProducerTransaction:
    transaction = ProducerTransaction("id")
    transaction.start()
    return transaction


def test_records_belong_to_a_transaction_only_between_its_start_and_its_end() -> None:
    transaction = ProducerTransaction("id")
    with pytest.raises(IllegalState, match="ready, not in a transaction"):
        transaction.require_open()
    transaction.start()
    transaction.require_open()
    with pytest.raises(IllegalState, match="in a transaction, not ready"):
        transaction.start()
    transaction.start_commit()
    with pytest.raises(IllegalState, match="committing"):
        transaction.require_open()
    transaction.complete()
    transaction.start()


@pytest.mark.parametrize("ends", ["start_commit", "start_abort"])
def test_without_a_transaction_there_is_nothing_to_end(ends: str) -> None:
    with pytest.raises(IllegalState, match="ready"):
        getattr(ProducerTransaction("id"), ends)()


def test_a_partition_is_added_once_in_each_transaction() -> None:
    transaction = opened()
    assert transaction.add_pending(A)
    assert not transaction.add_pending(A)
    assert transaction.add_pending(B)
    transaction.add_partitions([A])
    assert transaction.pending == {B}
    assert not transaction.add_pending(A)
    transaction.complete()
    transaction.start()
    assert transaction.add_pending(A)


def test_after_an_error_only_an_abort_is_possible_and_every_call_names_the_first_error() -> None:
    transaction = opened()
    transaction.fail(TOO_LARGE)
    transaction.fail(ClientError("a later one"))
    for call in (transaction.require_open, transaction.start_commit, transaction.start):
        with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE") as caught:
            call()
        assert caught.value.cause is TOO_LARGE
    transaction.start_abort()
    transaction.complete()
    assert transaction.error is None
    transaction.start()


def test_an_error_while_the_last_batches_are_awaited_stops_the_commit() -> None:
    transaction = opened()
    transaction.start_commit()
    transaction.fail(TOO_LARGE)
    with pytest.raises(TransactionAbortable):
        transaction.require_committing()
    transaction.start_abort()


def test_a_requested_commit_can_be_repeated_and_not_be_aborted() -> None:
    transaction = opened()
    transaction.start_commit()
    transaction.commit_requested = True
    with pytest.raises(IllegalState, match="call commit again"):
        transaction.start_abort()
    transaction.start_commit()
    transaction.complete()


def test_a_commit_that_was_not_requested_yet_can_be_aborted() -> None:
    transaction = opened()
    transaction.start_commit()
    transaction.start_abort()


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_can_do_nothing(code: ErrorCode) -> None:
    transaction = opened()
    transaction.fail(TOO_LARGE)
    transaction.fail(BrokerError(code, "t-0"))
    for call in (transaction.require_open, transaction.start, transaction.start_commit, transaction.start_abort):
        with pytest.raises(ProducerFenced, match=code.name):
            call()


@pytest.mark.parametrize(
    "error",
    [
        BrokerError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        UnsupportedByBroker("no EndTxn"),
    ],
    ids=["authorization", "expired", "version"],
)
def test_an_error_that_would_meet_the_next_transaction_too_is_fatal(error: ClientError) -> None:
    transaction = opened()
    transaction.fail(error)
    with pytest.raises(IllegalState, match=r"unusable.*create another one"):
        transaction.start_abort()


class Calls(RuleBasedStateMachine):
    """Any order of calls and errors: a transaction with an error is never committed, a fatal error is final."""

    def __init__(self) -> None:
        super().__init__()
        self.transaction = opened()
        self.failed = self.fatal = False

    def attempt(self, call: str) -> bool:
        try:
            getattr(self.transaction, call)()
        except ClientError:
            return False
        return True

    @rule()
    def starts(self) -> None:
        if self.attempt("start"):
            assert not self.fatal
            self.failed = False

    @rule()
    def commits(self) -> None:
        if self.attempt("start_commit"):
            assert not self.failed
            self.transaction.commit_requested = True

    @rule()
    def aborts(self) -> None:
        requested = self.transaction.commit_requested and self.transaction.stage is TransactionStage.COMMITTING
        if self.attempt("start_abort"):
            assert not requested
            assert not self.fatal

    @rule()
    def ends(self) -> None:
        if self.transaction.stage in (TransactionStage.COMMITTING, TransactionStage.ABORTING):
            self.transaction.complete()

    @rule(fatal=st.booleans())
    def fails(self, fatal: bool) -> None:
        is_open = self.transaction.stage in (TransactionStage.OPEN, TransactionStage.COMMITTING)
        self.transaction.fail(TOO_LARGE, is_fatal=fatal)
        self.failed |= is_open or fatal
        self.fatal |= fatal

    @invariant()
    def fatal_is_final(self) -> None:
        assert (self.transaction.stage is TransactionStage.FATAL) == self.fatal


TestCalls = Calls.TestCase
TestCalls.settings = settings(deadline=None)
