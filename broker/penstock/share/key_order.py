"""The order of records of one key in a share-partition (`share.order.by.key`), without I/O. Used by `partition`.

Of the records of a key that are not done, only the first may be delivered; the others are blocked. A record is done
once the store has its final state: until then a new leader would deliver it again. The index covers the records in
flight and those that they block, never the rest of the log. It is in memory only: a new leader reads the keys of the
window from the log.
"""

from __future__ import annotations

from penstock.share.contents import BatchKeys, adjacent
from penstock.share.window import InFlightWindow


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
        self._unwritten: list[int] = []
        """Offsets of indexed records whose final state is not part of a write yet."""
        self._writing: list[int] = []
        """Offsets of indexed records whose final state is part of the outstanding write."""

    def __len__(self) -> int:
        """Return the number of records in the index."""
        return len(self._keys)

    @property
    def end_offset(self) -> int:
        """The offset below which all records are in the index."""
        return max(self._end, self._window.start_offset)

    def skip_to(self, offset: int) -> None:
        """Note that there are no records below the offset other than those in the index."""
        self._end = max(self._end, offset)

    def admit(self, first: int, last: int, keys: BatchKeys) -> None:
        """Add the records of a batch at offsets of the window that are not done, given with the keys of the batch."""
        window, blocked = self._window, list[int]()
        for run in window.overlapping(first, last):
            if run.state.is_open:
                known = keys.between(max(first, run.first), min(last, run.last))
                blocked += [offset for offset, key in known if self._add(offset, key)]
        for begin, end in adjacent(blocked):
            for run in window.between(begin, end):
                run.is_blocked = True
        self._end = last + 1

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
        self._remove_all(self._indexed(first, last))

    def remove_when_written(self, first: int, last: int) -> None:
        """Remove the records at the offsets, which are done, when the next write to begin is durable."""
        self._unwritten += self._indexed(first, last)

    def begin_write(self) -> None:
        """Note that a write begins, which has the final states of all records so far."""
        assert not self._writing, "two writes of a share-partition are outstanding"
        self._writing, self._unwritten = self._unwritten, []

    def complete_write(self, is_durable: bool) -> None:
        """Remove the records that the outstanding write was to make durable, or leave them to the next one."""
        written, self._writing = self._writing, []
        if is_durable:
            self._remove_all(written)
        else:
            self._unwritten = written + self._unwritten

    def _indexed(self, first: int, last: int) -> list[int]:
        """Return the offsets in the range that are in the index."""
        if last - first >= len(self._keys):
            return [offset for offset in self._keys if first <= offset <= last]
        return [offset for offset in range(first, last + 1) if offset in self._keys]

    def _remove_all(self, offsets: list[int]) -> None:
        for offset in offsets:
            key = self._keys.pop(offset, None)
            if key is not None:  # else the log deleted it after it was done
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
