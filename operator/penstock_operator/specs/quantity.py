"""Kubernetes quantities (`500m`, `10Gi`). The API server may return an equal quantity in another notation."""

from __future__ import annotations

from fractions import Fraction

_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)} | {
    prefix + i: Fraction((1024 if i else 1000) ** power)
    for power, prefix in enumerate(("k", "M", "G", "T", "P", "E"), 1)
    for i in ("", "i")
}
_SUFFIXES["Ki"] = _SUFFIXES.pop("ki")
MAX_CHARS = 40
MAX_EXPONENT = 30


def amount(text: str) -> Fraction:
    """Parse a quantity. Raises ValueError."""
    if len(text) > MAX_CHARS:
        raise ValueError(f'"{text[:MAX_CHARS]}..." is not a quantity: use a number and a unit such as 10Gi')
    number = text.rstrip("numkKMGTPEi")
    suffix = text[len(number) :]
    try:
        if suffix not in _SUFFIXES or not number.isascii() or "/" in number or "_" in number:
            raise ValueError(text)
        if "e" in number.lower() and abs(int(number.lower().partition("e")[2])) > MAX_EXPONENT:
            raise ValueError(text)
        return Fraction(number) * _SUFFIXES[suffix]
    except ValueError:
        raise ValueError(f'"{text}" is not a quantity: use a number and a unit such as 10Gi') from None


def same(one: str, other: str) -> bool:
    """Whether two quantities are equal; invalid ones are compared as strings."""
    if one == other:
        return True
    try:
        return amount(one) == amount(other)
    except ValueError:
        return False
