"""One timer for all transactions: what is due in the same tick hangs in the same slot. Used by `coordinator`.

A transaction that ends in time costs two dictionary operations; the loop is woken once for each slot whose time comes,
however many transactions there are. The further ahead, the longer a slot: there are some hundred of them for each
doubling of the delay, so that ids which are used each second, and would be forgotten a week after, do not fill a week
with slots.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

TICK_S = 0.5
PRECISION_BITS = 7
"""A slot is no longer than the delay divided by two to the power of this."""


class TimerWheel:
    """Calls `fire` with each key whose time has come, late by at most a tick and a hundredth of the delay, never early.

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
        """Replaces the key's deadline."""
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
        """Nothing where it has no deadline. An emptied slot stays until its time comes."""
        slot = self._slot_of.pop(key, None)
        if slot is not None:
            due = self._slots[slot]
            del due[key]
            if not due:
                due.clear()  # its table, which is as large as it ever was

    def close(self) -> None:
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
