"""Frames are complete however the stream is split, and a declared size allocates no memory."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.exchange import ProtocolViolation
from penstock.server.buffers import (
    GROWTH_FACTOR,
    MAX_COPIED_FRAGMENT_BYTES,
    SHARED_BUFFER_BYTES,
    BufferPool,
    RequestReader,
)

MIB = 1 << 20


def feed(reader: RequestReader, data: bytes, most: int | None = None) -> list[bytes]:
    """Receive `data` as a socket does and read up to `most` frames per turn."""
    frames = []
    while data:
        buffer = reader.get_buffer()
        assert len(buffer) > 0, "there is room to receive"
        taken = min(len(buffer), len(data))
        buffer[:taken] = data[:taken]
        data = data[taken:]
        reader.received(taken)
        frames += read_frames(reader, most)
    return frames


def read_frames(reader: RequestReader, most: int | None = None) -> list[bytes]:
    frames = []
    while most is None or len(frames) < most:
        frame = reader.next_frame()
        if frame is None:
            break
        frames.append(bytes(frame))
    reader.retain_partial_frame()
    return frames


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


sizes = st.lists(
    st.one_of(
        st.integers(0, 40),
        st.integers(0, 3 * MAX_COPIED_FRAGMENT_BYTES),
        st.sampled_from([SHARED_BUFFER_BYTES, 3 * MIB]),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(sizes, st.integers(0, 1 << 32), st.sampled_from([1, 3]))
def test_frames_come_out_as_they_went_in_however_they_are_cut(lengths: list[int], seed: int, readers: int) -> None:
    rng = random.Random(seed)
    pool = BufferPool(8 * MIB)
    contents = [rng.randbytes(n) for n in lengths]
    stream = b"".join(map(framed, contents))
    pairs = [(RequestReader(pool), list[bytes]()) for _ in range(readers)]
    cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.choice([0, 3, 60])))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for reader, frames in pairs:  # interleaved, because the readers share a buffer
            frames += feed(reader, stream[start:end])
    for reader, frames in pairs:
        assert frames == contents
        assert not reader.held_bytes
    assert pool.held_bytes == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2000), min_size=1, max_size=200), st.integers(1, 30))
def test_what_is_not_taken_yet_waits_its_turn(lengths: list[int], most: int) -> None:
    reader = RequestReader(BufferPool(MIB))
    contents = [bytes([i % 256]) * n for i, n in enumerate(lengths)]
    frames = feed(reader, b"".join(map(framed, contents)), most)
    while len(frames) < len(contents):
        reader.get_buffer()
        reader.received(0)
        more = read_frames(reader, most)
        assert more, "each turn brings some"
        frames += more
    assert frames == contents
    assert not reader.held_bytes


def test_a_declared_size_takes_no_memory_before_bytes_come() -> None:
    pool = BufferPool(100 * MIB)
    readers = [RequestReader(pool) for _ in range(1000)]
    for reader in readers:
        assert feed(reader, struct.pack(">i", 100 * MIB) + b"x" * 20) == []
    assert pool.held_bytes == 24_000


@pytest.mark.slow
def test_memory_for_a_frame_grows_with_what_has_arrived() -> None:
    pool = BufferPool(100 * MIB)
    reader = RequestReader(pool)
    arrived = 4
    feed(reader, struct.pack(">i", 64 * MIB))
    while arrived < 63 * MIB:
        feed(reader, b"x" * 100_000)
        arrived += 100_000
        assert pool.held_bytes <= 2 * GROWTH_FACTOR * arrived


def test_a_peer_that_has_sent_large_frames_gets_room_for_the_next_at_once() -> None:
    pool = BufferPool(100 * MIB)
    reader = RequestReader(pool)
    frame = framed(b"y" * 900_000)
    assert len(feed(reader, frame)) == 1
    assert feed(reader, frame[:70_000]) == []
    assert reader.frame_buffer is not None
    assert len(reader.get_buffer()) == len(frame) - 70_000, "exactly the rest is asked for"
    assert len(feed(reader, frame[70_000:])) == 1
    assert pool.held_bytes == 0


def test_what_a_peer_has_sent_before_gets_it_no_more_than_all_peers_are_trusted_with() -> None:
    """Without the common bound, five bytes from each of 100 connections would reserve 100 times the largest request."""
    frame = framed(b"z" * (2 * MIB))
    pool = BufferPool(8 * MIB, trusted_bytes=5 * MIB)
    readers = [RequestReader(pool) for _ in range(100)]
    for reader in readers:
        assert len(feed(reader, frame)) == 1
    assert pool.held_bytes == 0
    for reader in readers:
        feed(reader, frame[:5])
    assert len([r for r in readers if r.frame_buffer is not None]) == 1, "with a second one it would be more"
    assert pool.held_bytes <= 5 * MIB
    for reader in readers[:3]:
        assert feed(reader, frame[5:]) == [frame[4:]]
    feed(readers[-1], frame[5:70_000])
    assert readers[-1].frame_buffer is not None
    assert len(readers[-1].frame_buffer) > 2 * MIB, "there is room again"


def test_a_buffer_that_was_given_on_trust_does_not_count_against_its_own_frame() -> None:
    reader = RequestReader(BufferPool(8 * MIB, trusted_bytes=5 * MIB))
    frame = framed(b"z" * (3 * MIB))
    assert len(feed(reader, frame)) == 1
    feed(reader, frame[:5])
    own = reader.frame_buffer
    assert own is not None
    feed(reader, frame[5:100])
    assert reader.frame_buffer is own
    assert feed(reader, frame[100:]) == [frame[4:]]


@pytest.mark.parametrize("size", [-1, -(1 << 31), MIB + 1, (1 << 31) - 1])
def test_an_impossible_size_is_refused_before_anything_is_held(size: int) -> None:
    pool = BufferPool(MIB)
    with pytest.raises(ProtocolViolation, match=str(size)):
        feed(RequestReader(pool), struct.pack(">i", size) + b"x" * 100)
    assert pool.held_bytes == 0


def test_the_largest_size_allowed_is_taken_and_an_empty_frame_too() -> None:
    reader = RequestReader(BufferPool(MIB))
    assert feed(reader, framed(b"") + framed(b"z" * MIB)) == [b"", b"z" * MIB]


def test_buffers_are_kept_for_others_within_a_bound() -> None:
    pool = BufferPool(100 * MIB)
    for buffer in [pool.acquire(2 * MIB) for _ in range(50)]:
        pool.release(buffer)
    assert pool.retained_bytes == sum(size * len(spare) for size, spare in pool.spare.items()) == 8 * MIB
    pool.acquire(2 * MIB - 5)
    assert pool.retained_bytes == 6 * MIB
