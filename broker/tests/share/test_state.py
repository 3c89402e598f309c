"""The stored state of a share-partition: what is written is read, and no other bytes are accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.share.partition import ShareSnapshot
from penstock.share.state import (
    HEAD,
    MAX_RUNS,
    MAX_STATE_BYTES,
    InvalidShareState,
    ShareState,
    StateVersion,
    decode_state,
    encode_state,
)
from penstock.share.window import RecordState, StateRun

STORED = [RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED]
epochs = st.integers(0, (1 << 31) - 1)


@st.composite
def states(draw: st.DrawFn) -> ShareState:
    start = draw(st.integers(0, 1 << 50))
    position, runs = start, []
    for length in draw(st.lists(st.one_of(st.integers(1, 200), st.integers(1, 1 << 40)), max_size=40)):
        runs.append(StateRun(position, position + length - 1, draw(st.sampled_from(STORED)), draw(st.integers(0, 10))))
        position += length
    return ShareState(
        StateVersion(draw(epochs), draw(epochs), draw(st.integers(0, 1 << 40))), ShareSnapshot(start, runs)
    )


def alternating(runs: int) -> ShareState:
    """Return a state in which neighbours differ."""
    return ShareState(
        StateVersion(1, 2, 3), ShareSnapshot(7, [StateRun(7 + i, 7 + i, STORED[i % 2], 1 + i % 5) for i in range(runs)])
    )


@given(states())
def test_a_state_is_read_as_it_was_written(state: ShareState) -> None:
    assert decode_state(encode_state(state)) == state


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: encode_state(alternating(3)) + tail))
def test_other_bytes_are_rejected_or_are_a_state(data: bytes) -> None:
    try:
        state = decode_state(data)
    except InvalidShareState:
        return
    assert decode_state(encode_state(state)) == state


@given(states(), st.data())
def test_every_truncated_state_is_rejected(state: ShareState, data: st.DataObject) -> None:
    whole = encode_state(state)
    with pytest.raises(InvalidShareState):
        decode_state(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"\x03" + data[1:], "unknown format 3"),
        (lambda data: data + b"\0", "1 bytes follow"),
        (lambda data: data[: HEAD.size] + b"\xff\xff\xff\x7f" + data[HEAD.size + 1 :], "runs, more than"),
        (lambda data: data[: HEAD.size + 1] + b"\0" + data[HEAD.size + 2 :], "invalid run of 0 offsets at 7"),
        (lambda data: data[: HEAD.size + 2] + b"\x07" + data[HEAD.size + 3 :], "invalid run"),
        (lambda data: data[:1] + b"\x80" + data[2:], "negative"),
        (lambda data: data + bytes(MAX_STATE_BYTES), "bytes"),
    ],
)
def test_a_damaged_state_is_rejected_with_the_reason(damage: object, reason: str) -> None:
    assert callable(damage)
    with pytest.raises(InvalidShareState, match=reason):
        decode_state(damage(encode_state(alternating(3))))


def test_the_largest_state_fits_its_bound() -> None:
    state = alternating(MAX_RUNS)
    encoded = encode_state(state)
    assert len(encoded) <= MAX_STATE_BYTES
    assert decode_state(encoded) == state
    with pytest.raises(AssertionError):
        encode_state(alternating(MAX_RUNS + 1))


def test_the_default_window_takes_4_kib_at_the_worst_alternation() -> None:
    assert len(encode_state(alternating(2_000))) < 4_100
