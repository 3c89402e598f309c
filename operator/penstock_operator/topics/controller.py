"""Reconciles `Topic` objects in batches, grouped by cluster. Created by `main`, called by `engine.runner`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from penstock_operator.engine.absence import KeptOwners, are_lists_conclusive
from penstock_operator.engine.invalid_objects import report_invalid
from penstock_operator.engine.outages import ClusterKey, ClusterOutages
from penstock_operator.engine.ports import ConnectionPool, Objects, Queue, ReconcileResult
from penstock_operator.engine.rotation import Rotation
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.model.topic import Topic
from penstock_operator.ports.kube import CLUSTERS, TOPICS, Kube, Object
from penstock_operator.reconcile.topic.reconcile import claim
from penstock_operator.topics.batch import TopicBatch, TopicObservation
from penstock_operator.topics.draining import DrainingTopics
from penstock_operator.topics.health import TopicHealth
from penstock_operator.topics.observation import (
    DesiredTopics,
    cluster_of,
    desired_topics,
    final_policy,
    name_of,
    topic_name_of,
)
from penstock_operator.topics.orphans import OrphanedTopics
from penstock_operator.topics.status_writer import TopicStatusWriter

BATCH = 500
RESYNC_TOPICS = 2000
"""Number of topics that each resync queues, in rotation, to find drift such as changed settings."""
RIVAL_DELAY_S = 0.5


class TopicController:
    """The `engine.ports.ResourceController` of Topics. `now` is monotonic, `wall` is Unix time, both in seconds."""

    batch = BATCH

    def __init__(
        self,
        kube: Kube,
        objects: Objects,
        connections: ConnectionPool,
        queue: Queue,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._kube, self._objects, self._connections, self._queue = kube, objects, connections, queue
        self._outages = ClusterOutages(now)
        self._absences: dict[str, int] = {}
        """By owner UID: number of consecutive complete lists without it."""
        self._kept_owners = KeptOwners()
        self._draining = DrainingTopics(now)
        self._status_writer = TopicStatusWriter(kube, now, lambda: _rfc3339(wall()))
        self.health = TopicHealth(objects, connections, self._outages, self._put)
        self._orphans = OrphanedTopics(kube, objects, connections, self._absences, self._put, wall, self._kept_owners)
        self._wall = wall
        self._rotation = Rotation(RESYNC_TOPICS)

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        """Reconcile a batch, grouped by cluster."""
        by_cluster: dict[ClusterKey, list[TopicObservation]] = {}
        results: dict[ObjectKey, ReconcileResult] = {}
        for key in keys:
            try:
                result = self._assign_to_cluster(key, by_cluster)
            except InvalidResource as e:
                result = await self._report_invalid(key, e)
            if result is not None:
                results[key] = result
        for answers in await asyncio.gather(
            *(self._reconcile_cluster(cluster, observations) for cluster, observations in by_cluster.items())
        ):
            results.update(answers)
        return results

    async def resync(self) -> None:
        """Queue the next `RESYNC_TOPICS` topics, and handle topics whose object was deleted while no operator ran."""
        for body in self._rotation.next_turn(self._objects.list_objects(TOPICS)):
            self._put(key_of(body))
        await self._orphans.delete_orphans()

    async def watch(self) -> None:
        """Poll topics at the brokers and queue changed ones, until cancelled. A background task of the leader."""
        await self.health.watch()

    def _assign_to_cluster(
        self, key: ObjectKey, by_cluster: dict[ClusterKey, list[TopicObservation]]
    ) -> ReconcileResult | None:
        """Add a key to its cluster, or return a result if there is nothing to do. Raises `InvalidResource`."""
        body = self._objects.get(TOPICS, key.namespace, key.name)
        if body is None:
            last = self._objects.deleted(TOPICS, key.namespace, key.name)
            if last is not None:
                self._record_final_policy(last)
                by_cluster.setdefault(cluster_of(last), []).append(
                    TopicObservation(key, topic_name_of(last), None, last)
                )
            return None if last is not None else ReconcileResult()
        desired = parse("Topic", body)
        echo = self._status_writer.echo(key, desired)
        if echo is not None:
            return echo
        by_cluster.setdefault(cluster_of(body), []).append(TopicObservation(key, desired.topic_name, desired, body))
        return None

    async def _report_invalid(self, key: ObjectKey, error: InvalidResource) -> ReconcileResult:
        body = self._objects.get(TOPICS, key.namespace, key.name)
        if body is None:
            return ReconcileResult()
        self._status_writer.forget(key)
        return await report_invalid(self._kube, TOPICS, body, error, _rfc3339(self._wall()))

    def _record_final_policy(self, last: Object) -> None:
        if final_policy(last) != "Delete":
            self._kept_owners.add(str(last["metadata"].get("uid") or ""))

    async def _reconcile_cluster(
        self, cluster: ClusterKey, observations: list[TopicObservation]
    ) -> dict[ObjectKey, ReconcileResult]:
        known = desired_topics(self._objects, cluster)
        batch = TopicBatch(
            cluster,
            self._connections.gateway_for(*cluster),
            self._kube,
            self._objects,
            known,
            self._outages,
            self._absences if are_lists_conclusive(self._objects.get(CLUSTERS, *cluster), self._wall()) else {},
            self.health.loads(cluster),
            self.health.moving(cluster),
            self._kept_owners,
            self._draining,
        )
        await batch.run(observations)
        self.health.count_started_moves(cluster, batch.moved)
        self._requeue_rivals(known, observations)
        ends = await asyncio.gather(*(self._status_writer.publish(observation) for observation in observations))
        return dict(zip([observation.key for observation in observations], ends, strict=True))

    def _requeue_rivals(self, known: DesiredTopics, observations: list[TopicObservation]) -> None:
        """Queue other objects for the same topic if their Conflict condition is outdated."""
        for observation in observations:
            others = known.by_topic.get(observation.name, ())
            if observation.desired is None:
                for body in others:
                    self._put(key_of(body))
            elif len(others) > 1:
                self._requeue_outdated(observation.desired, known.rivals(observation.desired))

    def _requeue_outdated(self, desired: Topic, rivals: Sequence[Topic]) -> None:
        first = min((desired, *rivals), key=claim)
        for rival in rivals:
            says_conflict = any(c.reason == "Conflict" for c in rival.status.conditions)
            if rival.status.conditions and says_conflict == (rival is first):
                self._put(ObjectKey("Topic", rival.metadata.namespace, rival.metadata.name), RIVAL_DELAY_S)

    def _put(self, key: ObjectKey, delay_s: float = 0.0) -> None:
        self._status_writer.forget(key)
        self._queue.put(key, delay_s)


def key_of(body: Object) -> ObjectKey:
    """Return the queue key of a Topic."""
    return ObjectKey("Topic", *name_of(body))


def _rfc3339(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
