"""Vectorized decoding of varints equals decoding each one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_spark_kit.raw import padded

from penstock.wire.varint import read_varlong, write_varlong
from penstock_spark.decode.varints import VarintTooLong, read_varints

numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70) | st.integers(0, 62).map(lambda n: (1 << n) - 1)


@given(st.lists(numbers, min_size=1, max_size=50))
def test_numbers_of_all_sizes_are_read(values: list[int]) -> None:
    data, at = bytearray(), []
    for value in values:
        at.append(len(data))
        write_varlong(data, value)
    found, behind = read_varints(padded(bytes(data)), np.array(at))
    assert found.tolist() == values
    assert behind.tolist() == [*at[1:], len(data)]


@given(st.binary(min_size=1, max_size=12))
def test_any_bytes_are_read_as_one_by_one(data: bytes) -> None:
    source = padded(data)
    at = np.array([0])
    try:
        wanted = read_varlong(source.data, 0)
    except ValueError:
        with pytest.raises(VarintTooLong):
            read_varints(source, at)
    else:
        found, behind = read_varints(source, at)
        assert (found[0], behind[0]) == wanted


@pytest.mark.parametrize("size", [10, 11, 60])
def test_a_varint_without_end_is_too_long(size: int) -> None:
    source = padded(b"\x02" + b"\xff" * size)
    with pytest.raises(VarintTooLong) as caught:
        read_varints(source, np.array([0, 1]))
    assert caught.value.index == 1
