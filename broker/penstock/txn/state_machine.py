"""The state transitions of a transactional id as pure functions (KIP-98, KIP-360, KIP-890). Used by `coordinator`.

Each takes the current record (None if there is none) and returns a `TxnTransition`: the error, and the record that must
be written before the response.

Empty → Ongoing → PrepareCommit | PrepareAbort → CompleteCommit | CompleteAbort → Ongoing … Dead is an expired record.
The stored PrepareCommit is the commit point.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from penstock.state.records import TransactionRecord, TxnState
from penstock.wire.errors import ErrorCode

MAX_EPOCH = (1 << 15) - 1
MAX_PRODUCER_EPOCH = MAX_EPOCH - 1
"""The highest epoch of a producer; the one above only fences."""
MAX_PARTITIONS = 20_000
"""Maximum number of partitions in a transaction; its record holds them all."""
MAX_GROUPS = 1000
NO_EPOCH = NO_ID = -1


PREPARED = (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)
IDLE = (TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT)
ENDED = (*PREPARED, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT)
COMMITTED = (TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT)
NEXT_STATES: Mapping[TxnState, Collection[TxnState]] = {
    **dict.fromkeys(IDLE, (TxnState.EMPTY, TxnState.ONGOING, TxnState.COMPLETE_ABORT)),
    TxnState.ONGOING: (TxnState.ONGOING, *PREPARED),
    TxnState.PREPARE_COMMIT: (TxnState.COMPLETE_COMMIT,),
    TxnState.PREPARE_ABORT: (TxnState.COMPLETE_ABORT,),
    TxnState.DEAD: (),
}
"""The states that may follow each state. A prepared outcome is never changed. An idle producer may abort a transaction
that has nothing yet (KIP-890)."""
FATAL_ERRORS = frozenset(
    {ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE}
)
"""Errors of `verify` that are not retriable: the producer aborts the transaction or stops."""


class TxnTransition(NamedTuple):
    """The result of a request. Nothing is written if `record` is None.

    `finish` is set if the transaction is prepared by this record, so that markers must be written.
    """

    error: ErrorCode
    record: TransactionRecord | None = None
    finish: bool = False


class VerifiedTransaction(NamedTuple):
    """A coordinator's verification result, and the number of the transaction that it refers to."""

    error: ErrorCode
    number: int = -1


class ProducerIdentity(NamedTuple):
    """The producer id and epoch in a request."""

    producer_id: int
    epoch: int


def state_of(record: TransactionRecord) -> TxnState:
    """Return the record's state."""
    return TxnState(record.state)


def with_state(record: TransactionRecord, state: TxnState, now_ms: int, **changes: object) -> TransactionRecord:
    """Return the record with a new state, which must be one of `NEXT_STATES`, and other changes."""
    assert state in NEXT_STATES[state_of(record)], f"a transaction cannot go from {record.state} to {state.value}"
    new = replace(record, state=state.value, updated_ms=now_ms, **changes)
    assert new.producer_id != record.producer_id or new.epoch >= record.epoch, f"the epoch falls from {record} to {new}"
    starts = state is TxnState.ONGOING and state_of(record) is not state
    assert new.number == record.number + starts, f"the transaction number changes from {record} to {new}"
    return new


def init_producer(
    record: TransactionRecord | None, claimed: ProducerIdentity | None, timeout_ms: int, now_ms: int, new_id: int | None
) -> TxnTransition:
    """Handle InitProducerId. The response has the id and epoch of the transition's record, or else of `record`.

    `claimed` is the identity that the producer sends (KIP-360); without it, a new producer takes over. For an unknown
    transactional id, expired or new, the claim is ignored: no producer was fenced. The claim is not recorded, since
    several producers may send the same one (some clients default to 0 and 0). `new_id` is required if `needs_new_id` is
    true.
    """
    if record is None:
        assert new_id is not None, "a new transactional id gets a producer id"
        created = TransactionRecord(
            producer_id=new_id, epoch=0, state=TxnState.EMPTY.value, timeout_ms=timeout_ms, updated_ms=now_ms
        )
        return TxnTransition(ErrorCode.NONE, created)
    state = state_of(record)
    if claimed is not None and not may_claim(record, claimed):
        return TxnTransition(ErrorCode.PRODUCER_FENCED)
    if state in PREPARED:
        return TxnTransition(ErrorCode.CONCURRENT_TRANSACTIONS)
    if state is TxnState.ONGOING:
        if claimed is not None and claimed.epoch != record.epoch:
            return TxnTransition(ErrorCode.PRODUCER_FENCED)
        return TxnTransition(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            abort_and_fence(record, now_ms, may_resume=claimed is not None),
            finish=True,
        )
    is_current = claimed is None or claimed == ProducerIdentity(record.producer_id, record.epoch)
    if not is_current and record.epoch <= MAX_PRODUCER_EPOCH:
        return TxnTransition(ErrorCode.NONE)  # a retry after a lost response
    if record.epoch >= MAX_PRODUCER_EPOCH:
        assert new_id is not None, "an exhausted epoch needs a new producer id"
        updated = with_state(
            record,
            TxnState.EMPTY,
            now_ms,
            producer_id=new_id,
            epoch=0,
            last_producer_id=record.producer_id if claimed is not None else NO_ID,
            last_epoch=claimed.epoch if claimed is not None else NO_EPOCH,
            timeout_ms=timeout_ms,
            started_ms=-1,
        )
        return TxnTransition(ErrorCode.NONE, updated)
    updated = with_state(
        record,
        TxnState.EMPTY,
        now_ms,
        epoch=record.epoch + 1,
        last_producer_id=NO_ID,
        last_epoch=record.epoch if claimed is not None else NO_EPOCH,
        timeout_ms=timeout_ms,
        started_ms=-1,
    )
    return TxnTransition(ErrorCode.NONE, updated)


def needs_new_id(record: TransactionRecord | None) -> bool:
    """Return whether InitProducerId needs a new producer id."""
    return record is None or (record.epoch >= MAX_PRODUCER_EPOCH and state_of(record) in IDLE)


def may_claim(record: TransactionRecord, claimed: ProducerIdentity) -> bool:
    """Return whether the claim is the current or the next identity, or the one that the current identity replaced."""
    current = ProducerIdentity(record.producer_id, record.epoch)
    return claimed in (current, identity_after(record)) or was_replaced(record, claimed)


def was_replaced(record: TransactionRecord, producer: ProducerIdentity) -> bool:
    """Return whether the current identity replaced this one, of the same producer."""
    before = record.producer_id if record.last_producer_id == NO_ID else record.last_producer_id
    return record.last_epoch != NO_EPOCH and producer == ProducerIdentity(before, record.last_epoch)


def identity_after(record: TransactionRecord) -> ProducerIdentity:
    """Return the identity that the producer has once the transaction is complete."""
    if record.next_producer_id != NO_ID:
        return ProducerIdentity(record.next_producer_id, 0)
    return ProducerIdentity(record.producer_id, record.epoch)


def abort_and_fence(record: TransactionRecord, now_ms: int, may_resume: bool) -> TransactionRecord:
    """Return the record of the ongoing transaction, aborted with a higher epoch that fences its producer.

    With `may_resume`, that producer may continue by claiming its old epoch (KIP-360, KIP-588).
    """
    assert record.epoch < MAX_EPOCH, "the last epoch is never given to a producer"
    last = record.epoch if may_resume else NO_EPOCH
    return with_state(
        record, TxnState.PREPARE_ABORT, now_ms, epoch=record.epoch + 1, last_epoch=last, last_producer_id=NO_ID
    )


def producer_error(record: TransactionRecord | None, producer: ProducerIdentity) -> ErrorCode:
    """Return the error if the request's producer does not own the transactional id, else NONE."""
    if record is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if record.producer_id != producer.producer_id:
        if record.next_producer_id != NO_ID and producer == identity_after(record):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # No producer has the highest epoch: it fences the producer with the epoch below.
    is_current = record.epoch == producer.epoch <= MAX_PRODUCER_EPOCH
    return ErrorCode.NONE if is_current else ErrorCode.PRODUCER_FENCED


def add_to_transaction(
    record: TransactionRecord | None,
    producer: ProducerIdentity,
    partitions: Mapping[UUID, Iterable[int]],
    groups: Iterable[str],
    now_ms: int,
) -> TxnTransition:
    """Handle AddPartitionsToTxn and AddOffsetsToTxn. Starts a transaction if none is ongoing."""
    error = producer_error(record, producer)
    if error or record is None:
        return TxnTransition(error)
    state = state_of(record)
    if state in PREPARED:
        return TxnTransition(ErrorCode.CONCURRENT_TRANSACTIONS)
    starts = state is not TxnState.ONGOING
    known = {} if starts else record.partitions
    all_partitions = dict(known)
    for topic_id, indexes in partitions.items():
        all_partitions[topic_id] = sorted({*known.get(topic_id, ()), *indexes})
    known_groups = [] if starts else record.groups
    all_groups = [*known_groups, *(g for g in dict.fromkeys(groups) if g not in known_groups)]
    if sum(map(len, all_partitions.values())) > MAX_PARTITIONS or len(all_groups) > MAX_GROUPS:
        return TxnTransition(ErrorCode.INVALID_REQUEST)
    if not starts and all_partitions == known and all_groups == known_groups:
        return TxnTransition(ErrorCode.NONE)
    changed = with_state(
        record,
        TxnState.ONGOING,
        now_ms,
        partitions=all_partitions,
        groups=all_groups,
        started_ms=now_ms if starts else record.started_ms,
        number=record.number + starts,
        last_epoch=NO_EPOCH,
        last_producer_id=NO_ID,
    )
    return TxnTransition(ErrorCode.NONE, changed)


def end_transaction(
    record: TransactionRecord | None, producer: ProducerIdentity, committed: bool, now_ms: int
) -> TxnTransition:
    """Handle EndTxn. A retry after the end succeeds if it asks for the same outcome."""
    error = producer_error(record, producer)
    if error or record is None:
        return TxnTransition(error)
    state = state_of(record)
    if state is TxnState.ONGOING:
        prepared = TxnState.PREPARE_COMMIT if committed else TxnState.PREPARE_ABORT
        return TxnTransition(ErrorCode.NONE, with_state(record, prepared, now_ms), finish=True)
    if state is (TxnState.COMPLETE_COMMIT if committed else TxnState.COMPLETE_ABORT):
        return TxnTransition(ErrorCode.NONE)
    if state is (TxnState.PREPARE_COMMIT if committed else TxnState.PREPARE_ABORT):
        return TxnTransition(ErrorCode.CONCURRENT_TRANSACTIONS)
    return TxnTransition(ErrorCode.INVALID_TXN_STATE)


def end_and_bump(
    record: TransactionRecord | None, producer: ProducerIdentity, committed: bool, now_ms: int, new_id: int | None
) -> TxnTransition:
    """Handle EndTxn 5 (KIP-890): the end also raises the epoch, which fences late requests of the transaction.

    The response has `identity_after` the transition's record, or else `record`. A retry has the identity before. An
    abort needs no transaction, because the requests that would have started it may have failed. `new_id` is required if
    `needs_new_id_to_end` is true.
    """
    if record is not None and state_of(record) in ENDED and was_replaced(record, producer):
        return retry_of_end(record, committed)
    error = producer_error(record, producer)
    if error or record is None:
        return TxnTransition(error)
    state = state_of(record)
    if state in PREPARED:
        return TxnTransition(ErrorCode.CONCURRENT_TRANSACTIONS)
    if state is TxnState.ONGOING:
        prepared = TxnState.PREPARE_COMMIT if committed else TxnState.PREPARE_ABORT
        bumped = with_state(record, prepared, now_ms, **next_identity(record, new_id))
        return TxnTransition(ErrorCode.NONE, bumped, finish=True)
    if committed:
        return TxnTransition(ErrorCode.INVALID_TXN_STATE)
    changes = {**next_identity(record, new_id), "started_ms": now_ms}
    next_id = changes.pop("next_producer_id", NO_ID)
    if next_id != NO_ID:
        changes |= {"producer_id": next_id, "epoch": 0, "last_producer_id": record.producer_id}
    return TxnTransition(ErrorCode.NONE, with_state(record, TxnState.COMPLETE_ABORT, now_ms, **changes))


def retry_of_end(record: TransactionRecord, committed: bool) -> TxnTransition:
    """Return the outcome of an EndTxn 5 whose transaction has ended already.

    A commit of an aborted transaction is no retry: the coordinator aborted it first, for example because it timed out.
    PRODUCER_FENCED lets the client start again (KAFKA-20785); INVALID_TXN_STATE would be fatal.
    """
    if (state_of(record) in COMMITTED) != committed:
        return TxnTransition(ErrorCode.PRODUCER_FENCED if committed else ErrorCode.INVALID_TXN_STATE)
    if identity_after(record).epoch > MAX_PRODUCER_EPOCH:
        return TxnTransition(ErrorCode.PRODUCER_FENCED)  # it timed out in its last epoch
    return TxnTransition(ErrorCode.CONCURRENT_TRANSACTIONS if state_of(record) in PREPARED else ErrorCode.NONE)


def next_identity(record: TransactionRecord, new_id: int | None) -> dict[str, int]:
    """Return the fields of the identity that replaces the record's when the transaction is prepared.

    The markers have the next epoch. If that is the last one, the producer continues with a new id.
    """
    changes = {"epoch": record.epoch + 1, "last_epoch": record.epoch, "last_producer_id": NO_ID}
    if record.epoch >= MAX_PRODUCER_EPOCH:
        assert new_id is not None, "an exhausted epoch needs a new producer id"
        changes["next_producer_id"] = new_id
    return changes


def needs_new_id_to_end(record: TransactionRecord | None, producer: ProducerIdentity) -> bool:
    """Return whether EndTxn 5 needs a new producer id."""
    return (
        record is not None
        and producer == ProducerIdentity(record.producer_id, record.epoch)
        and record.epoch == MAX_PRODUCER_EPOCH
    )


def abort_timed_out(record: TransactionRecord, now_ms: int) -> TxnTransition:
    """Abort an ongoing transaction that has timed out, with a higher epoch."""
    if state_of(record) is not TxnState.ONGOING:
        return TxnTransition(ErrorCode.NONE)
    return TxnTransition(ErrorCode.NONE, abort_and_fence(record, now_ms, may_resume=True), finish=True)


def complete(record: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Return the record of a transaction whose markers have all been written."""
    assert state_of(record) in PREPARED, f"a transaction cannot go from {record.state} to completion"
    is_commit = state_of(record) is TxnState.PREPARE_COMMIT
    done = TxnState.COMPLETE_COMMIT if is_commit else TxnState.COMPLETE_ABORT
    changes: dict[str, object] = {"partitions": {}, "groups": []}
    if record.next_producer_id != NO_ID:
        producer_id, epoch = identity_after(record)
        changes |= {"producer_id": producer_id, "epoch": epoch, "last_producer_id": record.producer_id}
        changes["next_producer_id"] = NO_ID
    return with_state(record, done, now_ms, **changes)


def verify(record: TransactionRecord | None, producer: ProducerIdentity, includes: bool) -> VerifiedTransaction:
    """Return whether a write belongs to the ongoing transaction (KIP-890). `includes` is whether the transaction
    includes its partition or group."""
    error = producer_error(record, producer)
    if error or record is None:
        return VerifiedTransaction(error)
    state = state_of(record)
    if state in PREPARED:
        return VerifiedTransaction(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_ongoing = state is TxnState.ONGOING and includes
    return VerifiedTransaction(ErrorCode.NONE if is_ongoing else ErrorCode.INVALID_TXN_STATE, record.number)
