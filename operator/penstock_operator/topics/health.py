"""Polls the topics of all clusters for changes without a Kubernetes event: replicas out of sync, lost leaders, topics
created, changed or deleted by other clients. Run by `controller`.

Each poll is one request per cluster. The interval grows with its duration, so that polling remains a small share of the
load with many topics.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from penstock.runtime.tasks import report
from penstock_operator.engine.outages import ClusterKey, ClusterOutages
from penstock_operator.engine.ports import ConnectionPool, Objects
from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ObservedShrink, ObservedTopicState
from penstock_operator.ports.kube import CLUSTERS, TOPICS
from penstock_operator.reconcile.topic.placement import present_replicas
from penstock_operator.reconcile.topic.status import is_in_sync
from penstock_operator.topics.batch import loads_of
from penstock_operator.topics.observation import cluster_of, name_of, topic_name_of

EVERY_S = 5.0
SHARE = 50
"""Minimum ratio of the interval to the duration of a poll."""


Summary = tuple[UUID, int, int, int, int, int, ObservedShrink | None]
"""Id, partitions, minimum replicas, in-sync partitions, offline partitions, moving partitions, sealed partitions."""


@dataclass(slots=True)
class _HealthHistory:
    summaries: dict[str, Summary] = field(default_factory=dict)
    loads: Counter[int] = field(default_factory=Counter)
    moving: int = 0


class TopicHealth:
    """Polls topic health. `put` queues a key."""

    def __init__(
        self, objects: Objects, connections: ConnectionPool, outages: ClusterOutages, put: Callable[[ObjectKey], None]
    ) -> None:
        self._objects, self._connections, self._outages, self._put = objects, connections, outages, put
        self._history: dict[ClusterKey, _HealthHistory] = {}

    def loads(self, cluster: ClusterKey) -> Mapping[int, int] | None:
        """Return the number of replicas by broker as of the last poll; None before the first poll."""
        history = self._history.get(cluster)
        return None if history is None else history.loads

    def moving(self, cluster: ClusterKey) -> int:
        """Return the number of moving partitions as of the last poll."""
        history = self._history.get(cluster)
        return 0 if history is None else history.moving

    def count_started_moves(self, cluster: ClusterKey, partitions: int) -> None:
        """Add started moves until the next poll counts them: the batches of a cluster share one limit."""
        history = self._history.get(cluster)
        if history is not None:
            history.moving += partitions

    async def watch(self) -> None:
        """Poll until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.check_clusters()
            except Exception as error:  # the next poll may succeed
                report("topic health poll failed", error)
            await asyncio.sleep(max(EVERY_S, (loop.time() - began) * SHARE))

    async def check_clusters(self) -> None:
        """Poll each cluster that has Topic objects once."""
        clusters = {cluster_of(body) for body in self._objects.list_objects(TOPICS)}
        there = {name_of(body) for body in self._objects.list_objects(CLUSTERS)}
        for removed in self._history.keys() - (clusters & there):
            del self._history[removed]
        await asyncio.gather(*(self._check_cluster(cluster) for cluster in sorted(clusters & there)))

    async def _check_cluster(self, cluster: ClusterKey) -> None:
        brokers = self._connections.gateway_for(*cluster)
        if brokers is None or self._outages.message(cluster) is not None:
            return
        topics = await self._topics(cluster, brokers)
        if topics is None:
            return
        before = self._history.get(cluster)
        now = {name: summary(topic) for name, topic in topics.items()}
        self._history[cluster] = _HealthHistory(now, loads_of(topics.values()), sum(s[5] for s in now.values()))
        recovered = self._outages.record_answer(cluster)
        if before is None and not recovered:
            return
        known = before.summaries if before is not None else {}
        changed = {name for name in now.keys() | known.keys() if now.get(name) != known.get(name)}
        for body in self._objects.in_cluster(TOPICS, *cluster):
            if recovered or topic_name_of(body) in changed:
                self._put(ObjectKey("Topic", cluster[0], str(body["metadata"]["name"])))

    async def _topics(self, cluster: ClusterKey, brokers: BrokerGateway) -> Mapping[str, ObservedTopicState] | None:
        try:
            return await brokers.topics(settings=False)
        except BrokersError as e:
            if not e.is_hibernated:
                self._outages.record_failure(cluster, str(e))
            return None


def summary(topic: ObservedTopicState) -> Summary:
    """Return the figures of a topic; a change of them queues its objects."""
    partitions = topic.partitions
    return (
        topic.topic_id,
        len(partitions),
        min((len(present_replicas(p)) for p in partitions), default=0),
        sum(p.leader >= 0 and is_in_sync(p) for p in partitions),
        sum(p.leader < 0 for p in partitions),
        sum(bool(p.adding or p.removing) for p in partitions),
        topic.shrink,
    )
