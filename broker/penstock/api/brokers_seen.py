"""The brokers that Metadata names: those that are alive, and for a while those that no longer are. Used by `metadata`.

A broker that died is noticed here within a second. Clients that are in the middle of something with it must notice by
themselves, by its connection, and ask who is in its place; librdkafka for one forgets a broker that metadata no longer
names together with what waits for it, and never asks (a transaction then hangs). So a dead broker stays named for some
time longer than it takes clients to try to connect again; nobody is sent there, as it leads and coordinates nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock.state.view import BrokerView, ClusterView

LINGER_S = 30.0


class BrokersSeen:
    """Follows the view. Iterates over the brokers, those that are alive first."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._alive = dict(view.brokers)
        self._gone: dict[int, tuple[BrokerView, float]] = {}
        """(the broker, when it was last alive, on the loop's clock), in the order of their going."""
        view.subscribe_brokers(self._on_brokers)

    def _on_brokers(self) -> None:
        now_s = asyncio.get_running_loop().time()
        brokers = self._view.brokers
        for broker_id, broker in self._alive.items():
            if broker_id not in brokers:
                self._gone.pop(broker_id, None)
                self._gone[broker_id] = broker, now_s
        self._alive = dict(brokers)

    def __iter__(self) -> Iterator[BrokerView]:
        yield from self._view.brokers.values()
        if self._gone:
            now_s = asyncio.get_running_loop().time()
            for broker_id, (broker, gone_s) in list(self._gone.items()):
                if now_s - gone_s > LINGER_S or broker_id in self._view.brokers:
                    del self._gone[broker_id]
                else:
                    yield broker
