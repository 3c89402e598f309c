"""Visits all objects of a kind in turns, a bounded number at a time. Used by the controllers' resyncs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Rotation:
    """Remembers where the last turn ended."""

    def __init__(self, size: int) -> None:
        """Create a rotation of at most `size` objects a turn."""
        self._size, self._next = size, 0

    def next_turn(self, objects: Sequence[T]) -> list[T]:
        """Return the objects of the next turn, each at most once; the list may have changed since the last turn."""
        total = len(objects)
        if not total:
            return []
        size, start = min(self._size, total), self._next % total
        self._next = (start + size) % total
        return [objects[(start + offset) % total] for offset in range(size)]
