"""The expiry time of committed offsets (KIP-211), and a queue of groups by the time of their next check.

No I/O. Used by `retention`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from penstock.state.records import OffsetRecord

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class OffsetUsage:
    """What determines the expiry of a group's offsets.

    `is_simple`: the group never had a member. `empty_since_ms`: the time since which it has no members, else None.
    `topics`: the topics that the members of a stable group subscribe to, None if unknown or rebalancing.
    """

    is_simple: bool
    empty_since_ms: int | None
    topics: frozenset[str] | None


def expires_ms(record: OffsetRecord, topic: str, usage: OffsetUsage, retention_ms: int) -> int:
    """Return the time at which an offset expires, or `NEVER` while it is in use."""
    if usage.is_simple:
        base_ms = record.commit_ms
    elif usage.empty_since_ms is not None:
        base_ms = max(record.commit_ms, usage.empty_since_ms)
    elif usage.topics is None or topic in usage.topics:
        return NEVER
    else:
        base_ms = record.commit_ms
    return base_ms + retention_ms if record.expire_ms < 0 else record.expire_ms


class ExpiryQueue:
    """Groups by the time of their next check. Groups that are not due cost nothing."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._due)

    def schedule(self, group_id: str, due_ms: int) -> None:
        """Schedule a check at `due_ms`, unless an earlier one is scheduled."""
        planned = self._due.get(group_id)
        if planned is None or due_ms < planned:
            self._due[group_id] = due_ms
            heapq.heappush(self._heap, (due_ms, group_id))

    def pop_due(self, now_ms: int) -> list[str]:
        """Remove and return the groups that are due."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, group_id = heapq.heappop(self._heap)
            if self._due.get(group_id) == due_ms:
                del self._due[group_id]
                due.append(group_id)
        return due
