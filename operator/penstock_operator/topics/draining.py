"""Finds the groups that topics wait for while their number of partitions is decreased. Used by `batch`.

A query reads the committed offsets of all groups of a cluster, so its result is shared by topics and batches for a time
that grows with the duration of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from penstock_operator.engine.outages import ClusterKey
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ObservedReader

INTERVAL_S = 8.0
"""Minimum time between two queries of the same topics."""
SHARE = 50
"""Minimum ratio of the interval to the duration of a query."""

Readers = Mapping[str, tuple[ObservedReader, ...]]


@dataclass(frozen=True, slots=True)
class _KnownReaders:
    by_topic: Readers
    until: float


class DrainingTopics:
    """Groups that have to read sealed partitions, by cluster. `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._by_cluster: dict[ClusterKey, _KnownReaders] = {}

    async def readers(self, cluster: ClusterKey, brokers: BrokerGateway, names: Set[str]) -> Readers:
        """Return the groups by topic; without topics whose groups are unknown, because the query failed."""
        if not names:
            return {}
        known, began = self._by_cluster.get(cluster), self._now()
        if known is not None and began < known.until and known.by_topic.keys() >= set(names):
            return known.by_topic
        wanted = set(names) if known is None else names | known.by_topic.keys()
        try:
            found = await brokers.waiting_readers(wanted)
        except BrokersError:
            return {}
        pause_s = max(INTERVAL_S, (self._now() - began) * SHARE)
        by_topic = {name: found.get(name, ()) for name in found.keys() | names}
        self._by_cluster[cluster] = _KnownReaders(by_topic, self._now() + pause_s)
        return by_topic
