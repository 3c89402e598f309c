"""Each compression codec in the framings that clients use, within the given memory limit."""

from __future__ import annotations

import random
import struct
import tracemalloc

import cramjam
import pytest
from aiokafka.codec import (
    gzip_decode,
    gzip_encode,
    lz4_decode,
    lz4_encode,
    snappy_decode,
    snappy_encode,
    zstd_decode,
    zstd_encode,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.compression import Codec, compress, decompress, decompress_into
from penstock.wire.schema import MalformedMessage

CODECS = [c for c in Codec if c]
MIB = 1 << 20
THEIRS = {
    Codec.GZIP: (gzip_encode, gzip_decode),
    Codec.SNAPPY: (snappy_encode, snappy_decode),
    Codec.LZ4: (lz4_encode, lz4_decode),
    Codec.ZSTD: (zstd_encode, zstd_decode),
}


@settings(deadline=None)
@given(st.sampled_from(list(Codec)), st.binary(max_size=5000), st.integers(1, 60))
def test_what_was_compressed_comes_back(codec: Codec, piece: bytes, times: int) -> None:
    data = piece * times
    assert bytes(decompress(codec, compress(codec, data), len(data))) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 100, 32 << 10, (32 << 10) + 1, 3 * MIB])
def test_others_read_and_write_the_same_framing(codec: Codec, size: int) -> None:
    data = random.Random(size).randbytes(size // 2) + b"a" * (size - size // 2)
    encode, decode = THEIRS[codec]
    assert bytes(decode(bytes(compress(codec, data)))) == data
    assert bytes(decompress(codec, encode(data), size)) == data


def test_snappy_is_read_without_framing_too() -> None:
    data = b"flights " * 1000
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), len(data))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_no_more_than_the_bound_is_ever_made(codec: Codec) -> None:
    data = b"\0" * (64 * MIB)
    bomb = compress(codec, data)
    assert len(decompress(codec, bomb, len(data))) == len(data)
    for bound in (0, 1, 5000, MIB):
        tracemalloc.start()
        try:
            with pytest.raises(MalformedMessage, match=f"more than {bound} bytes"):
                decompress(codec, bomb, bound)
            # threads of earlier tests may allocate memory too
            assert tracemalloc.get_traced_memory()[1] < 1.5 * bound + MIB // 2 + len(bomb)
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_into_a_given_place_it_goes_whole_or_not_at_all(codec: Codec) -> None:
    data = random.Random(1).randbytes(50_000) + bytes(50_000)
    packed = compress(codec, data)
    place = bytearray(b"\xff" * 120_000)
    assert decompress_into(codec, packed, memoryview(place)[10:]) == len(data)
    assert place[10 : 10 + len(data)] == data
    assert place[:10] == b"\xff" * 10
    for size in (0, 1, 50_000, len(data) - 1):
        assert decompress_into(codec, packed, bytearray(size)) is None
    assert decompress_into(codec, packed, bytearray(len(data))) == len(data)


@pytest.mark.parametrize("codec", CODECS)
def test_a_scratch_buffer_takes_what_fits_and_never_more_than_the_bound(codec: Codec) -> None:
    scratch = bytearray(b"\xff" * 60_000)
    small, large = random.Random(1).randbytes(60_000), bytes(60_001)
    found = decompress(codec, compress(codec, small), MIB, scratch)
    assert found == small
    assert isinstance(found, memoryview)
    assert found.obj is scratch
    assert found.readonly
    assert decompress(codec, compress(codec, large), MIB, scratch) == large
    with pytest.raises(MalformedMessage, match="more than 59999 bytes"):
        decompress(codec, compress(codec, small), 59_999, scratch)


def test_plain_data_has_a_bound_too() -> None:
    assert decompress(0, b"12345", 5) == b"12345"
    with pytest.raises(MalformedMessage, match="more than 4 bytes"):
        decompress(0, b"12345", 4)


def test_cve_2023_34455_snappy_that_declares_more_than_it_can_hold_is_refused_before_it_is_made() -> None:
    for declared in (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x01"):
        for data in (declared + b"\x00" * 8, b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, 13) + declared + b"\x00" * 8):
            with pytest.raises(MalformedMessage, match="cannot expand to"):
                decompress(Codec.SNAPPY, data, 1 << 33)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_data_is_malformed_and_nothing_else(codec: Codec) -> None:
    rng = random.Random(codec)
    data = rng.randbytes(500) + b"b" * 500
    good = bytes(compress(codec, data))
    for end in range(len(good)):
        try:
            assert data.startswith(bytes(decompress(codec, good[:end], MIB))), end
        except MalformedMessage:
            continue
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 5)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            assert len(decompress(codec, bad, MIB)) <= MIB
        except MalformedMessage:
            continue


@pytest.mark.parametrize("number", [5, 6, 7, -1])
def test_an_unknown_codec_is_named(number: int) -> None:
    with pytest.raises(MalformedMessage, match=f"codec {number} is unknown"):
        decompress(number, b"x", 10)
    with pytest.raises(ValueError, match=str(number)):
        compress(number, b"x")


def test_blocks_of_an_lz4_frame_do_not_refer_to_each_other() -> None:
    """Java clients reject a frame whose descriptor does not declare independent blocks."""
    frame = bytes(compress(Codec.LZ4, b"records " * 50_000))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0b0010_0000
