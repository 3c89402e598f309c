"""A queue of items by due time, with removal. Used by `retention`; it has no clock or timer."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

SPARE = 8
"""Removed entries the heap may always hold; beyond that, at most as many as live entries."""


class DueEntry(Generic[T]):
    """An entry of the heap; `item` is None once the entry is removed."""

    __slots__ = ("due_ms", "item", "number")

    def __init__(self, due_ms: int, number: int, item: T) -> None:
        self.due_ms, self.number = due_ms, number
        self.item: T | None = item

    def __lt__(self, other: DueEntry[T]) -> bool:
        return (self.due_ms, self.number) < (other.due_ms, other.number)


class DueQueue(Generic[T]):
    """A heap with one live entry per item. Removed and replaced entries keep no item alive."""

    def __init__(self) -> None:
        self.heap: list[DueEntry[T]] = []
        self.entries: dict[T, DueEntry[T]] = {}
        self.numbers = itertools.count()

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, item: T) -> bool:
        return item in self.entries

    def due_ms(self, item: T) -> int | None:
        """Return when an item is due, None if it is not in the queue."""
        entry = self.entries.get(item)
        return None if entry is None else entry.due_ms

    def put(self, item: T, due_ms: int) -> None:
        """Add an item, or change when it is due."""
        self.discard(item)
        entry = self.entries[item] = DueEntry(due_ms, next(self.numbers), item)
        heapq.heappush(self.heap, entry)

    def discard(self, item: T) -> None:
        """Remove an item if present."""
        entry = self.entries.pop(item, None)
        if entry is None:
            return
        entry.item = None
        if len(self.heap) > 2 * len(self.entries) + SPARE:
            self.heap = [e for e in self.heap if e.item is not None]
            heapq.heapify(self.heap)

    def first_ms(self) -> int | None:
        """Return when the first item is due, None if the queue is empty."""
        while self.heap and self.heap[0].item is None:
            heapq.heappop(self.heap)
        return self.heap[0].due_ms if self.heap else None

    def pop_due(self, now_ms: int) -> T | None:
        """Remove and return the first item if it is due."""
        first_ms = self.first_ms()
        if first_ms is None or first_ms > now_ms:
            return None
        item = heapq.heappop(self.heap).item
        assert item is not None, "the first entry is live"
        del self.entries[item]
        return item
