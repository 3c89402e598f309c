"""Which transaction of each producer this broker has heard of last, and whether that has ended.

Transactions of a transactional id are counted, and whoever speaks of one names its number: coordinators that end it,
and those that say what belongs to it. So what comes late is known for late, whatever way it took: a batch or an offset
that was verified before its transaction ended and would be written after (KIP-890), the word of a coordinator that has
been replaced and does not know it, a request to end a transaction that was given up on and tried again, and arrives
when the same producer is in its next.

All of these are under way on connections of this process, so nothing of it has to outlive the process.
"""

from __future__ import annotations

from collections import OrderedDict

from penstock.txn.transaction_partitions import UNNUMBERED

MAX_PRODUCERS = 50_000
"""Producers remembered; past it the one that was silent longest is forgotten: nothing of it can be under way still."""


class AcknowledgedMarkers:
    """By producer id, twice the transaction's number, and one more when it has ended."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, int] = OrderedDict()

    def in_hand(self, producer_id: int, number: int) -> bool:
        """Takes in that a coordinator called a transaction open; False where that is out of date."""
        return self._hear(producer_id, 2 * number)

    def ended(self, producer_id: int, number: int) -> bool:
        """Takes in that a transaction is decided; False where the producer is in a later one."""
        return number == UNNUMBERED or self._hear(producer_id, 2 * number + 1)

    def _hear(self, producer_id: int, state: int) -> bool:
        known = self._last.get(producer_id, -1)
        if state < known:
            return False
        self._last[producer_id] = state
        self._last.move_to_end(producer_id)
        if len(self._last) > MAX_PRODUCERS:
            self._last.popitem(last=False)
        return True
