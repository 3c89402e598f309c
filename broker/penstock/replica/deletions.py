"""Who waits until the in-sync replicas have deleted what the leader has: part of the leader's role, no I/O.

Whoever may lead next must not bring back what DeleteRecords has said is gone.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from typing import NamedTuple


class Deletion(NamedTuple):
    """`callback` is told an error code, 0 when all in-sync replicas' logs start at `offset` or later, durably."""

    offset: int
    callback: Callable[[int], None]


class Deletions(list[Deletion]):
    """Those of one leader that are waited for, least offset first."""

    __slots__ = ()

    def wait(self, deletion: Deletion) -> None:
        insort(self, deletion, key=offset_of)

    def forget(self, deletion: Deletion) -> None:
        if deletion in self:
            self.remove(deletion)

    def settle(self, low_watermark: int) -> None:
        """The logs of all in-sync replicas start at `low_watermark` or later."""
        if self and self[0].offset <= low_watermark:
            self.answer(bisect_right(self, low_watermark, key=offset_of), 0)

    def fail(self, error: int) -> None:
        self.answer(len(self), error)

    def answer(self, count: int, error: int) -> None:
        due = self[:count]
        del self[:count]
        for deletion in due:
            deletion.callback(error)


def offset_of(deletion: Deletion) -> int:
    return deletion.offset
