"""Variable-length integers of the protocol and of the record format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_uvarint, read_varlong, write_uvarint, write_varlong


@given(st.integers(0, (1 << 32) - 1))
def test_an_unsigned_number_comes_back(value: int) -> None:
    out = bytearray(b"x")
    write_uvarint(out, value)
    assert len(out) - 1 == max(1, -(-value.bit_length() // 7))
    assert read_uvarint(out + b"\xff", 1) == (value, len(out))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_signed_number_comes_back(value: int) -> None:
    out = bytearray(b"x")
    write_varlong(out, value)
    assert read_varlong(out + b"\xff", 1) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (300, "d804"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2147483647, "feffffff0f"),
    ],
)
def test_signed_numbers_are_in_zigzag_order(value: int, encoded: str) -> None:
    out = bytearray()
    write_varlong(out, value)
    assert out.hex() == encoded
    assert read_varlong(out, 0) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
    ],
)
def test_an_unsigned_number_has_no_byte_too_many(value: int, encoded: str) -> None:
    out = bytearray()
    write_uvarint(out, value)
    assert out.hex() == encoded
    assert read_uvarint(out, 0) == (value, len(out))


@pytest.mark.parametrize("data", ["ffffffff1f", "8080808010", "ffffffffff01", "808080808000"])
def test_an_unsigned_number_past_32_bits_is_malformed(data: str) -> None:
    with pytest.raises(MalformedMessage, match="32 bits"):
        read_uvarint(bytes.fromhex(data), 0)


@pytest.mark.parametrize("data", ["ffffffffffffffffff02", "8080808080808080808001", "ff" * 12])
def test_a_signed_number_past_64_bits_is_malformed(data: str) -> None:
    with pytest.raises(MalformedMessage, match="64 bits"):
        read_varlong(bytes.fromhex(data), 0)


@given(st.binary(max_size=12))
def test_any_bytes_are_a_number_or_an_error(data: bytes) -> None:
    for read, bits in ((read_uvarint, 32), (read_varlong, 64)):
        try:
            value, end = read(data, 0)
        except (MalformedMessage, IndexError):
            continue
        assert -(1 << bits) < value < 1 << bits
        assert 0 < end <= len(data)


@pytest.mark.parametrize("value", [-1, 1 << 32])
def test_what_is_no_unsigned_number_is_not_written(value: int) -> None:
    with pytest.raises(AssertionError, match="unsigned"):
        write_uvarint(bytearray(), value)
