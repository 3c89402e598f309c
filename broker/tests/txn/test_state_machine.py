"""Each request in each state of a transactional id: its error and the new record."""

from __future__ import annotations

from itertools import product
from uuid import UUID

import pytest

from penstock.group.shard_writer import LocalShardGuard
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import TransactionRecord, TxnState
from penstock.txn import state_machine as machine
from penstock.txn.shards import TransactionState, TxnShard, write_record
from penstock.txn.state_machine import (
    IDLE,
    MAX_EPOCH,
    MAX_PRODUCER_EPOCH,
    PREPARED,
    ProducerIdentity,
    state_of,
)
from penstock.wire.errors import ErrorCode as E

T = UUID(int=1)
ME = ProducerIdentity(7, 3)
NOW = 1000
LIVE = [state for state in TxnState if state is not TxnState.DEAD]


def record(state: TxnState, **more: object) -> TransactionRecord:
    in_hand = state is TxnState.ONGOING or state in PREPARED
    fields = {
        "producer_id": ME.producer_id,
        "epoch": ME.epoch,
        "state": state.value,
        "timeout_ms": 500,
        "partitions": {T: [0]} if in_hand else {},
        "groups": ["g"] if in_hand else [],
        "started_ms": 900 if in_hand else -1,
        "updated_ms": 900,
    }
    return TransactionRecord(**{**fields, **more})  # type: ignore[arg-type]


END = {
    (TxnState.EMPTY, True): (E.INVALID_TXN_STATE, None),
    (TxnState.EMPTY, False): (E.INVALID_TXN_STATE, None),
    (TxnState.ONGOING, True): (E.NONE, TxnState.PREPARE_COMMIT),
    (TxnState.ONGOING, False): (E.NONE, TxnState.PREPARE_ABORT),
    (TxnState.PREPARE_COMMIT, True): (E.CONCURRENT_TRANSACTIONS, None),
    (TxnState.PREPARE_COMMIT, False): (E.INVALID_TXN_STATE, None),
    (TxnState.PREPARE_ABORT, True): (E.INVALID_TXN_STATE, None),
    (TxnState.PREPARE_ABORT, False): (E.CONCURRENT_TRANSACTIONS, None),
    (TxnState.COMPLETE_COMMIT, True): (E.NONE, None),
    (TxnState.COMPLETE_COMMIT, False): (E.INVALID_TXN_STATE, None),
    (TxnState.COMPLETE_ABORT, True): (E.INVALID_TXN_STATE, None),
    (TxnState.COMPLETE_ABORT, False): (E.NONE, None),
}


def test_the_table_of_ends_has_every_state() -> None:
    assert set(END) == set(product(LIVE, (True, False)))


@pytest.mark.parametrize(("state", "committed"), END)
def test_an_end_in_each_state(state: TxnState, committed: bool) -> None:
    step = machine.end_transaction(record(state), ME, committed, NOW)
    error, becomes = END[state, committed]
    assert step.error is error
    assert (None if step.record is None else state_of(step.record)) is becomes
    assert step.finish == (becomes is not None)
    if step.record is not None:
        assert (step.record.partitions, step.record.groups, step.record.epoch) == ({T: [0]}, ["g"], ME.epoch)


@pytest.mark.parametrize("state", LIVE)
def test_partitions_begin_a_transaction_or_join_the_one_in_hand(state: TxnState) -> None:
    step = machine.add_to_transaction(record(state), ME, {T: [2, 1]}, ["h"], NOW)
    if state in PREPARED:
        assert step == (E.CONCURRENT_TRANSACTIONS, None, False)
        return
    assert step.error is E.NONE
    assert step.record is not None
    assert state_of(step.record) is TxnState.ONGOING
    if state is TxnState.ONGOING:
        assert (step.record.partitions, step.record.groups) == ({T: [0, 1, 2]}, ["g", "h"])
        assert step.record.started_ms == 900
    else:
        assert (step.record.partitions, step.record.groups) == ({T: [1, 2]}, ["h"])
        assert step.record.started_ms == NOW


def test_what_is_part_of_it_already_writes_nothing() -> None:
    assert machine.add_to_transaction(record(TxnState.ONGOING), ME, {T: [0]}, ["g"], NOW) == (E.NONE, None, False)


def test_a_transaction_has_a_bounded_number_of_partitions() -> None:
    many = {T: range(machine.MAX_PARTITIONS + 1)}
    assert machine.add_to_transaction(record(TxnState.EMPTY), ME, many, (), NOW).error is E.INVALID_REQUEST


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize(
    ("who", "error"),
    [
        (ProducerIdentity(8, 3), E.INVALID_PRODUCER_ID_MAPPING),
        (ProducerIdentity(7, 2), E.PRODUCER_FENCED),
        (ProducerIdentity(7, 4), E.PRODUCER_FENCED),
    ],
)
def test_a_producer_that_is_not_the_present_one_is_refused_in_each_state(
    state: TxnState, who: ProducerIdentity, error: E
) -> None:
    now = record(state)
    assert machine.add_to_transaction(now, who, {T: [0]}, (), NOW) == (error, None, False)
    assert machine.end_transaction(now, who, True, NOW) == (error, None, False)
    assert machine.verify(now, who, True).error is error


def test_an_unknown_transactional_id_has_no_producer() -> None:
    assert machine.add_to_transaction(None, ME, {T: [0]}, (), NOW).error is E.INVALID_PRODUCER_ID_MAPPING
    assert machine.end_transaction(None, ME, True, NOW).error is E.INVALID_PRODUCER_ID_MAPPING
    assert machine.verify(None, ME, True).error is E.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("claimed", [None, ME, ProducerIdentity(0, 0), ProducerIdentity(4711, 5)])
def test_an_unknown_transactional_id_gets_the_new_producer_id_with_epoch_0(claimed: ProducerIdentity | None) -> None:
    made = machine.init_producer(None, claimed, 500, NOW, 40).record
    assert made is not None
    assert (made.producer_id, made.epoch, made.state, made.timeout_ms) == (40, 0, "Empty", 500)
    if claimed is not None:
        again = machine.init_producer(made, claimed, 500, NOW, None)
        assert again.error is E.PRODUCER_FENCED, "another producer may have claimed the same"


@pytest.mark.parametrize("claimed", [None, ME])
@pytest.mark.parametrize("state", LIVE)
def test_a_new_instance_in_each_state(state: TxnState, claimed: ProducerIdentity | None) -> None:
    step = machine.init_producer(record(state), claimed, 600, NOW, None)
    last_epoch = -1 if claimed is None else ME.epoch
    if state in PREPARED:
        assert step == (E.CONCURRENT_TRANSACTIONS, None, False)
        return
    assert step.record is not None
    assert (step.record.epoch, step.record.last_epoch) == (ME.epoch + 1, last_epoch)
    if state is TxnState.ONGOING:
        assert (step.error, step.finish) == (E.CONCURRENT_TRANSACTIONS, True)
        assert state_of(step.record) is TxnState.PREPARE_ABORT
        assert step.record.partitions == {T: [0]}
    else:
        assert (step.error, step.finish) == (E.NONE, False)
        assert (state_of(step.record), step.record.timeout_ms) == (TxnState.EMPTY, 600)


@pytest.mark.parametrize("state", LIVE)
def test_a_claim_of_another_epoch_is_fenced_in_each_state(state: TxnState) -> None:
    for claimed in (ProducerIdentity(7, 2), ProducerIdentity(7, 4), ProducerIdentity(8, 3)):
        assert machine.init_producer(record(state), claimed, 500, NOW, None) == (E.PRODUCER_FENCED, None, False)


@pytest.mark.parametrize("state", IDLE)
def test_a_claim_whose_answer_was_lost_gets_it_again(state: TxnState) -> None:
    bumped = machine.init_producer(record(state), ME, 500, NOW, None).record
    assert machine.init_producer(bumped, ME, 500, NOW, None) == (E.NONE, None, False)


def test_a_producer_whose_transaction_took_too_long_goes_on_and_its_successor_fences_it() -> None:
    step = machine.abort_timed_out(record(TxnState.ONGOING), NOW)
    assert step.finish
    assert step.record is not None
    assert (state_of(step.record), step.record.epoch) == (TxnState.PREPARE_ABORT, 4)
    done = machine.complete(step.record, NOW)
    assert machine.init_producer(done, ME, 500, NOW, None) == (E.NONE, None, False)
    successor = machine.init_producer(done, None, 500, NOW, None).record
    assert machine.init_producer(successor, ME, 500, NOW, None).error is E.PRODUCER_FENCED


@pytest.mark.parametrize("state", [state for state in LIVE if state is not TxnState.ONGOING])
def test_only_a_transaction_in_hand_takes_too_long(state: TxnState) -> None:
    assert machine.abort_timed_out(record(state), NOW) == (E.NONE, None, False)


@pytest.mark.parametrize("claims", [False, True])
def test_used_up_epochs_are_followed_by_a_new_producer_id(claims: bool) -> None:
    spent = record(TxnState.COMPLETE_ABORT, epoch=MAX_PRODUCER_EPOCH)
    claimed = ProducerIdentity(7, MAX_PRODUCER_EPOCH) if claims else None
    assert machine.needs_new_id(spent)
    step = machine.init_producer(spent, claimed, 500, NOW, 99)
    assert step.record is not None
    assert (step.record.producer_id, step.record.epoch) == (99, 0)
    if claimed is not None:
        assert machine.init_producer(step.record, claimed, 500, NOW, None) == (E.NONE, None, False)


def test_the_last_epoch_fences_and_is_never_given() -> None:
    fenced = machine.abort_timed_out(record(TxnState.ONGOING, epoch=MAX_PRODUCER_EPOCH), NOW).record
    assert fenced is not None
    assert fenced.epoch == MAX_EPOCH
    done = machine.complete(fenced, NOW)
    assert machine.needs_new_id(done)
    step = machine.init_producer(done, ProducerIdentity(7, MAX_PRODUCER_EPOCH), 500, NOW, 99)
    assert step.record is not None
    assert (step.record.producer_id, step.record.epoch) == (99, 0)


def test_the_last_epoch_is_no_producers_own() -> None:
    done = record(TxnState.COMPLETE_ABORT, epoch=MAX_EPOCH)
    imposter = ProducerIdentity(7, MAX_EPOCH)
    assert machine.add_to_transaction(done, imposter, {T: [0]}, (), NOW).error is E.PRODUCER_FENCED
    assert machine.end_transaction(done, imposter, True, NOW).error is E.PRODUCER_FENCED
    assert machine.verify(done, imposter, True).error is E.PRODUCER_FENCED


@pytest.mark.parametrize("state", LIVE)
def test_only_what_is_part_of_the_transaction_in_hand_is_verified(state: TxnState) -> None:
    expected = E.CONCURRENT_TRANSACTIONS if state in PREPARED else E.INVALID_TXN_STATE
    assert machine.verify(record(state), ME, False).error is expected
    assert machine.verify(record(state), ME, True).error is (E.NONE if state is TxnState.ONGOING else expected)


@pytest.mark.parametrize("state", PREPARED)
def test_completion_empties_the_record(state: TxnState) -> None:
    done = machine.complete(record(state), NOW)
    assert state_of(done).value == state.value.replace("Prepare", "Complete")
    assert (done.partitions, done.groups, done.started_ms, done.epoch) == ({}, [], 900, ME.epoch)


@pytest.mark.parametrize("state", [TxnState.ONGOING, *IDLE])
def test_what_is_not_decided_cannot_be_completed(state: TxnState) -> None:
    with pytest.raises(AssertionError, match="a transaction cannot go from"):
        machine.complete(record(state), NOW)


@pytest.mark.parametrize(
    ("state", "following"),
    [
        (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT),
        (TxnState.PREPARE_ABORT, TxnState.COMPLETE_COMMIT),
        (TxnState.PREPARE_COMMIT, TxnState.ONGOING),
        (TxnState.ONGOING, TxnState.EMPTY),
        (TxnState.EMPTY, TxnState.COMPLETE_COMMIT),
        (TxnState.DEAD, TxnState.ONGOING),
    ],
)
def test_a_decision_is_never_changed_and_no_state_is_left_out(state: TxnState, following: TxnState) -> None:
    with pytest.raises(AssertionError, match=f"cannot go from {state.value} to {following.value}"):
        machine.with_state(record(state), following, NOW)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"epoch": ME.epoch - 1}, "the epoch falls"), ({"number": 2}, "the transaction number changes")],
)
def test_epochs_do_not_fall_and_only_a_new_transaction_has_a_new_number(changes: dict[str, int], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        machine.with_state(record(TxnState.ONGOING), TxnState.PREPARE_COMMIT, NOW, **changes)


async def test_a_record_is_written_with_the_lock_of_its_id_only() -> None:
    transaction = TransactionState("a", TxnShard(0, LocalShardGuard(0)))
    store = EmbeddedStore(":memory:")
    with pytest.raises(AssertionError, match="without its lock"):
        await write_record(store, transaction, record(TxnState.EMPTY))
    async with transaction.lock:
        await write_record(store, transaction, record(TxnState.EMPTY, number=1))
        with pytest.raises(AssertionError, match=r"transaction 0 of .* follows 1"):
            await write_record(store, transaction, record(TxnState.EMPTY))
    await store.close()
