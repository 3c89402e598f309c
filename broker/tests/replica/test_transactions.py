"""A partition's transactions: stable offset, aborted transactions, markers, and recovery."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import HandClock, headers_in, read_all
from replica_kit import batch_of, opened_data_path

from penstock.replica.leader import Leader
from penstock.replica.producer_state import ProducerState, SequenceCheck
from penstock.replica.transactions import OpenTransactions
from penstock.wire.batch import TRANSACTIONAL, BatchHeader, read_header
from penstock.wire.control_batch import Marker, build_marker
from penstock.wire.errors import ErrorCode


def data(offset: int, pid: int, epoch: int = 0, sequence: int = 0, transactional: bool = True) -> BatchHeader:
    attributes = TRANSACTIONAL if transactional else 0
    return BatchHeader(offset, 100, 0, 2, 0, attributes, 0, 50, 60, pid, epoch, sequence, 1)


def mark(state: ProducerState, offset: int, marker: Marker) -> None:
    batch = build_marker(marker, 0)
    state.observe(read_header(batch)._replace(base_offset=offset), batch)


# --- accepted batches


def test_the_first_batch_of_a_transaction_must_be_verified_and_the_others_need_not() -> None:
    state = ProducerState()
    assert state.needs_verification(1, 0)
    assert state.check(data(0, 1), verified=True)[0] is SequenceCheck.APPEND
    state.update(data(0, 1))
    assert not state.needs_verification(1, 0)
    assert state.check(data(1, 1, sequence=1), verified=True)[0] is SequenceCheck.APPEND
    mark(state, 1, Marker(1, 0, True, 0))
    assert state.needs_verification(1, 0)


def test_a_batch_of_a_transaction_without_a_transactional_id_is_refused_also_while_the_transaction_is_open() -> None:
    state = ProducerState()
    assert state.check(data(0, 1))[0] is SequenceCheck.UNVERIFIED
    state.update(data(0, 1))
    assert state.check(data(1, 1, sequence=1))[0] is SequenceCheck.UNVERIFIED


@pytest.mark.parametrize("is_open", [True, False])
def test_a_fenced_epoch_is_refused_without_the_coordinator(is_open: bool) -> None:
    state = ProducerState()
    state.update(data(0, 1, epoch=3))
    if not is_open:
        mark(state, 1, Marker(1, 3, True, 0))
    assert not state.needs_verification(1, 2)
    assert state.check(data(2, 1, epoch=2), verified=True)[0] is SequenceCheck.FENCED
    assert state.needs_verification(1, 4)


def test_a_repeated_batch_of_a_transaction_that_has_ended_is_a_duplicate() -> None:
    state = ProducerState()
    state.update(data(0, 1))
    mark(state, 1, Marker(1, 0, True, 0))
    assert state.check(data(0, 1))[0] is SequenceCheck.DUPLICATE


def test_other_writes_of_a_producer_with_an_open_transaction_are_refused() -> None:
    state = ProducerState()
    state.update(data(0, 1))
    assert state.check(data(1, 1, sequence=1, transactional=False))[0] is SequenceCheck.WRONG_STATE
    assert state.check(data(1, 1, epoch=1), verified=True)[0] is SequenceCheck.WRONG_STATE


def test_a_zombie_is_fenced_by_the_marker_that_ended_its_transaction() -> None:
    state = ProducerState()
    state.update(data(0, 1, epoch=4))
    mark(state, 1, Marker(1, 5, False, 0))
    assert state.check(data(2, 1, epoch=4, sequence=1), verified=True)[0] is SequenceCheck.FENCED
    assert state.check(data(2, 1, epoch=5), verified=True)[0] is SequenceCheck.APPEND


def test_the_first_batch_behind_a_marker_of_a_newer_epoch_has_sequence_number_zero() -> None:
    state = ProducerState()
    state.update(data(0, 1, epoch=0))
    mark(state, 1, Marker(1, 1, False, 0))
    assert state.check(data(2, 1, epoch=1, sequence=1), verified=True)[0] is SequenceCheck.OUT_OF_ORDER
    assert state.check(data(2, 1, epoch=1, sequence=0), verified=True)[0] is SequenceCheck.APPEND


def test_a_batch_behind_a_marker_of_its_own_epoch_continues_the_sequence() -> None:
    state = ProducerState()
    state.update(data(0, 1))
    mark(state, 1, Marker(1, 0, True, 0))
    assert state.check(data(2, 1, sequence=5), verified=True)[0] is SequenceCheck.OUT_OF_ORDER
    assert state.check(data(2, 1, sequence=1), verified=True)[0] is SequenceCheck.APPEND


def test_a_marker_of_a_coordinator_that_was_replaced_is_refused_also_after_a_restart() -> None:
    state = ProducerState()
    state.update(data(0, 1))
    mark(state, 1, Marker(1, 0, True, 6))
    again = ProducerState()
    again.restore(state.snapshot())
    for each in (state, again):
        assert each.check_marker(Marker(1, 0, False, 5)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert each.check_marker(Marker(1, 0, False, 6)) is ErrorCode.NONE
        assert each.check_marker(Marker(1, 1, False, 7)) is ErrorCode.NONE


def test_a_marker_of_an_epoch_before_the_present_one_is_refused() -> None:
    state = ProducerState()
    state.update(data(0, 1, epoch=3))
    assert state.check_marker(Marker(1, 2, True, 0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_producer_with_an_open_transaction_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.replica.producer_state.MAX_PRODUCERS", 5)
    state = ProducerState()
    for pid in range(3):
        state.update(data(pid, pid), now_ms=0)
    for pid in range(3, 30):
        state.update(data(pid, pid, transactional=False), now_ms=0)
    assert list(state.transactions.open) == [0, 1, 2]
    assert {0, 1, 2} <= set(state.entries)
    state.expire(1_000_000, 1)
    assert set(state.entries) == {0, 1, 2}


# --- last stable offset

STEPS = st.lists(
    st.tuples(st.sampled_from(["data", "plain", "commit", "abort", "replicate"]), st.integers(0, 3), st.integers(0, 9)),
    max_size=60,
)


class Model:
    """A slow reference model: lists of open and ended transactions."""

    def __init__(self) -> None:
        self.end = self.high_watermark = 0
        self.open: dict[int, int] = {}
        self.ended: list[tuple[int, int, int, bool]] = []

    def stable(self) -> int:
        undecided = [*self.open.values(), *(f for _, f, m, _ in self.ended if m >= self.high_watermark)]
        return min([self.high_watermark, *undecided])

    def aborted(self, start: int, end: int) -> set[tuple[int, int]]:
        return {(pid, f) for pid, f, m, committed in self.ended if not committed and m >= start and f < end}


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=settings().max_examples * 2)
def test_the_stable_offset_is_that_of_a_plain_model_and_never_goes_back(steps: list[tuple[str, int, int]]) -> None:
    state, model = ProducerState(), Model()
    sequences: dict[int, int] = {}
    before = 0
    for kind, pid, number in steps:
        if kind == "data":
            state.update(data(model.end, pid, sequence=sequences.get(pid, 0)))
            sequences[pid] = sequences.get(pid, 0) + 1
            model.open.setdefault(pid, model.end)
            model.end += 1
        elif kind == "plain":
            model.end += 1
        elif kind == "replicate":
            model.high_watermark = min(model.end, model.high_watermark + number)
        else:
            mark(state, model.end, Marker(pid, 0, kind == "commit", 0))
            if pid in model.open:
                model.ended.append((pid, model.open.pop(pid), model.end, kind == "commit"))
            model.end += 1
        stable = state.transactions.stable_offset(model.high_watermark)
        assert stable == model.stable()
        assert stable >= before, "the last stable offset went back"
        before = stable
        for start in range(0, stable + 1, 5):
            found = state.transactions.aborted_between(start, stable, 0)
            assert set(found) == model.aborted(start, stable)
    again = ProducerState()
    again.restore(state.snapshot())
    assert again.transactions.stable_offset(model.high_watermark) == before
    assert again.transactions.open == state.transactions.open


def test_many_decided_and_unreplicated_transactions_hold_readers_back_and_cost_little() -> None:
    transactions = OpenTransactions()
    for i in range(10_000):
        transactions.start_transaction(1, 2 * i)
        transactions.end_transaction(1, 2 * i + 1, True)
    assert len(transactions.unreplicated) <= 256
    assert transactions.stable_offset(0) == 0
    assert transactions.stable_offset(20_000) == 20_000


def test_a_snapshot_of_the_format_without_transactions_is_read() -> None:
    old = msgspec.msgpack.encode((1, [(9, 2, 60, [(0, 0, 5, 5, 60)])]))
    state = ProducerState()
    state.restore(old)
    assert state.entries[9].epoch == 2
    assert state.check(data(0, 9, epoch=2, sequence=1, transactional=False))[0] is SequenceCheck.APPEND
    assert not state.transactions.open


def test_what_is_no_snapshot_is_refused() -> None:
    for wrong in (b"", b"\x00", msgspec.msgpack.encode((3, [], [])), msgspec.msgpack.encode((2, [], 5))):
        with pytest.raises(ValueError, match=r"snapshot|malformed|MessagePack|truncated|Expected"):
            ProducerState().restore(wrong)


# --- a real log


def produce(partition: Leader, pid: int, sequence: int, epoch: int = 0) -> int:
    batch = batch_of(1, producer=(pid, epoch, sequence), attributes=TRANSACTIONAL)
    done = partition.append(batch, verified=True)
    assert done.error == 0, done
    return done.base_offset


async def test_a_marker_that_is_repeated_is_written_once(tmp_path: Path) -> None:
    async with opened_data_path(tmp_path) as path:
        partition = await path.partition()
        produce(partition, 1, 0)
        marker = Marker(1, 0, True, 0)
        first = partition.write_marker(marker)
        assert (first.error, first.required_offset) == (0, 2)
        again = partition.write_marker(marker)
        assert (again.error, again.required_offset) == (0, 2)
        assert partition.log.end_offset == 2
        produce(partition, 1, 1)
        assert partition.write_marker(marker).required_offset == 4


async def test_a_marker_that_comes_too_late_is_not_written(tmp_path: Path) -> None:
    async with opened_data_path(tmp_path) as path:
        partition = await path.partition()
        produce(partition, 1, 0)
        assert partition.write_marker(Marker(1, 0, True, 6)).error == 0
        produce(partition, 1, 1)
        late = partition.write_marker(Marker(1, 0, False, 5))
        assert late.error == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert partition.log.end_offset == 3
        await path.flushed()
        assert partition.last_stable_offset == 2


@pytest.mark.parametrize("wrote", [True, False])
async def test_a_marker_by_hand_does_not_take_the_coordinators_place(tmp_path: Path, wrote: bool) -> None:
    async with opened_data_path(tmp_path) as path:
        partition = await path.partition()
        sequence = 0
        if wrote:
            produce(partition, 1, sequence)
            assert partition.write_marker(Marker(1, 0, True, 6)).error == 0
            sequence = 1
        produce(partition, 1, sequence)
        assert partition.write_marker(Marker(1, 0, False, 2**31 - 1), is_administrative=True).error == 0
        await path.flushed()
        assert partition.last_stable_offset == partition.log.end_offset
        produce(partition, 1, sequence + 1)
        assert partition.write_marker(Marker(1, 0, True, 6)).error == 0
        await path.flushed()
        assert partition.last_stable_offset == partition.log.end_offset


@pytest.mark.parametrize("clean", [True, False])
async def test_after_a_restart_the_same_is_open_and_the_same_was_aborted(tmp_path: Path, clean: bool) -> None:
    clock = HandClock()
    async with opened_data_path(tmp_path, clean=clean, clock=clock) as path:
        partition = await path.partition()
        for i in range(30):
            produce(partition, i % 3, i // 3)
            if i % 7 == 6:
                partition.write_marker(Marker(i % 3, 0, i % 2 == 0, 0))
        await path.flushed()
        stable = partition.last_stable_offset
        expected = partition.aborted_between(0, stable), dict(partition.producers.transactions.open), stable
        assert expected[1]
        written = headers_in(read_all(partition.log))
    async with opened_data_path(tmp_path, clock=clock) as path:
        again = path.replicas.find("t", 0)
        assert again is not None
        assert headers_in(read_all(again.log)) == written
        stable = again.last_stable_offset
        assert (again.aborted_between(0, stable), dict(again.producers.transactions.open), stable) == expected
