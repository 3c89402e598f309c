"""Reconciles `User` objects in batches, grouped by cluster. Created by `main`, called by `engine.runner`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from penstock_operator.engine.absence import KeptOwners, are_lists_conclusive
from penstock_operator.engine.invalid_objects import report_invalid
from penstock_operator.engine.outages import ClusterOutages
from penstock_operator.engine.ports import ConnectionPool, Objects, Queue, ReconcileResult
from penstock_operator.engine.rotation import Rotation
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.ports.kube import CLUSTERS, USERS, Kube
from penstock_operator.users.batch import UserBatch, UserContext
from penstock_operator.users.observation import (
    ClusterKey,
    UserObservation,
    cluster_of,
    desired_users,
    key_of,
    principal_of,
)
from penstock_operator.users.orphans import OrphanedUsers
from penstock_operator.users.status_writer import UserStatusWriter

BATCH = 100
RESYNC_USERS = 1_000
"""Number of users that each resync queues, in rotation, to find changed Secrets and changes by other clients."""


class UserController:
    """The `engine.ports.ResourceController` of Users. `now` is monotonic, `wall` is Unix time, both in seconds."""

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
        self._wall = wall
        self._absences: dict[str, int] = {}
        """By owner UID: number of consecutive complete lists without it."""
        self._context = UserContext(kube, objects, ClusterOutages(now), KeptOwners(), self._timestamp)
        self._orphans = OrphanedUsers(self._context, connections, self._absences, self._put, wall)
        self._status_writer = UserStatusWriter(kube, now, self._timestamp)
        self._rotation = Rotation(RESYNC_USERS)

    async def reconcile(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, ReconcileResult]:
        """Reconcile a batch, grouped by cluster."""
        by_cluster: dict[ClusterKey, list[UserObservation]] = {}
        results: dict[ObjectKey, ReconcileResult] = {}
        for key in keys:
            result = await self._assign_to_cluster(key, by_cluster)
            if result is not None:
                results[key] = result
        for answers in await asyncio.gather(
            *(self._reconcile_cluster(cluster, observations) for cluster, observations in by_cluster.items())
        ):
            results.update(answers)
        return results

    async def resync(self) -> None:
        """Queue the next `RESYNC_USERS` users, and handle users whose object was deleted while no operator ran."""
        for body in self._rotation.next_turn(self._objects.list_objects(USERS)):
            self._put(key_of(body))
        await self._orphans.revoke_orphans()

    async def _assign_to_cluster(
        self, key: ObjectKey, by_cluster: dict[ClusterKey, list[UserObservation]]
    ) -> ReconcileResult | None:
        """Add a key to its cluster, or return a result if there is nothing to do."""
        body = self._objects.get(USERS, key.namespace, key.name)
        if body is None:
            last = self._objects.deleted(USERS, key.namespace, key.name)
            if last is None:
                return ReconcileResult()
            by_cluster.setdefault(cluster_of(last), []).append(UserObservation(key, principal_of(last), None, last))
            return None
        try:
            desired = parse("User", body)
        except InvalidResource as error:
            self._status_writer.forget(key)
            return await report_invalid(self._kube, USERS, body, error, self._timestamp())
        echo = self._status_writer.echo(key, desired)
        if echo is not None:
            return echo
        observation = UserObservation(key, desired.principal, desired, body)
        by_cluster.setdefault(cluster_of(body), []).append(observation)
        return None

    async def _reconcile_cluster(
        self, cluster: ClusterKey, observations: list[UserObservation]
    ) -> dict[ObjectKey, ReconcileResult]:
        is_conclusive = are_lists_conclusive(self._objects.get(CLUSTERS, *cluster), self._wall())
        absences = self._absences if is_conclusive else {}
        batch = UserBatch(self._context, cluster, self._connections.gateway_for(*cluster), absences)
        await batch.run(observations)
        self._requeue_rivals(cluster, observations)
        results = await asyncio.gather(*map(self._status_writer.publish, observations))
        return dict(zip([observation.key for observation in observations], results, strict=True))

    def _requeue_rivals(self, cluster: ClusterKey, observations: list[UserObservation]) -> None:
        """Queue the other objects for the principal of a deleted object: one of them owns it now."""
        for observation in observations:
            if observation.desired is None:
                for body in desired_users(self._objects, cluster).by_principal.get(observation.principal, ()):
                    self._put(key_of(body))

    def _put(self, key: ObjectKey) -> None:
        self._status_writer.forget(key)
        self._queue.put(key)

    def _timestamp(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
