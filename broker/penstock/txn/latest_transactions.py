"""The latest transaction number of each producer known to this broker, and whether that transaction has ended.

Transactions of a transactional id are numbered, and every request about one carries its number. The broker can thus
recognise late messages on any path: a batch or offset that was verified before its transaction ended but is written
after (KIP-890), a message of a deposed coordinator, or a retried EndTxn marker that arrives during the producer's next
transaction.

All of these are in flight on connections of this process, so the state need not survive a restart.
"""

from __future__ import annotations

from collections import OrderedDict

from penstock.txn.transaction_partitions import UNNUMBERED

MAX_PRODUCERS = 50_000
"""Maximum number of tracked producers. Beyond it, the least recently active one is dropped: it has nothing in
flight."""


class LatestTransactions:
    """By producer id, twice the transaction's number, plus one if it has ended."""

    def __init__(self) -> None:
        self._last: OrderedDict[int, int] = OrderedDict()

    def observe_ongoing(self, producer_id: int, number: int) -> bool:
        """Record that a transaction is ongoing. Returns False if that is outdated."""
        return self._observe(producer_id, 2 * number)

    def observe_ended(self, producer_id: int, number: int) -> bool:
        """Record that a transaction has ended. Returns False if the producer is in a later one."""
        return number == UNNUMBERED or self._observe(producer_id, 2 * number + 1)

    def _observe(self, producer_id: int, state: int) -> bool:
        known = self._last.get(producer_id, -1)
        if state < known:
            return False
        self._last[producer_id] = state
        self._last.move_to_end(producer_id)
        if len(self._last) > MAX_PRODUCERS:
            self._last.popitem(last=False)
        return True
