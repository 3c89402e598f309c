"""Tracks brokers that have just failed, so that their partitions are about to get other leaders. Updated by `fetcher`
and by the view; read by `api.pending_elections`.

Replica fetches wait at each leader, so the end of a leader's process ends one of them within milliseconds, long before
the controller has fenced the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.state.view import ClusterView

MAX_ELECTION_S = 1.5
"""Time after its failure in which a leader is expected to be replaced: fencing, also by a new controller, and
elections."""


class LostLeaders:
    """The failed brokers, each with the time of its failure."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._lost_s: dict[int, float] = {}
        """Event loop time of the failure, by broker, until it responds again."""
        self._epochs = broker_epochs(view)
        self._listeners: list[Callable[[], None]] = []
        view.subscribe_brokers(self._on_brokers)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after brokers have failed or have responded again."""
        self._listeners.append(listener)

    def on_lost(self, broker_id: int) -> None:
        """Record that a broker failed. Until it responds again, further failures change nothing."""
        if broker_id not in self._lost_s:
            self._lost_s[broker_id] = asyncio.get_running_loop().time()
            self._notify()

    def on_response(self, broker_id: int) -> None:
        """Record that a broker has responded."""
        if self._lost_s.pop(broker_id, None) is not None:
            self._notify()

    def _on_brokers(self) -> None:
        before, self._epochs = self._epochs, broker_epochs(self._view)
        for broker_id in before.keys() - self._epochs.keys():
            self.on_lost(broker_id)
        for broker_id, epoch in self._epochs.items():
            if before.get(broker_id) != epoch:
                self.on_response(broker_id)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    def is_pending(self, broker_id: int) -> bool:
        """Return whether a broker failed so recently that its partitions are expected to get other leaders."""
        lost_s = self._lost_s.get(broker_id)
        return lost_s is not None and asyncio.get_running_loop().time() < lost_s + MAX_ELECTION_S

    def pending_until_s(self) -> float | None:
        """Return the event loop time at which no failure is recent any longer; None if none is now."""
        last_s = max(self._lost_s.values(), default=None)
        if last_s is None or asyncio.get_running_loop().time() >= last_s + MAX_ELECTION_S:
            return None
        return last_s + MAX_ELECTION_S


def broker_epochs(view: ClusterView) -> dict[int, int]:
    """Return the epochs of the registered brokers."""
    return {broker.broker_id: broker.epoch for broker in view.brokers.values()}
