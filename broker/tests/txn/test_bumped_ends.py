"""EndTxn 5 in each state of a transactional id: the error, the new record and the identity of the producer."""

from __future__ import annotations

from itertools import product
from uuid import UUID

import pytest

from penstock.state.records import TransactionRecord, TxnState
from penstock.txn import state_machine as machine
from penstock.txn.state_machine import MAX_EPOCH, MAX_PRODUCER_EPOCH, ProducerIdentity, TxnTransition, state_of
from penstock.wire.errors import ErrorCode as E

T = UUID(int=1)
ME = ProducerIdentity(7, 3)
NEXT = ProducerIdentity(7, 4)
NOW = 1000
LIVE = [state for state in TxnState if state is not TxnState.DEAD]


def ongoing(epoch: int = ME.epoch) -> TransactionRecord:
    return TransactionRecord(
        producer_id=ME.producer_id, epoch=epoch, state="Ongoing", timeout_ms=500, partitions={T: [0]}, groups=["g"],
        started_ms=900, updated_ms=900, number=4,
    )  # fmt: skip


def idle(state: TxnState, epoch: int = ME.epoch) -> TransactionRecord:
    return TransactionRecord(
        producer_id=ME.producer_id, epoch=epoch, state=state.value, timeout_ms=500, updated_ms=900, number=4
    )


def ended(committed: bool, *, is_complete: bool, epoch: int = ME.epoch) -> TransactionRecord:
    new_id = 99 if epoch == MAX_PRODUCER_EPOCH else None
    record = end(ongoing(epoch), ProducerIdentity(ME.producer_id, epoch), committed, new_id).record
    assert record is not None
    return machine.complete(record, NOW) if is_complete else record


def end(
    record: TransactionRecord | None, producer: ProducerIdentity, committed: bool, new_id: int | None = None
) -> TxnTransition:
    return machine.end_and_bump(record, producer, committed, NOW, new_id)


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_of_a_transaction_raises_the_epoch_of_its_markers_and_of_the_producer(committed: bool) -> None:
    step = end(ongoing(), ME, committed)
    assert (step.error, step.finish) == (E.NONE, True)
    assert step.record is not None
    assert state_of(step.record) is (TxnState.PREPARE_COMMIT if committed else TxnState.PREPARE_ABORT)
    assert (step.record.epoch, step.record.partitions, step.record.groups) == (4, {T: [0]}, ["g"])
    assert machine.identity_after(step.record) == NEXT
    assert machine.identity_after(machine.complete(step.record, NOW)) == NEXT


@pytest.mark.parametrize("state", [TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT])
def test_an_abort_without_a_transaction_raises_the_epoch_too_and_a_commit_is_refused(state: TxnState) -> None:
    step = end(idle(state), ME, False)
    assert (step.error, step.finish) == (E.NONE, False), "there are no markers to write"
    assert step.record is not None
    assert (state_of(step.record), machine.identity_after(step.record)) == (TxnState.COMPLETE_ABORT, NEXT)
    assert end(step.record, ME, False) == (E.NONE, None, False), "a retry raises the epoch once more"
    assert end(idle(state), ME, True) == (E.INVALID_TXN_STATE, None, False)


@pytest.mark.parametrize(("committed", "asks_commit"), list(product((True, False), repeat=2)))
def test_a_retry_of_the_end_gets_the_same_answer_once_the_markers_are_written(
    committed: bool, asks_commit: bool
) -> None:
    pending, complete = ended(committed, is_complete=False), ended(committed, is_complete=True)
    if committed == asks_commit:
        assert end(pending, ME, asks_commit) == (E.CONCURRENT_TRANSACTIONS, None, False)
        assert end(complete, ME, asks_commit) == (E.NONE, None, False)
        assert machine.identity_after(complete) == NEXT
    else:
        refused = E.PRODUCER_FENCED if asks_commit else E.INVALID_TXN_STATE
        assert end(pending, ME, asks_commit) == (refused, None, False)
        assert end(complete, ME, asks_commit) == (refused, None, False)


def test_the_epoch_before_is_fenced_once_the_next_transaction_has_started() -> None:
    after = machine.add_to_transaction(ended(True, is_complete=True), NEXT, {T: [1]}, (), NOW).record
    for committed in (True, False):
        assert end(after, ME, committed) == (E.PRODUCER_FENCED, None, False)


@pytest.mark.parametrize("is_complete", [False, True])
def test_late_requests_of_an_ended_transaction_are_fenced(is_complete: bool) -> None:
    record = ended(True, is_complete=is_complete)
    assert machine.add_to_transaction(record, ME, {T: [0]}, (), NOW).error is E.PRODUCER_FENCED
    assert machine.verify(record, ME, True).error is E.PRODUCER_FENCED
    assert machine.end_transaction(record, ME, True, NOW).error is E.PRODUCER_FENCED


def test_the_next_transaction_waits_for_the_markers_of_the_one_before() -> None:
    record = ended(True, is_complete=False)
    assert machine.add_to_transaction(record, NEXT, {T: [0]}, (), NOW).error is E.CONCURRENT_TRANSACTIONS
    assert end(record, NEXT, False).error is E.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", LIVE)
def test_a_producer_that_is_not_the_present_one_ends_nothing_in_any_state(state: TxnState) -> None:
    record = ongoing() if state is TxnState.ONGOING else idle(state)
    assert end(record, ProducerIdentity(8, 3), False).error is E.INVALID_PRODUCER_ID_MAPPING
    for epoch in (2, 4, 9):
        assert end(record, ProducerIdentity(7, epoch), False).error is E.PRODUCER_FENCED
    assert end(None, ME, False).error is E.INVALID_PRODUCER_ID_MAPPING


def test_a_new_instance_leaves_no_retry_to_the_one_that_it_fences() -> None:
    fenced = machine.init_producer(ongoing(), None, 500, NOW, None).record
    assert fenced is not None
    for record in (fenced, machine.complete(fenced, NOW)):
        assert end(record, ME, False).error is E.PRODUCER_FENCED


def test_a_producer_whose_transaction_timed_out_may_abort_it_and_continue() -> None:
    aborted = machine.abort_timed_out(ongoing(), NOW).record
    assert aborted is not None
    assert end(aborted, ME, False).error is E.CONCURRENT_TRANSACTIONS
    complete = machine.complete(aborted, NOW)
    assert end(complete, ME, False) == (E.NONE, None, False)
    assert machine.identity_after(complete) == NEXT
    assert machine.add_to_transaction(complete, NEXT, {T: [0]}, (), NOW).error is E.NONE


@pytest.mark.parametrize("epoch", [ME.epoch, MAX_PRODUCER_EPOCH - 1, MAX_PRODUCER_EPOCH])
def test_kafka_20785_a_commit_after_the_coordinator_aborted_is_fenced_which_clients_survive(epoch: int) -> None:
    aborted = machine.abort_timed_out(ongoing(epoch), NOW).record
    assert aborted is not None
    for record in (aborted, machine.complete(aborted, NOW)):
        assert end(record, ProducerIdentity(7, epoch), True) == (E.PRODUCER_FENCED, None, False)


@pytest.mark.parametrize("committed", [True, False])
def test_the_last_epoch_is_that_of_the_markers_and_a_new_id_follows(committed: bool) -> None:
    last = ProducerIdentity(7, MAX_PRODUCER_EPOCH)
    assert machine.needs_new_id_to_end(ongoing(MAX_PRODUCER_EPOCH), last)
    assert not machine.needs_new_id_to_end(ongoing(MAX_PRODUCER_EPOCH), ME)
    assert not machine.needs_new_id_to_end(ongoing(), ME)
    prepared = ended(committed, is_complete=False, epoch=MAX_PRODUCER_EPOCH)
    assert (prepared.producer_id, prepared.epoch) == (7, MAX_EPOCH), "the markers fence the last epoch"
    heir = ProducerIdentity(99, 0)
    assert machine.identity_after(prepared) == heir
    assert machine.add_to_transaction(prepared, heir, {T: [0]}, (), NOW).error is E.CONCURRENT_TRANSACTIONS
    assert machine.init_producer(prepared, heir, 500, NOW, None).error is E.CONCURRENT_TRANSACTIONS
    assert end(prepared, last, committed).error is E.CONCURRENT_TRANSACTIONS
    done = machine.complete(prepared, NOW)
    assert (done.producer_id, done.epoch, done.next_producer_id) == (99, 0, -1)
    assert end(done, last, committed) == (E.NONE, None, False), "a retry"
    assert machine.init_producer(done, last, 500, NOW, None) == (E.NONE, None, False), "the answer was lost"
    assert machine.add_to_transaction(done, heir, {T: [0]}, (), NOW).error is E.NONE
    assert machine.add_to_transaction(done, last, {T: [0]}, (), NOW).error is E.INVALID_PRODUCER_ID_MAPPING


def test_an_abort_without_a_transaction_in_the_last_epoch_gives_a_new_id() -> None:
    last = ProducerIdentity(7, MAX_PRODUCER_EPOCH)
    done = end(idle(TxnState.EMPTY, MAX_PRODUCER_EPOCH), last, False, 99).record
    assert done is not None
    assert machine.identity_after(done) == ProducerIdentity(99, 0)
    assert end(done, last, False) == (E.NONE, None, False)


def test_a_transaction_that_timed_out_in_the_last_epoch_leaves_no_epoch_to_continue_in() -> None:
    aborted = machine.abort_timed_out(ongoing(MAX_PRODUCER_EPOCH), NOW).record
    assert aborted is not None
    last = ProducerIdentity(7, MAX_PRODUCER_EPOCH)
    assert end(machine.complete(aborted, NOW), last, False).error is E.PRODUCER_FENCED


def test_the_versions_of_end_txn_may_take_turns() -> None:
    done = ended(True, is_complete=True)
    second = machine.add_to_transaction(done, NEXT, {T: [0]}, (), NOW).record
    prepared = machine.end_transaction(second, NEXT, True, NOW).record
    assert prepared is not None
    assert prepared.epoch == NEXT.epoch, "EndTxn 4 keeps the epoch"
    third = machine.add_to_transaction(machine.complete(prepared, NOW), NEXT, {T: [0]}, (), NOW).record
    last = end(third, NEXT, True).record
    assert last is not None
    assert machine.identity_after(last) == ProducerIdentity(7, 5)
