"""Numbers in filters and in the values of headers: decimal, with an optional fraction and exponent."""

from __future__ import annotations

import re

MAX_NUMBER_CHARS = 40
NUMBER = re.compile(rb"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")


def number_of(text: bytes) -> int | float | None:
    """Return the number that the text is; None if it is none, longer than 40 characters, or larger than a double."""
    if len(text) > MAX_NUMBER_CHARS:
        return None
    match = NUMBER.fullmatch(text)
    if match is None:
        return None
    if not any(match.groups()):
        return int(text)
    number = float(text)
    return number if abs(number) != float("inf") else None
