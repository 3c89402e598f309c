"""The brokers that Metadata names: the registered ones, and dead ones for a while. Used by `metadata`.

Penstock detects a dead broker within a second. librdkafka drops a broker that metadata no longer names with all
requests that wait for it; a transaction whose coordinator died then hangs. Apache Kafka names a dead broker until its
session times out, and clients rely on that. A broker that shuts down in order hands its coordinator shards over first
and is dropped at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock.state.view import BrokerView, ClusterView

DEAD_BROKER_RETENTION_S = 9.0
"""Kafka's default of `broker.session.timeout.ms`."""


class KnownBrokers:
    """Follows the view. Iterates over the brokers, registered ones first."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._registered = dict(view.brokers)
        self._dead: dict[int, tuple[BrokerView, float]] = {}
        """(the broker, event loop time of its death), in order of death."""
        view.subscribe_brokers(self._on_brokers)

    def _on_brokers(self) -> None:
        now_s = asyncio.get_running_loop().time()
        owners = {shard.broker_id for shard in self._view.shards.values()}
        for broker_id, broker in self._registered.items():
            if broker_id not in self._view.brokers and broker_id in owners:
                self._dead.pop(broker_id, None)
                self._dead[broker_id] = broker, now_s
        self._registered = dict(self._view.brokers)

    def __iter__(self) -> Iterator[BrokerView]:
        yield from self._view.brokers.values()
        if self._dead:
            now_s = asyncio.get_running_loop().time()
            for broker_id, (broker, died_s) in list(self._dead.items()):
                if now_s - died_s > DEAD_BROKER_RETENTION_S or broker_id in self._view.brokers:
                    del self._dead[broker_id]
                else:
                    yield broker
