"""A timer wheel with one event loop timer for all transactions. Used by `coordinator`.

A transaction that ends in time costs two dictionary operations, and the loop wakes once per due slot. Slots are longer
the further ahead they are, with about a hundred per doubling of the delay: ids that are used each second but expire in
a week do not fill a week with slots.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

TICK_S = 0.5
PRECISION_BITS = 7
"""A slot is at most the delay divided by two to the power of this."""


class TimerWheel:
    """Calls `fire` with each key that is due: never early, late by at most a tick and a hundredth of the delay.

    A key has one deadline.
    """

    def __init__(self, fire: Callable[[str], None]) -> None:
        self._fire = fire
        self._slots: dict[int, dict[str, None]] = {}
        self._slot_of: dict[str, int] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0

    def __len__(self) -> int:
        return len(self._slot_of)

    def schedule(self, key: str, delay_s: float) -> None:
        """Set or replace the key's deadline."""
        now_s, delay_s = asyncio.get_running_loop().time(), max(delay_s, 0.0)
        slot = int((now_s + delay_s) / TICK_S) + 1
        length = 1 << max(int(delay_s / TICK_S).bit_length() - PRECISION_BITS - 1, 0)
        slot += -slot % length
        if self._slot_of.get(key) == slot:
            return
        self.cancel(key)
        if slot not in self._slots:
            self._slots[slot] = {}
            heapq.heappush(self._order, slot)
        self._slots[slot][key] = None
        self._slot_of[key] = slot
        self._arm()

    def cancel(self, key: str) -> None:
        """Remove the key's deadline, if any. An empty slot stays until it is due."""
        slot = self._slot_of.pop(key, None)
        if slot is not None:
            due = self._slots[slot]
            del due[key]
            if not due:
                due.clear()  # releases the dict's table, which never shrinks otherwise

    def close(self) -> None:
        """Stop the timer and remove all keys."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._slots.clear()
        self._slot_of.clear()
        self._order.clear()

    def _arm(self) -> None:
        first = self._order[0]
        if self._timer is not None:
            if self._armed <= first:
                return
            self._timer.cancel()
        self._armed = first
        self._timer = asyncio.get_running_loop().call_at(first * TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_slot = int(asyncio.get_running_loop().time() / TICK_S + 1e-6)
        while self._order and self._order[0] <= now_slot:
            due = self._slots.pop(heapq.heappop(self._order))
            for key in due:
                del self._slot_of[key]
            for key in due:
                self._fire(key)
        if self._order and self._timer is None:
            self._arm()
