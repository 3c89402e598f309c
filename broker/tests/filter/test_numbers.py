"""Numbers are decimal, bounded in length and range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.filter.numbers import number_of


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"5", 5), (b"-5", -5), (b"5.0", 5.0), (b".5", 0.5), (b"1e3", 1000.0), (b"1E-3", 0.001), (b"0" * 39 + b"7", 7)],
)
def test_a_decimal_number_is_read(text: bytes, number: float) -> None:
    found = number_of(text)
    assert found == number
    assert type(found) is type(number)


@given(st.binary(max_size=45))
def test_any_bytes_are_a_finite_number_or_none(text: bytes) -> None:
    found = number_of(text)
    assert found is None or (found == found and abs(found) != float("inf") and len(text) <= 40)
