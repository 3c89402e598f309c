"""Looks at topics, many at a time: by cluster one observation, a plan for each, few requests, and statuses where they
differ. Made by `main`, run by `engine.runner`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from penstock_operator.engine.absence import KeptOwners, do_lists_count
from penstock_operator.engine.ports import ConnectionPool, Objects, Queue, ReconcileResult
from penstock_operator.engine.refusals import tell_refused
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.model.topic import Topic
from penstock_operator.ports.kube import CLUSTERS, TOPICS, Kube, Object
from penstock_operator.reconcile.topic.reconcile import claim
from penstock_operator.topics.batch import TopicBatch, TopicObservation
from penstock_operator.topics.health import TopicHealth
from penstock_operator.topics.leftovers import Leftovers
from penstock_operator.topics.observation import TopicDesires, cluster_of, last_word, name_of, topic_name_of, wishes
from penstock_operator.topics.problems import ClusterKey, TopicProblems
from penstock_operator.topics.status_writer import TopicStatusWriter

BATCH = 500
RESYNC_TOPICS = 2000
"""How many topics each resync looks at: what nobody told (a setting that somebody changed) is found in turns."""
RIVAL_DELAY_S = 0.5


class TopicController:
    """`now` is a monotonic clock and `wall` the wall clock, both in seconds."""

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
        self._troubles = TopicProblems(now)
        self._absences: dict[str, int] = {}
        """By owner UID: complete lists in a row that lacked it."""
        self._kept_owners = KeptOwners()
        self._teller = TopicStatusWriter(kube, now, lambda: _rfc3339(wall()))
        self.health = TopicHealth(objects, connections, self._troubles, self._put)
        self._leftovers = Leftovers(kube, objects, connections, self._absences, self._put, wall, self._kept_owners)
        self._wall = wall
        self._next = 0

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        by_cluster: dict[ClusterKey, list[TopicObservation]] = {}
        verdicts: dict[ObjectKey, ReconcileResult] = {}
        for key in keys:
            try:
                verdict = self._sort(key, by_cluster)
            except InvalidResource as e:
                verdict = await self._refuse(key, e)
            if verdict is not None:
                verdicts[key] = verdict
        for answers in await asyncio.gather(*(self._look(cluster, looks) for cluster, looks in by_cluster.items())):
            verdicts.update(answers)
        return verdicts

    async def resync(self) -> None:
        """Topics whose object went while nobody looked; and some of all topics, in turns."""
        topics = self._objects.of(TOPICS)
        if topics:
            part = min(RESYNC_TOPICS, len(topics))
            for index in range(self._next, self._next + part):
                self._put(key_of(topics[index % len(topics)]))
            self._next = (self._next + part) % len(topics)
        await self._leftovers.sweep()

    async def watch(self) -> None:
        """Runs while this operator acts, until cancelled: sees what changes at the brokers without anybody's telling,
        and has those topics looked at."""
        await self.health.watch()

    def _sort(self, key: ObjectKey, by_cluster: dict[ClusterKey, list[TopicObservation]]) -> ReconcileResult | None:
        """Puts a key to its cluster, or answers at once where nothing is to be looked at. Raises `InvalidResource`."""
        body = self._objects.get(TOPICS, key.namespace, key.name)
        if body is None:
            last = self._objects.deleted(TOPICS, key.namespace, key.name)
            if last is not None:
                self._note_last_word(last)
                by_cluster.setdefault(cluster_of(last), []).append(
                    TopicObservation(key, topic_name_of(last), None, last)
                )
            return None if last is not None else ReconcileResult()
        desired = parse("Topic", body)
        echo = self._teller.echo(key, desired)
        if echo is not None:
            return echo
        by_cluster.setdefault(cluster_of(body), []).append(TopicObservation(key, desired.topic_name, desired, body))
        return None

    async def _refuse(self, key: ObjectKey, error: InvalidResource) -> ReconcileResult:
        body = self._objects.get(TOPICS, key.namespace, key.name)
        if body is None:
            return ReconcileResult()
        self._teller.forget(key)
        return await tell_refused(self._kube, TOPICS, body, error, _rfc3339(self._wall()))

    def _note_last_word(self, last: Object) -> None:
        if last_word(last) != "Delete":
            self._kept_owners.note(str(last["metadata"].get("uid") or ""))

    async def _look(self, cluster: ClusterKey, looks: list[TopicObservation]) -> dict[ObjectKey, ReconcileResult]:
        known = wishes(self._objects, cluster)
        batch = TopicBatch(
            cluster,
            self._connections.of(*cluster),
            self._kube,
            self._objects,
            known,
            self._troubles,
            self._absences if do_lists_count(self._objects.get(CLUSTERS, *cluster), self._wall()) else {},
            self.health.loads(cluster),
            self.health.moving(cluster),
            self._kept_owners,
        )
        await batch.run(looks)
        self.health.began_to_move(cluster, batch.moved)
        self._call_rivals(known, looks)
        ends = await asyncio.gather(*(self._teller.tell(look) for look in looks))
        return dict(zip([look.key for look in looks], ends, strict=True))

    def _call_rivals(self, known: TopicDesires, looks: list[TopicObservation]) -> None:
        """Other objects for a topic are looked at where what they say of it is not what it should be now."""
        for look in looks:
            others = known.by_topic.get(look.name, ())
            if look.desired is None:
                for body in others:
                    self._put(key_of(body))
            elif len(others) > 1:
                self._call_each(look.desired, known.rivals(look.desired))

    def _call_each(self, desired: Topic, rivals: Sequence[Topic]) -> None:
        first = min((desired, *rivals), key=claim)
        for rival in rivals:
            says_conflict = any(c.reason == "Conflict" for c in rival.status.conditions)
            if rival.status.conditions and says_conflict == (rival is first):
                self._put(ObjectKey("Topic", rival.metadata.namespace, rival.metadata.name), RIVAL_DELAY_S)

    def _put(self, key: ObjectKey, delay_s: float = 0.0) -> None:
        self._teller.forget(key)
        self._queue.put(key, delay_s)


def key_of(body: Object) -> ObjectKey:
    return ObjectKey("Topic", *name_of(body))


def _rfc3339(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
