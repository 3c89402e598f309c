"""The order of records of one key in a share-partition (`share.order.by.key`), without I/O. Used by `partition`.

Of the records of a key that are not done, only the first may be delivered; the others are blocked. The index covers the
records in flight and those that they block, never the rest of the log. It is in memory only: a new leader reads the
keys of the window from the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.share.window import InFlightWindow, RecordState, Run


class BatchKeys(NamedTuple):
    """The records of a batch that have keys: their offsets, in order, and a hash of each key.

    Two keys with one hash are delivered as one key: in order, and one record at a time.
    """

    offsets: array[int]
    hashes: array[int]

    def between(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, hash) of the records at the offsets, both inclusive."""
        begin, end = bisect_left(self.offsets, first), bisect_left(self.offsets, last + 1)
        return zip(self.offsets[begin:end], self.hashes[begin:end], strict=True)


ReadKeys = Callable[[], BatchKeys | None]
"""Returns the keys of a batch, None if they cannot be read."""


def no_keys() -> BatchKeys:
    """Return the keys of a batch without any."""
    return BatchKeys(array("q"), array("q"))


class KeyOrder:
    """The records of a window that are not done, by key, and which of them are blocked."""

    def __init__(self, window: InFlightWindow) -> None:
        self._window = window
        self._end = window.start_offset
        self._keys: dict[int, int] = {}
        """By offset, the hash of the key."""
        self._heads: dict[int, int] = {}
        """By hash, the offset of the record that may be delivered."""
        self._blocked: dict[int, dict[int, None]] = {}
        """By hash, the offsets of the blocked records in their order. Only for keys that have some."""
        self._freed: list[int] = []
        self._batch: tuple[int, BatchKeys] | None = None
        """Last offset and keys of a batch of which a part is admitted."""

    @property
    def end_offset(self) -> int:
        """The offset below which all records are in the index."""
        return max(self._end, self._window.start_offset)

    def skip_to(self, offset: int) -> None:
        """Note that there are no records below the offset other than those in the index."""
        self._end = max(self._end, offset)

    def admit(self, first: int, last: int, read_keys: ReadKeys, room: int) -> bool:
        """Extend the index by the records of a batch from `first` on, and the window by at most `room` of them.

        Returns False if the keys cannot be read.
        """
        window, known_end = self._window, self._window.end_offset
        first, admitted = max(first, self.end_offset), min(last, known_end - 1 + max(room, 0))
        if first > admitted:
            return True
        keys = self._keys_of(last, read_keys)
        if keys is None:
            return False
        if admitted >= known_end:
            window.append(Run(known_end, admitted, RecordState.AVAILABLE, 0))
        blocked: list[int] = []
        for offset, key in keys.between(first, admitted):
            is_open = offset >= known_end or window.runs[window.index_of(offset)].state.is_open
            if is_open and self._add(offset, key):
                blocked.append(offset)
        for begin, end in adjacent(blocked):
            for run in window.between(begin, end):
                run.is_blocked = True
        self._end = admitted + 1
        self._batch = (last, keys) if admitted < last else None
        return True

    def _keys_of(self, last: int, read_keys: ReadKeys) -> BatchKeys | None:
        """Return the keys of the batch that ends at an offset. It is decoded once, even if it is admitted in parts."""
        return self._batch[1] if self._batch is not None and self._batch[0] == last else read_keys()

    def _add(self, offset: int, key: int) -> bool:
        """Add a record. Returns whether an earlier record of its key blocks it."""
        self._keys[offset] = key
        if key not in self._heads:
            self._heads[key] = offset
            return False
        self._blocked.setdefault(key, {})[offset] = None
        return True

    def remove(self, first: int, last: int) -> None:
        """Remove the records at the offsets, which are done. `unblock` applies what that frees."""
        is_wide = last - first >= len(self._keys)
        done = [offset for offset in self._keys if first <= offset <= last] if is_wide else range(first, last + 1)
        for offset in done:
            key = self._keys.pop(offset, None)
            if key is not None:
                self._remove(offset, key)

    def _remove(self, offset: int, key: int) -> None:
        blocked = self._blocked.get(key)
        if self._heads[key] != offset:
            assert blocked is not None, f"offset {offset} is neither the first of its key nor blocked"
            del blocked[offset]
        elif blocked is None:
            del self._heads[key]
        else:
            self._heads[key] = successor = next(iter(blocked))
            del blocked[successor]
            self._freed.append(successor)
        if blocked is not None and not blocked:
            del self._blocked[key]

    def unblock(self) -> int:
        """Let the records be delivered whose predecessors were removed.

        Returns the lowest of their offsets, or else the window's end.
        """
        freed, self._freed = [offset for offset in self._freed if offset in self._keys], []
        for first, last in adjacent(sorted(freed)):
            for run in self._window.between(first, last):
                run.is_blocked = False
        return min(freed, default=self._window.end_offset)


def adjacent(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges (first, last) of adjacent offsets in a sorted list."""
    first = previous = None
    for offset in offsets:
        if previous is not None and offset == previous + 1:
            previous = offset
            continue
        if first is not None and previous is not None:
            yield first, previous
        first = previous = offset
    if first is not None and previous is not None:
        yield first, previous
