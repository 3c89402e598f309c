"""Producers of a partition whose batch was refused for a reason that passes: no space, or too few replicas in sync.

What such a producer had sent behind that batch cannot be taken either. Answered as out of order, it would have
librdkafka begin a new epoch for all partitions, and send again what other partitions may have written already; so it is
answered as the first was, which every client just tries again. Used by `leader`.
"""

from __future__ import annotations

from penstock.wire.errors import ErrorCode

HELD_UP_MS = 30_000
"""How long after a refusal what follows is answered in the same way: a gap that stays is an error of the producer."""
MOST = 1000
"""Producers that are remembered in one partition; the others' batches are out of order, as they are."""


class HeldUp:
    """By producer id, with which code the last batch was refused, and when."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[int, tuple[ErrorCode, int]] = {}

    def note(self, producer_id: int, code: ErrorCode, now_ms: int) -> None:
        """A batch of a producer was refused."""
        self._refused.pop(producer_id, None)
        if len(self._refused) >= MOST:
            del self._refused[next(iter(self._refused))]
        self._refused[producer_id] = code, now_ms

    def code_for(self, producer_id: int, now_ms: int) -> ErrorCode | None:
        """What to answer to a batch that is out of order, if that is because the one before it was refused."""
        code, since_ms = self._refused.get(producer_id, (None, 0))
        return code if now_ms - since_ms <= HELD_UP_MS else None

    def over(self, producer_id: int) -> None:
        """A batch of a producer was taken."""
        self._refused.pop(producer_id, None)
