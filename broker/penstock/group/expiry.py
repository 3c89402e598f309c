"""When committed offsets end (KIP-211), and which group is to be looked at next for that. Pure; used by `retention`."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from penstock.state.records import OffsetRecord

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """What decides over a group's offsets.

    `is_simple`: nobody ever joined it. `empty_since_ms`: it has no members since then, else None. `topics`: what its
    members subscribe to while it is stable, None where that is unknown or in motion.
    """

    is_simple: bool
    empty_since_ms: int | None
    topics: frozenset[str] | None


def expires_ms(record: OffsetRecord, topic: str, standing: GroupStanding, retention_ms: int) -> int:
    """When an offset ends as things stand now, or `NEVER` while it is in use."""
    if standing.is_simple:
        base_ms = record.commit_ms
    elif standing.empty_since_ms is not None:
        base_ms = max(record.commit_ms, standing.empty_since_ms)
    elif standing.topics is None or topic in standing.topics:
        return NEVER
    else:
        base_ms = record.commit_ms
    return base_ms + retention_ms if record.expire_ms < 0 else record.expire_ms


class ExpiryQueue:
    """Groups and when each should be looked at, soonest first. Costs nothing for those whose time has not come."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._due)

    def schedule(self, group_id: str, due_ms: int) -> None:
        """Looks at a group at `due_ms`, or sooner where that was planned already."""
        planned = self._due.get(group_id)
        if planned is None or due_ms < planned:
            self._due[group_id] = due_ms
            heapq.heappush(self._heap, (due_ms, group_id))

    def pop_due(self, now_ms: int) -> list[str]:
        """The groups whose time has come, which are forgotten until scheduled again."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, group_id = heapq.heappop(self._heap)
            if self._due.get(group_id) == due_ms:
                del self._due[group_id]
                due.append(group_id)
        return due
