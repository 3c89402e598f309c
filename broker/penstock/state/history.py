"""The embedded store's recent changes, kept in memory, so that watches can start in the past. Used by `embedded`.

Its size is bounded. The oldest revisions are dropped, and watches that need them fail with `Compacted`, as with etcd.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.state.store import Compacted, StoreChanges, StoreEntry, StoreEvent

MAX_EVENTS = 16_384
"""More than the largest single request, a topic of 10,000 partitions; about 10 MB with small keys."""
MAX_BYTES = 8 << 20
MAX_DELIVERY = 4096
"""Events in one `StoreChanges` after which it ends at the next revision."""


@dataclass(frozen=True, slots=True)
class Revision:
    """The changes of one transaction, each with the entry before it."""

    number: int
    events: list[StoreEvent]
    before: list[StoreEntry | None]

    def size_bytes(self) -> int:
        """Return the size of keys and values."""
        return sum(len(e.key) + (len(e.entry.value) if e.entry else 0) for e in self.events)


class History:
    """Consecutive revisions up to `last`. Changes are known from `first_change` on, states from `first_state` on."""

    def __init__(self, revision: int, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self.last = revision
        self.first_change = revision + 1
        self.first_state = revision
        self._revisions: dict[int, Revision] = {}
        self._max_events, self._max_bytes = max_events, max_bytes
        self._events = self._bytes = 0

    def add(self, revision: Revision) -> None:
        """Append the next revision; drop the oldest past the bounds."""
        assert revision.number == self.last + 1, f"revision {revision.number} follows {self.last}"
        self.last = revision.number
        self._revisions[revision.number] = revision
        self._events += len(revision.events)
        self._bytes += revision.size_bytes()
        while (self._events > self._max_events or self._bytes > self._max_bytes) and self.first_change < self.last:
            self.forget_before(self.first_change + 1)

    def forget_before(self, revision: int) -> None:
        """Drop changes before `revision`."""
        while self.first_change < revision:
            dropped = self._revisions.pop(self.first_change, None)
            self.first_change += 1
            if dropped is not None:
                self._events -= len(dropped.events)
                self._bytes -= dropped.size_bytes()
        self.first_state = max(self.first_state, revision)

    def changes(self, prefix: str, from_revision: int) -> tuple[StoreChanges, int]:
        """Return changes with a prefix from `from_revision` on, and the revision to continue at. Raises `Compacted`."""
        if from_revision < self.first_change:
            raise Compacted(f"revision {from_revision} is no longer kept: the oldest is {self.first_change}")
        found: list[StoreEvent] = []
        number = from_revision
        while number <= self.last and len(found) < MAX_DELIVERY:
            found.extend(e for e in self._revisions[number].events if e.key.startswith(prefix))
            number += 1
        return StoreChanges(number - 1, found), number

    def undo(self, prefix: str, entries: list[StoreEntry], revision: int) -> list[StoreEntry]:
        """Return `entries`, the current ones with a prefix, as they were at `revision`. Raises `Compacted`."""
        if revision < self.first_state:
            raise Compacted(f"revision {revision} is no longer kept: the oldest is {self.first_state}")
        states = {entry.key: entry for entry in entries}
        for number in range(self.last, revision, -1):
            then = self._revisions[number]
            for event, before in zip(then.events, then.before, strict=True):
                if not event.key.startswith(prefix):
                    continue
                if before is None:
                    states.pop(event.key, None)
                else:
                    states[event.key] = before
        return [states[key] for key in sorted(states)]
