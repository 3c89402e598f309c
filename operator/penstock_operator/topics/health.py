"""Sees what changes at the brokers without anybody's telling: replicas that fall behind, leaders that go, topics that
somebody else makes, grows or deletes. Run by `controller`.

One request a cluster and look, for all of its topics. How often depends on how long that takes, so that it stays a
small part of everybody's work, however many topics there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from penstock_operator.engine.ports import ConnectionPool, Objects
from penstock_operator.model.common import ObjectKey
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ObservedTopicState
from penstock_operator.ports.kube import CLUSTERS, TOPICS
from penstock_operator.reconcile.topic.placement import present_replicas
from penstock_operator.reconcile.topic.status import is_in_sync
from penstock_operator.topics.batch import loads_of
from penstock_operator.topics.observation import cluster_of, name_of, topic_name_of
from penstock_operator.topics.problems import ClusterKey, TopicProblems

EVERY_S = 5.0
SHARE = 50
"""A look that takes a second is the only one in so many seconds."""

log = structlog.get_logger("penstock.operator.topics")

Summary = tuple[UUID, int, int, int, int, int]
"""Id, partitions, least replicas, in sync, without a leader, moving."""


@dataclass(slots=True)
class _HealthHistory:
    summaries: dict[str, Summary] = field(default_factory=dict)
    loads: Counter[int] = field(default_factory=Counter)
    moving: int = 0


class TopicHealth:
    """`put` has a key looked at."""

    def __init__(
        self, objects: Objects, connections: ConnectionPool, troubles: TopicProblems, put: Callable[[ObjectKey], None]
    ) -> None:
        self._objects, self._connections, self._troubles, self._put = objects, connections, troubles, put
        self._seen: dict[ClusterKey, _HealthHistory] = {}

    def loads(self, cluster: ClusterKey) -> Mapping[int, int] | None:
        """Replicas by broker, as of the last look; None before it."""
        seen = self._seen.get(cluster)
        return None if seen is None else seen.loads

    def moving(self, cluster: ClusterKey) -> int:
        """Partitions that moved at the last look."""
        seen = self._seen.get(cluster)
        return 0 if seen is None else seen.moving

    def began_to_move(self, cluster: ClusterKey, partitions: int) -> None:
        """Counts them until the next look does: batches of one cluster share what may move at a time."""
        seen = self._seen.get(cluster)
        if seen is not None:
            seen.moving += partitions

    async def watch(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.look()
            except Exception:
                log.exception("topics.health")
            await asyncio.sleep(max(EVERY_S, (loop.time() - began) * SHARE))

    async def look(self) -> None:
        """One look at each cluster that has topics."""
        clusters = {cluster_of(body) for body in self._objects.of(TOPICS)}
        there = {name_of(body) for body in self._objects.of(CLUSTERS)}
        for gone in self._seen.keys() - (clusters & there):
            del self._seen[gone]
        await asyncio.gather(*(self._look_at(cluster) for cluster in sorted(clusters & there)))

    async def _look_at(self, cluster: ClusterKey) -> None:
        brokers = self._connections.of(*cluster)
        if brokers is None or self._troubles.message(cluster) is not None:
            return
        topics = await self._topics(cluster, brokers)
        if topics is None:
            return
        before = self._seen.get(cluster)
        now = {name: summary(topic) for name, topic in topics.items()}
        self._seen[cluster] = _HealthHistory(now, loads_of(topics.values()), sum(s[5] for s in now.values()))
        recovered = self._troubles.answered(cluster)
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
            self._troubles.failed(cluster, str(e))
            return None


def summary(topic: ObservedTopicState) -> Summary:
    partitions = topic.partitions
    return (
        topic.topic_id,
        len(partitions),
        min((len(present_replicas(p)) for p in partitions), default=0),
        sum(p.leader >= 0 and is_in_sync(p) for p in partitions),
        sum(p.leader < 0 for p in partitions),
        sum(bool(p.adding or p.removing) for p in partitions),
    )
