"""DeleteRecords requests that wait until all in-sync replicas have deleted the records. Used by `leader`; no I/O.

Otherwise the next leader could still have records that were reported as deleted.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from typing import NamedTuple


class DeletionWaiter(NamedTuple):
    """`callback` receives an error code: 0 once the logs of all in-sync replicas durably start at `offset` or later."""

    offset: int
    callback: Callable[[int], None]


class DeletionWaiters(list[DeletionWaiter]):
    """The waiters of one leader, by offset."""

    __slots__ = ()

    def add(self, deletion: DeletionWaiter) -> None:
        """Add a waiter."""
        insort(self, deletion, key=get_offset)

    def cancel(self, deletion: DeletionWaiter) -> None:
        """Remove a waiter, if present, without calling it."""
        if deletion in self:
            self.remove(deletion)

    def complete_up_to(self, low_watermark: int) -> None:
        """Complete the waiters up to the low watermark."""
        if self and self[0].offset <= low_watermark:
            self.complete_first(bisect_right(self, low_watermark, key=get_offset), 0)

    def fail(self, error: int) -> None:
        """Fail all waiters."""
        self.complete_first(len(self), error)

    def complete_first(self, count: int, error: int) -> None:
        """Remove the first `count` waiters and call them."""
        due = self[:count]
        del self[:count]
        for deletion in due:
            deletion.callback(error)


def get_offset(deletion: DeletionWaiter) -> int:
    """Return the offset of a waiter."""
    return deletion.offset
