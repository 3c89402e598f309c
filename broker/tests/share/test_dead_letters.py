"""Each record that is rejected or delivered too often has exactly one dead letter, whatever fails in between.

The dead-letter partitions of the model accept batches by the sequence check of real ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from penstock.replica.producer_state import ProducerState, SequenceCheck
from penstock.share.acknowledgement import AckBatch, AckType
from penstock.share.acquisition import AcquireRequest
from penstock.share.dead_letters import MAX_BATCHED_LETTERS, MAX_PRODUCER_EPOCH, DeadLetterState, DeadLetterTarget
from penstock.share.partition import LogBatch, ShareLimits, SharePartition, ShareSnapshot
from penstock.share.redelivery import DeliveryLimit
from penstock.share.state import InvalidShareState, ShareState, StateVersion, decode_state, encode_state
from penstock.share.window import RecordState, StateRun
from penstock.wire.batch import BatchHeader, read_header
from penstock.wire.batch_builder import BatchBuilder
from penstock.wire.errors import ErrorCode

LOCK_MS = 100.0
RECORDS = 30
TARGET = DeadLetterTarget(UUID(int=7), 0)
A, K, G, R = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVING, RecordState.ARCHIVED


def opened(snapshot: ShareSnapshot, *, limit: int = 3, has_dead_letters: bool = True) -> SharePartition:
    return SharePartition(snapshot, ShareLimits(LOCK_MS, 100, DeliveryLimit(limit), has_dead_letters), 0.0)


def stored(snapshot: ShareSnapshot) -> ShareSnapshot:
    """Return what is read back of a snapshot that was stored."""
    return decode_state(encode_state(ShareState(StateVersion(0, 1, 1), snapshot))).snapshot


def header_of(state: DeadLetterState) -> BatchHeader:
    """Return the header of the outstanding batch."""
    builder = BatchBuilder()
    for _ in range(state.size):
        builder.append(None, None, timestamp_ms=1)
    return read_header(
        builder.build(producer_id=state.producer_id, producer_epoch=state.producer_epoch, base_sequence=state.sequence)
    )


@dataclass
class LetterLog:
    """A dead-letter partition: the original offsets of its letters, and its producers."""

    offsets: list[int] = field(default_factory=list)
    producers: ProducerState = field(default_factory=ProducerState)

    def append(self, batch: DeadLetterState) -> SequenceCheck:
        header = header_of(batch)
        check, _ = self.producers.check(header)
        if check is SequenceCheck.APPEND:
            self.producers.update(header._replace(base_offset=len(self.offsets)), 1)
            self.offsets += range(batch.first, batch.last + 1)
        return check


class LettersLife(RuleBasedStateMachine):
    """The life of a share-partition, its records, its leaders and two partitions for its dead letters."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms, self.producer_ids = 0.0, 0
        self.logs = {TARGET: LetterLog(), TARGET._replace(partition=1): LetterLog()}
        self.on_the_way: list[DeadLetterState] = []
        """Batches that were sent at some time: the network may deliver them late."""
        self.durable, self.writing = ShareSnapshot(0, []), None
        self.discarded: set[int] = set()
        """Offsets that await letters in the store, and their leader knows it: that a write failed means nothing."""
        self.partition = opened(self.durable)

    @rule(size=st.integers(1, 4))
    def acquire(self, size: int) -> None:
        self.partition.expire(self.now_ms)
        offset = self.partition.next_fetch_offset()
        if offset is not None and offset < RECORDS:
            batches = [LogBatch(o, o) for o in range(offset, RECORDS)]
            self.partition.acquire(AcquireRequest("m", size), offset, batches, self.now_ms)

    @rule(data=st.data(), ack_type=st.sampled_from([AckType.REJECT, AckType.REJECT, AckType.RELEASE, AckType.ACCEPT]))
    def acknowledge(self, data: st.DataObject, ack_type: AckType) -> None:
        held = [o for run in self.partition.window if run.is_locked for o in range(run.first, run.last + 1)]
        if held:
            first = data.draw(st.sampled_from(held))
            self.partition.acknowledge("m", [AckBatch(first, first, [ack_type])], self.now_ms)

    @precondition(lambda self: self.writing is None)
    @rule()
    def reject_the_next(self) -> None:
        """A member gets a record and rejects it, and the store has that: most sequences need letters to begin."""
        self.acquire(1)
        held = [run.first for run in self.partition.window if run.is_locked]
        if held:
            self.partition.acknowledge("m", [AckBatch(held[0], held[0], [AckType.REJECT])], self.now_ms)
            self.begin_write()
            self.complete_write(True, True)

    @rule()
    def time_out(self) -> None:
        self.now_ms += LOCK_MS
        self.partition.expire(self.now_ms)

    @precondition(lambda self: self.writing is None)
    @rule()
    def begin_write(self) -> None:
        self.writing = self.partition.begin_write()

    @precondition(lambda self: self.writing is not None)
    @rule(answered=st.booleans(), kept=st.booleans())
    def complete_write(self, answered: bool, kept: bool) -> None:
        if answered or kept:
            self.durable = stored(self.writing)
        self.writing = None
        self.partition.complete_write(answered)

    @precondition(lambda self: self.partition.dead_letters.outstanding is None)
    @rule(count=st.integers(1, 3), index=st.integers(0, 1))
    def plan(self, count: int, index: int) -> None:
        letters = self.partition.dead_letters
        run = next(letters.runs(), None)
        if run is not None:
            self.producer_ids += 1
            target = TARGET._replace(partition=index)
            letters.plan(run.first, min(count, run.size), target, self.producer_ids)

    @rule(answered=st.booleans(), arrives=st.booleans())
    def send(self, answered: bool, arrives: bool) -> None:
        letters = self.partition.dead_letters
        batch = letters.outstanding
        if batch is None or not letters.is_durable:
            return
        self.on_the_way.append(batch)
        if answered or arrives:
            check = self.logs[batch.target].append(batch)
            assert check in (SequenceCheck.APPEND, SequenceCheck.DUPLICATE), check
        if answered:
            letters.complete()

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def arrive_late(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.on_the_way[-4:]))
        self.logs[batch.target].append(batch)

    @rule(kept=st.booleans())
    def fail_over(self, kept: bool) -> None:
        if kept and self.writing is not None:
            self.durable = stored(self.writing)
        self.writing = None
        self.partition = opened(self.durable)

    @rule(offset=st.integers(0, RECORDS + 2))
    def delete_records(self, offset: int) -> None:
        if offset < RECORDS // 2 or offset > RECORDS - 2:  # rarely what was not delivered
            self.partition.on_log_start(min(offset, RECORDS))

    @property
    def letters(self) -> list[int]:
        return [offset for log in self.logs.values() for offset in log.offsets]

    @invariant()
    def no_record_has_two_letters(self) -> None:
        self.partition.window.verify()
        assert len(self.letters) == len(set(self.letters)), f"two letters of one record: {self.letters}"

    @invariant()
    def no_letter_is_missing(self) -> None:
        """Records that are archived in the store, or left it, have their letters."""
        states = {o: run.state for run in self.durable.runs for o in range(run.first, run.last + 1)}
        pending = {o for run in self.partition.dead_letters.runs() for o in range(run.first, run.last + 1)}
        self.discarded |= {o for o in pending if states.get(o) is G}
        for o in self.discarded:
            assert states.get(o) is G or o in self.letters, f"{o} has no letter and does not await one"

    def teardown(self) -> None:
        """In the end, everything that awaits a letter has it."""
        if self.writing is not None:
            self.complete_write(True, True)
        for _ in range(40):
            if self.partition.begin_write() is not None:
                self.writing = None
                self.partition.complete_write(True)
            if self.partition.dead_letters.outstanding is not None:
                self.send(True, True)
            elif self.partition.dead_letters.pending:
                self.plan(3, 0)
            else:
                break
        assert not self.partition.dead_letters.pending
        self.no_record_has_two_letters()
        assert self.discarded <= set(self.letters)


def test_each_discarded_record_has_exactly_one_letter() -> None:
    run_state_machine_as_test(
        LettersLife,
        settings=settings(
            max_examples=settings().max_examples * 2,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )


def rejected(count: int = 3) -> SharePartition:
    """Return a share-partition whose first records are rejected, durably."""
    partition = opened(ShareSnapshot(0, []))
    partition.acquire(AcquireRequest("m", 100), 0, [LogBatch(0, 9)], 0)
    assert partition.acknowledge("m", [AckBatch(0, count - 1, [AckType.REJECT])], 5).error is ErrorCode.NONE
    assert partition.begin_write() is not None
    partition.complete_write(True)
    return partition


def written(partition: SharePartition) -> ShareSnapshot:
    snapshot = partition.begin_write()
    assert snapshot is not None
    partition.complete_write(True)
    return snapshot


def states_of(partition: SharePartition) -> list[tuple[int, int, RecordState]]:
    return [(run.first, run.last, run.state) for run in partition.window]


def test_a_rejected_record_awaits_its_letter_and_is_not_delivered() -> None:
    partition = rejected()
    assert states_of(partition)[0] == (0, 2, G)
    assert partition.dead_letters.pending == 3
    assert partition.start_offset == 0
    assert not partition.is_idle
    assert partition.expire(LOCK_MS)
    acquired = partition.acquire(AcquireRequest("n", 100), partition.next_fetch_offset() or 0, [LogBatch(0, 9)], 200)
    assert [(each.first, each.last) for each in acquired] == [(3, 9)]


def test_a_record_is_archived_once_its_letter_is_written() -> None:
    partition = rejected()
    letters = partition.dead_letters
    letters.plan(0, 3, TARGET, 41)
    assert not letters.is_durable
    assert written(partition).dead_letters == DeadLetterState(41, 0, 0, TARGET, 0, 3)
    assert letters.is_durable
    letters.complete()
    assert partition.start_offset == 3
    assert written(partition).dead_letters == DeadLetterState(41, 0, 3, TARGET)
    assert not letters.pending


def test_letters_are_not_completed_before_the_store_knows_of_the_batch() -> None:
    partition = rejected()
    partition.dead_letters.plan(0, 3, TARGET, 41)
    with pytest.raises(AssertionError, match="before the store knew"):
        partition.dead_letters.complete()


def test_a_write_that_fails_or_began_earlier_does_not_make_a_batch_durable() -> None:
    partition = rejected()
    partition.acknowledge("m", [AckBatch(5, 5, [AckType.ACCEPT])], 5)
    assert partition.begin_write() is not None
    partition.dead_letters.plan(0, 3, TARGET, 41)
    partition.complete_write(True)
    assert not partition.dead_letters.is_durable
    assert partition.begin_write() is not None
    partition.complete_write(False)
    assert not partition.dead_letters.is_durable


def test_a_gap_has_no_letter() -> None:
    partition = opened(ShareSnapshot(0, []))
    partition.acquire(AcquireRequest("m", 100), 0, [LogBatch(0, 2)], 0)
    partition.acknowledge("m", [AckBatch(0, 2, [AckType.REJECT, AckType.GAP, AckType.REJECT])], 5)
    written(partition)
    assert [run for run in states_of(partition) if run[2] is G] == [(0, 0, G), (2, 2, G)]


@pytest.mark.parametrize("has_dead_letters", [True, False])
def test_the_last_delivery_that_fails_leads_to_a_letter_if_there_is_a_topic(has_dead_letters: bool) -> None:
    partition = opened(ShareSnapshot(0, []), limit=1, has_dead_letters=has_dead_letters)
    partition.acquire(AcquireRequest("m", 100), 0, [LogBatch(0, 2)], 0)
    assert partition.expire(LOCK_MS)
    assert partition.dead_letters.pending == (3 if has_dead_letters else 0)
    restarted = opened(ShareSnapshot(0, [StateRun(0, 2, A, 1)]), limit=1, has_dead_letters=has_dead_letters)
    assert restarted.dead_letters.pending == (3 if has_dead_letters else 0)


def test_another_partition_starts_a_new_producer_epoch() -> None:
    partition = rejected()
    letters = partition.dead_letters
    letters.plan(0, 1, TARGET, 41)
    written(partition)
    letters.complete()
    letters.plan(1, 1, TARGET._replace(partition=1))
    assert letters.state == DeadLetterState(41, 1, 0, TARGET._replace(partition=1), 1, 1)
    letters.restart()
    assert letters.state == DeadLetterState(41, 2, 0, TARGET._replace(partition=1), 1, 1)


def test_the_last_producer_epoch_is_followed_by_a_new_producer() -> None:
    state = DeadLetterState(41, MAX_PRODUCER_EPOCH - 1, 5, TARGET)
    partition = opened(ShareSnapshot(0, [StateRun(0, 2, G, 1)], state))
    assert partition.dead_letters.needs_producer
    partition.dead_letters.plan(0, 3, TARGET, 42)
    assert partition.dead_letters.state == DeadLetterState(42, 0, 0, TARGET, 0, 3)


def test_sequence_numbers_wrap() -> None:
    state = DeadLetterState(41, 0, (1 << 31) - 2, TARGET, 0, 3)
    partition = opened(ShareSnapshot(0, [StateRun(0, 2, G, 1)], state))
    partition.dead_letters.complete()
    assert partition.dead_letters.state == DeadLetterState(41, 0, 1, TARGET)


def test_records_that_the_log_has_deleted_keep_their_letters() -> None:
    partition = rejected()
    assert partition.acknowledge("m", [AckBatch(5, 5, [AckType.REJECT])], 6).write
    partition.on_log_start(8)
    assert [each for each in states_of(partition) if not each[2].is_final] == [
        (0, 2, G), (5, 5, RecordState.ACQUIRED), (8, 9, RecordState.ACQUIRED)
    ]  # fmt: skip
    written(partition)
    partition.on_log_start(20)
    assert partition.dead_letters.pending == 4
    assert partition.next_fetch_offset() == 20
    partition.dead_letters.archive(0, 9)
    assert (partition.start_offset, partition.window.end_offset) == (20, 20)


def test_failed_deliveries_have_times_until_the_record_is_done() -> None:
    partition = opened(ShareSnapshot(0, []), limit=2)
    partition.acquire(AcquireRequest("m", 100), 0, [LogBatch(0, 0)], 0)
    partition.acknowledge("m", [AckBatch(0, 0, [AckType.RELEASE])], 5)
    written(partition)
    partition.acquire(AcquireRequest("m", 100), 0, [LogBatch(0, 0)], 10)
    partition.acknowledge("m", [AckBatch(0, 0, [AckType.REJECT])], 30)
    written(partition)
    times = partition.dead_letters.failures[0]
    assert (times.first_ms, times.last_ms) == (5, 30)
    partition.dead_letters.archive(0, 0)
    assert not partition.dead_letters.failures


# --- the stored form

OUTSTANDING = DeadLetterState(1 << 40, 3, 77, TARGET, 1, 2)
RUNS = [StateRun(0, 0, A, 1), StateRun(1, 3, G, 2), StateRun(4, 4, K, 1), StateRun(5, 5, R, 1)]


@pytest.mark.parametrize("letters", [None, OUTSTANDING, DeadLetterState(1, 0, 0, TARGET)])
def test_the_stored_state_has_the_letters(letters: DeadLetterState | None) -> None:
    assert stored(ShareSnapshot(0, RUNS, letters)) == ShareSnapshot(0, RUNS, letters)


def test_a_state_without_letters_is_readable_by_earlier_versions() -> None:
    version = StateVersion(0, 1, 1)
    assert encode_state(ShareState(version, ShareSnapshot(0, [StateRun(0, 0, R, 1)])))[0] == 1
    assert encode_state(ShareState(version, ShareSnapshot(0, RUNS)))[0] == 2


@pytest.mark.parametrize(
    ("letters", "reason"),
    [
        (OUTSTANDING._replace(size=MAX_BATCHED_LETTERS + 1), "out of range"),
        (OUTSTANDING._replace(producer_epoch=-1), "out of range"),
        (OUTSTANDING._replace(first=0), "do not await"),
        (OUTSTANDING._replace(size=4), "do not await"),
        (OUTSTANDING._replace(first=9), "do not await"),
    ],
)
def test_impossible_letters_are_rejected(letters: DeadLetterState, reason: str) -> None:
    with pytest.raises(InvalidShareState, match=reason):
        stored(ShareSnapshot(0, RUNS, letters))


def test_truncated_letters_are_rejected() -> None:
    whole = encode_state(ShareState(StateVersion(0, 1, 1), ShareSnapshot(0, RUNS, OUTSTANDING)))
    for size in range(len(whole)):
        with pytest.raises(InvalidShareState):
            decode_state(whole[:size])
    with pytest.raises(InvalidShareState, match="unknown mark 9"):
        decode_state(whole[:25] + b"\x09" + whole[26:])
    with pytest.raises(InvalidShareState, match="invalid run"):
        decode_state(b"\x01" + whole[1:25] + whole[26 + 46 :])
