"""The state of idempotent producers, and the results for duplicate, missing and old batches."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replica import producer_state
from penstock.replica.producer_state import SEQUENCE_MODULUS, ProducerState, SequenceCheck
from penstock.wire.batch import BatchHeader


def batch(sequence: int, count: int = 1, *, epoch: int = 0, base_offset: int = 0, pid: int = 1) -> BatchHeader:
    return BatchHeader(base_offset, 100, 0, 2, 0, 0, count - 1, 50, 60, pid, epoch, sequence, count)


def state_after(*headers: BatchHeader) -> ProducerState:
    state = ProducerState()
    for header in headers:
        assert state.check(header)[0] is SequenceCheck.APPEND
        state.update(header)
    return state


def test_batches_in_sequence_are_appended() -> None:
    state_after(batch(0, 3), batch(3, 2, base_offset=3), batch(5, base_offset=5))


def test_a_repeated_batch_is_a_duplicate_of_the_original() -> None:
    state = state_after(batch(0, 3, base_offset=40), batch(3, base_offset=43))
    verdict, original = state.check(batch(0, 3))
    assert verdict is SequenceCheck.DUPLICATE
    assert original is not None
    assert (original.base_offset, original.last_offset) == (40, 42)


def test_each_of_the_last_five_batches_is_remembered() -> None:
    state = state_after(*(batch(i, base_offset=i) for i in range(5)))
    assert [state.check(batch(i))[0] for i in range(5)] == [SequenceCheck.DUPLICATE] * 5


def test_a_repeat_of_what_came_before_those_is_an_old_duplicate() -> None:
    state = state_after(*(batch(i, base_offset=i) for i in range(8)))
    assert state.check(batch(1))[0] is SequenceCheck.OLD_DUPLICATE


def test_a_gap_is_out_of_order() -> None:
    state = state_after(batch(0))
    assert state.check(batch(2))[0] is SequenceCheck.OUT_OF_ORDER


def test_a_batch_that_overlaps_a_remembered_one_is_out_of_order() -> None:
    state = state_after(batch(0, 4))
    assert state.check(batch(2, 4))[0] is SequenceCheck.OUT_OF_ORDER


def test_an_older_epoch_is_fenced() -> None:
    state = state_after(batch(0, epoch=3))
    assert state.check(batch(1, epoch=2))[0] is SequenceCheck.FENCED


def test_a_newer_epoch_starts_at_zero() -> None:
    state = state_after(batch(0), batch(1))
    assert state.check(batch(1, epoch=1))[0] is SequenceCheck.OUT_OF_ORDER
    assert state.check(batch(0, epoch=1))[0] is SequenceCheck.APPEND


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert ProducerState().check(batch(17))[0] is SequenceCheck.APPEND


def test_sequence_numbers_wrap() -> None:
    state = state_after(batch(SEQUENCE_MODULUS - 2, 2), batch(0, 2, base_offset=2))
    assert state.check(batch(SEQUENCE_MODULUS - 2, 2))[0] is SequenceCheck.DUPLICATE


def test_silent_producers_are_forgotten() -> None:
    state = ProducerState()
    state.update(batch(0), now_ms=1000)
    assert state.expire(now_ms=1500, silent_ms=500) == 0
    assert state.expire(now_ms=1501, silent_ms=500) == 1
    assert not state.entries


def test_who_writes_old_data_is_not_silent() -> None:
    state = ProducerState()
    state.update(batch(0), now_ms=1000)
    state.update(batch(1), now_ms=1_000_000_000)
    assert state.expire(now_ms=1_000_000_400, silent_ms=500) == 0


def test_a_restored_producer_counts_as_silent_from_the_first_look_on() -> None:
    state = ProducerState()
    state.restore(state_after(batch(0)).snapshot())
    assert state.expire(now_ms=1_000_000, silent_ms=500) == 0
    assert state.expire(now_ms=1_000_500, silent_ms=500) == 0
    assert state.expire(now_ms=1_000_501, silent_ms=500) == 1


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=40))
def test_a_snapshot_restores_the_same_answers(writes: list[tuple[int, int]]) -> None:
    state, offset, sequence = ProducerState(), 0, {}
    for pid, count in writes:
        header = batch(sequence.get(pid, 0), count, base_offset=offset, pid=pid)
        state.update(header)
        sequence[pid] = sequence.get(pid, 0) + count
        offset += count
    restored = ProducerState()
    restored.restore(state.snapshot())
    assert restored.snapshot() == state.snapshot()
    for pid, last in sequence.items():
        assert restored.check(batch(last, pid=pid)) == state.check(batch(last, pid=pid))


@pytest.mark.parametrize("junk", [b"", b"\xff" * 20, b"\x92\x02\x90", b"\x92\x01\x91\x01"])
def test_what_is_no_snapshot_is_refused(junk: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        ProducerState().restore(junk)


def test_past_the_bound_the_producer_that_was_silent_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "MAX_PRODUCERS", 3)
    state = state_after(*(batch(0, pid=pid, base_offset=pid) for pid in range(3)), batch(1, pid=0, base_offset=3))
    state.update(batch(0, pid=3, base_offset=4))
    assert list(state.entries) == [2, 0, 3]


@pytest.mark.slow
def test_a_producer_takes_few_bytes_however_many_batches_it_wrote() -> None:
    state, count = ProducerState(), 2000
    tracemalloc.start()
    try:
        for pid in range(10**9, 10**9 + count):
            for number in range(7):
                state.update(batch(number * 3, 3, base_offset=pid * 100 + number * 3, pid=pid), pid + number)
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size_bytes / count < 600, "what docs/reference/memory.md says no longer holds"


def test_remembered_batches_are_what_was_appended() -> None:
    state = state_after(*(batch(i * 3, 3, base_offset=100 + i * 3) for i in range(6)))
    assert [tuple(b) for b in state.entries[1].batches] == [
        (i * 3, i * 3 + 2, 100 + i * 3, 102 + i * 3, 60) for i in range(1, 6)
    ]
    restored = ProducerState()
    restored.restore(state.snapshot())
    assert restored.entries[1].batches == state.entries[1].batches


@pytest.mark.parametrize("batches", [[(1 << 31, 1, 0, 1, 0)], [(0, 0, 0, 1 << 40, 0)]])
def test_a_snapshot_with_numbers_out_of_range_is_refused(batches: list[tuple[int, ...]]) -> None:
    fields = msgspec.msgpack.decode(ProducerState().snapshot())
    fields[1] = [(7, 0, 0, batches, -1)]
    with pytest.raises(ValueError, match="invalid producer snapshot"):
        ProducerState().restore(msgspec.msgpack.encode(fields))


def test_a_leader_never_appends_a_batch_of_an_earlier_epoch_but_a_replayed_log_may_have_one() -> None:
    state = ProducerState()
    state.update(batch(0, epoch=4), now_ms=1)
    state.update(batch(0, epoch=3, base_offset=1))
    assert state.entries[1].epoch == 3
    with pytest.raises(AssertionError, match="producer 1 went from epoch 3 back to 2"):
        state.update(batch(0, epoch=2, base_offset=2), now_ms=2)
