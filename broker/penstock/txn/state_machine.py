"""The life of a transactional id as pure functions: what a request makes of its record (KIP-98, KIP-360, KIP-890).

Each takes the record as it stands (None where there is none) and returns a `TxnTransition`: the answer, and the record
to be written before that answer is given. Nothing here waits, reads a clock or knows of a store. Driven by
`coordinator`.

Empty → Ongoing → PrepareCommit | PrepareAbort → CompleteCommit | CompleteAbort → Ongoing … ; a record that is deleted
because nobody used it is Dead. PrepareCommit in the store is the commit point: all after it only tells others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from penstock.state.records import TransactionRecord
from penstock.wire.errors import ErrorCode

MAX_EPOCH = (1 << 15) - 1
LAST_GIVEN_EPOCH = MAX_EPOCH - 1
"""The highest epoch that a producer gets: the one above is left for fencing it."""
MAX_PARTITIONS = 20_000
"""Partitions in one transaction; its record holds them all."""
MAX_GROUPS = 1000
NO_EPOCH = NO_ID = -1


class TxnState(Enum):
    """By the names that ListTransactions shows."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


PREPARED = (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)
AT_REST = (TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT)
FINAL = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE})
"""What `verify` refuses for good: its producer gives up, or gives up the transaction."""


class TxnTransition(NamedTuple):
    """What a request leads to. Without a `record` nothing is to be written.

    `finish` says that the transaction is decided with this record, and its markers are to be written afterwards.
    """

    error: ErrorCode
    record: TransactionRecord | None = None
    finish: bool = False


class VerifiedTransaction(NamedTuple):
    """What a coordinator says of what is to be written within a transaction, and which transaction it speaks of."""

    error: ErrorCode
    number: int = -1


class ProducerIdentity(NamedTuple):
    """Who asks: a producer id and epoch."""

    producer_id: int
    epoch: int


def state_of(record: TransactionRecord) -> TxnState:
    return TxnState(record.state)


def moved(record: TransactionRecord, state: TxnState, now_ms: int, **changes: object) -> TransactionRecord:
    return replace(record, state=state.value, updated_ms=now_ms, **changes)


def init_producer(
    record: TransactionRecord | None, claimed: ProducerIdentity | None, timeout_ms: int, now_ms: int, new_id: int | None
) -> TxnTransition:
    """InitProducerId. The answer's id and epoch are those of the step's record, or of `record` where it has none.

    `claimed` is what a producer says that it has (KIP-360); without it a new instance takes over. An unknown
    transactional id has expired or was never used: nobody was fenced, so whatever is claimed is ignored. The claim is
    not recorded, as several producers may make the same one (0 and 0 is a default of some clients). `new_id` is a fresh
    producer id, required if `needs_new_id` is true.
    """
    if record is None:
        assert new_id is not None, "a new transactional id gets a producer id"
        made = TransactionRecord(
            producer_id=new_id, epoch=0, state=TxnState.EMPTY.value, timeout_ms=timeout_ms, updated_ms=now_ms
        )
        return TxnTransition(ErrorCode.NONE, made)
    state = state_of(record)
    if claimed is not None and not may_claim(record, claimed):
        return TxnTransition(ErrorCode.PRODUCER_FENCED)
    if state in PREPARED:
        return TxnTransition(ErrorCode.CONCURRENT_TRANSACTIONS)
    if state is TxnState.ONGOING:
        if claimed is not None and claimed.epoch != record.epoch:
            return TxnTransition(ErrorCode.PRODUCER_FENCED)
        return TxnTransition(
            ErrorCode.CONCURRENT_TRANSACTIONS, fenced(record, now_ms, keeps=claimed is not None), finish=True
        )
    is_present = claimed is None or claimed == ProducerIdentity(record.producer_id, record.epoch)
    if not is_present and record.epoch <= LAST_GIVEN_EPOCH:
        return TxnTransition(ErrorCode.NONE)  # it asked before, and the answer was lost
    if record.epoch >= LAST_GIVEN_EPOCH:
        assert new_id is not None, "used up epochs need a new producer id"
        step = moved(
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
        return TxnTransition(ErrorCode.NONE, step)
    step = moved(
        record,
        TxnState.EMPTY,
        now_ms,
        epoch=record.epoch + 1,
        last_producer_id=NO_ID,
        last_epoch=record.epoch if claimed is not None else NO_EPOCH,
        timeout_ms=timeout_ms,
        started_ms=-1,
    )
    return TxnTransition(ErrorCode.NONE, step)


def needs_new_id(record: TransactionRecord | None) -> bool:
    """Whether InitProducerId would need a fresh producer id."""
    return record is None or (record.epoch >= LAST_GIVEN_EPOCH and state_of(record) in AT_REST)


def may_claim(record: TransactionRecord, claimed: ProducerIdentity) -> bool:
    """Whether a producer's own id and epoch are the present ones, or those that the present ones replaced for it."""
    if claimed == ProducerIdentity(record.producer_id, record.epoch):
        return True
    before = record.producer_id if record.last_producer_id == NO_ID else record.last_producer_id
    return record.last_epoch != NO_EPOCH and claimed == ProducerIdentity(before, record.last_epoch)


def fenced(record: TransactionRecord, now_ms: int, keeps: bool) -> TransactionRecord:
    """The transaction in hand aborted with a higher epoch, so that its producer can do nothing more in it.

    With `keeps` that producer may go on by naming its old epoch (KIP-360, KIP-588); without, another has taken over.
    """
    assert record.epoch < MAX_EPOCH, "the last epoch is never given to a producer"
    last = record.epoch if keeps else NO_EPOCH
    return moved(
        record, TxnState.PREPARE_ABORT, now_ms, epoch=record.epoch + 1, last_epoch=last, last_producer_id=NO_ID
    )


def who_error(record: TransactionRecord | None, producer: ProducerIdentity) -> ErrorCode:
    """Whether a request comes from the producer that has the transactional id."""
    if record is None or record.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # The last epoch is nobody's: it closes a transaction whose producer had the last but one.
    is_present = record.epoch == producer.epoch <= LAST_GIVEN_EPOCH
    return ErrorCode.NONE if is_present else ErrorCode.PRODUCER_FENCED


def add(
    record: TransactionRecord | None,
    producer: ProducerIdentity,
    partitions: Mapping[UUID, Iterable[int]],
    groups: Iterable[str],
    now_ms: int,
) -> TxnTransition:
    """AddPartitionsToTxn and AddOffsetsToTxn: begins the transaction where none is in hand."""
    error = who_error(record, producer)
    if error or record is None:
        return TxnTransition(error)
    state = state_of(record)
    if state in PREPARED:
        return TxnTransition(ErrorCode.CONCURRENT_TRANSACTIONS)
    begins = state is not TxnState.ONGOING
    known = {} if begins else record.partitions
    all_partitions = dict(known)
    for topic_id, indexes in partitions.items():
        all_partitions[topic_id] = sorted({*known.get(topic_id, ()), *indexes})
    known_groups = [] if begins else record.groups
    all_groups = [*known_groups, *(g for g in dict.fromkeys(groups) if g not in known_groups)]
    if sum(map(len, all_partitions.values())) > MAX_PARTITIONS or len(all_groups) > MAX_GROUPS:
        return TxnTransition(ErrorCode.INVALID_REQUEST)
    if not begins and all_partitions == known and all_groups == known_groups:
        return TxnTransition(ErrorCode.NONE)
    changed = moved(
        record,
        TxnState.ONGOING,
        now_ms,
        partitions=all_partitions,
        groups=all_groups,
        started_ms=now_ms if begins else record.started_ms,
        number=record.number + begins,
        last_epoch=NO_EPOCH,
        last_producer_id=NO_ID,
    )
    return TxnTransition(ErrorCode.NONE, changed)


def end(record: TransactionRecord | None, producer: ProducerIdentity, committed: bool, now_ms: int) -> TxnTransition:
    """EndTxn. Asked again after the end, it answers as it did; asked for the other outcome it is refused."""
    error = who_error(record, producer)
    if error or record is None:
        return TxnTransition(error)
    state = state_of(record)
    if state is TxnState.ONGOING:
        decided = TxnState.PREPARE_COMMIT if committed else TxnState.PREPARE_ABORT
        return TxnTransition(ErrorCode.NONE, moved(record, decided, now_ms), finish=True)
    if state is (TxnState.COMPLETE_COMMIT if committed else TxnState.COMPLETE_ABORT):
        return TxnTransition(ErrorCode.NONE)
    if state is (TxnState.PREPARE_COMMIT if committed else TxnState.PREPARE_ABORT):
        return TxnTransition(ErrorCode.CONCURRENT_TRANSACTIONS)
    return TxnTransition(ErrorCode.INVALID_TXN_STATE)


def timed_out(record: TransactionRecord, now_ms: int) -> TxnTransition:
    """The transaction has taken too long: it is aborted with a higher epoch. Nothing where none is in hand."""
    if state_of(record) is not TxnState.ONGOING:
        return TxnTransition(ErrorCode.NONE)
    return TxnTransition(ErrorCode.NONE, fenced(record, now_ms, keeps=True), finish=True)


def completed(record: TransactionRecord, now_ms: int) -> TransactionRecord:
    """Everybody has been told."""
    state = state_of(record)
    assert state in PREPARED, f"a transaction in state {state.value} is not decided"
    done = TxnState.COMPLETE_COMMIT if state is TxnState.PREPARE_COMMIT else TxnState.COMPLETE_ABORT
    return moved(record, done, now_ms, partitions={}, groups=[])


def verify(record: TransactionRecord | None, producer: ProducerIdentity, includes: bool) -> VerifiedTransaction:
    """Whether a batch, or an offset, may be written as part of the transaction in hand (KIP-890); `includes` says
    whether that has the partition, or the group."""
    error = who_error(record, producer)
    if error or record is None:
        return VerifiedTransaction(error)
    state = state_of(record)
    if state in PREPARED:
        return VerifiedTransaction(ErrorCode.CONCURRENT_TRANSACTIONS)
    in_hand = state is TxnState.ONGOING and includes
    return VerifiedTransaction(ErrorCode.NONE if in_hand else ErrorCode.INVALID_TXN_STATE, record.number)
