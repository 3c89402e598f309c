"""Chunks of any size are assembled into frames, and memory is allocated only as bytes arrive."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.frames import RECEIVE_SIZE, ResponseReader, response_body
from penstock.wire.schema import MalformedMessage

LIMIT = 4 * 1024 * 1024


def receive(reader: ResponseReader, data: bytes, piece: int) -> list[bytes]:
    frames = []
    while data:
        with reader.buffer() as buffer:
            count = min(len(buffer), len(data), piece)
            buffer[:count] = data[:count]
        data = data[count:]
        frames += [bytes(frame) for frame in reader.received(count)]
    return frames


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 700))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(frames: list[bytes], piece: int) -> None:
    stream = b"".join(struct.pack(">i", len(f)) + f for f in frames)
    assert receive(ResponseReader(LIMIT), stream, piece) == frames


@pytest.mark.parametrize("size", [RECEIVE_SIZE - 4, RECEIVE_SIZE - 3, RECEIVE_SIZE, 3 * RECEIVE_SIZE + 7])
def test_a_frame_larger_than_the_buffer_arrives_between_small_ones(size: int) -> None:
    frames = [b"before", bytes(range(256)) * (size // 256) + b"x" * (size % 256), b"after"]
    stream = b"".join(struct.pack(">i", len(f)) + f for f in frames)
    assert receive(ResponseReader(LIMIT), stream, 60_000) == frames


@pytest.mark.parametrize("size", [-1, LIMIT + 1, 2**31 - 1])
def test_a_length_out_of_bounds_is_an_error(size: int) -> None:
    with pytest.raises(MalformedMessage, match=str(size)):
        receive(ResponseReader(LIMIT), struct.pack(">i", size) + b"x", 100)


def test_a_declared_length_allocates_little_until_bytes_come() -> None:
    reader = ResponseReader(1 << 30)
    receive(reader, struct.pack(">i", 1 << 30) + b"x" * 100, 200)
    assert len(reader.buffer()) <= 2 * RECEIVE_SIZE


def test_tags_in_a_response_header_are_skipped() -> None:
    frame = memoryview(struct.pack(">i", 7) + b"\x01\x05\x02ab" + b"body")
    assert bytes(response_body(0, True, frame)) == b"body"


def test_a_response_header_that_is_cut_short_is_an_error() -> None:
    with pytest.raises(MalformedMessage, match="truncated"):
        response_body(0, True, memoryview(struct.pack(">i", 7) + b"\x01"))
