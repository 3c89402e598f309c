"""Kubernetes quantities."""

from __future__ import annotations

from fractions import Fraction

import pytest

from penstock_operator.specs.quantity import amount, same


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("500m", Fraction(1, 2)), ("1k", 1000), ("1Ki", 1024), ("10Gi", 10 << 30), ("1.5G", 1_500_000_000),
     ("1e3", 1000), ("2E", 2 * 10**18), ("0", 0)],
)  # fmt: skip
def test_a_quantity_is_read(text: str, value: Fraction) -> None:
    assert amount(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1gb", "1 Gib", "1/2", "nan", "1e999999999", "9" * 50, "1_0"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        amount(text)


def test_one_amount_in_two_ways_is_the_same() -> None:
    assert same("1Gi", "1024Mi")
    assert not same("1Gi", "1G")
    assert same("odd", "odd")
    assert not same("odd", "1")
