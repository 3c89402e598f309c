"""The embedded store's in-memory entries: the committed ones, and the pending ones on their way to the disk.

Transactions are decided on the pending state, as if all earlier writes had succeeded; reads see only the committed
state. If a write fails, `abandon` drops it and everything decided after it. Used by `embedded`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from penstock.state.history import Revision
from penstock.state.store import Compare, CompareTarget, DeleteOp, Operation, StoreEntry, StoreEvent


class StoreContents:
    """Entries by key, with a sorted index of committed and pending keys."""

    def __init__(self, entries: Iterable[StoreEntry], revision: int) -> None:
        self.committed = {entry.key: entry for entry in entries}
        self.committed_revision = revision
        self.pending_revision = revision
        self._pending: dict[str, tuple[int, StoreEntry | None]] = {}
        self._keys = sorted(self.committed)

    def holds(self, compare: Compare) -> bool:
        """Return whether a condition holds in the pending state."""
        entry = self.latest(compare.key)
        if compare.target is CompareTarget.VALUE:
            return entry is not None and matches(entry.value, compare.op, compare.value)
        return matches(compared_number(entry, compare.target), compare.op, compare.value)

    def latest(self, key: str) -> StoreEntry | None:
        """Return the pending entry of a key, else the committed one."""
        if key in self._pending:
            return self._pending[key][1]
        return self.committed.get(key)

    def range(self, prefix: str) -> list[StoreEntry]:
        """Return the committed entries with a prefix, in key order."""
        committed = self.committed
        return [committed[key] for key in self._keys_under(prefix) if key in committed]

    def _keys_under(self, prefix: str) -> list[str]:
        start = end = bisect_left(self._keys, prefix)
        while end < len(self._keys) and self._keys[end].startswith(prefix):
            end += 1
        return self._keys[start:end]

    def plan(self, operations: Sequence[Operation]) -> Revision | None:
        """Apply operations to the pending state as the next revision; None if they change nothing."""
        number = self.pending_revision + 1
        revision = Revision(number, [], [])
        for operation in operations:
            if isinstance(operation, DeleteOp):
                keys = self._keys_under(operation.key) if operation.prefix else [operation.key]
                for key in keys:
                    self._change(revision, key, None)
            else:
                before = self.latest(operation.key)
                created, version = (before.create_revision, before.version + 1) if before else (number, 1)
                entry = StoreEntry(operation.key, operation.value, created, number, version, operation.lease)
                self._change(revision, operation.key, entry)
        if not revision.events:
            return None
        self.pending_revision = number
        return revision

    def _change(self, revision: Revision, key: str, entry: StoreEntry | None) -> None:
        before = self.latest(key)
        if entry is None and before is None:
            return
        if before is None and key not in self.committed and key not in self._pending:
            self._keys.insert(bisect_left(self._keys, key), key)
        self._pending[key] = (revision.number, entry)
        revision.events.append(StoreEvent(key, entry))
        revision.before.append(before)

    def commit(self, revision: Revision) -> None:
        """Commit a pending revision that has become durable."""
        assert revision.number == self.committed_revision + 1, f"{revision.number} after {self.committed_revision}"
        self.committed_revision = revision.number
        for event in revision.events:
            key = event.key
            if event.entry is not None:
                self.committed[key] = event.entry
            else:
                self.committed.pop(key, None)
            pending = self._pending.get(key)
            if pending is not None and pending[0] == revision.number:
                del self._pending[key]
                if event.entry is None:
                    del self._keys[bisect_left(self._keys, key)]

    def abandon(self) -> None:
        """Drop the pending state after a failed write."""
        self._pending.clear()
        self.pending_revision = self.committed_revision
        self._keys = sorted(self.committed)


def compared_number(entry: StoreEntry | None, target: CompareTarget) -> int:
    """Return the number that a condition compares; 0 for a missing key."""
    if entry is None:
        return 0
    if target is CompareTarget.MOD_REVISION:
        return entry.mod_revision
    return entry.create_revision if target is CompareTarget.CREATE_REVISION else entry.version


def matches(left: int | bytes, op: str, right: int | bytes) -> bool:
    """Return whether `left op right`."""
    if op == "=":
        return left == right
    if op == "!=":
        return left != right
    smaller, greater = (left, right) if op == "<" else (right, left)
    return smaller < greater  # type: ignore[operator]
