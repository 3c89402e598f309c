"""Finds principals whose User object was deleted while no operator ran, and revokes or keeps them. Used by
`controller`.

The recorded owners tell which objects existed; `engine.absence` states when missing objects count as deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from penstock_operator.engine.absence import (
    INCONCLUSIVE_LIST,
    are_lists_conclusive,
    are_lists_conclusive_now,
    is_list_conclusive,
)
from penstock_operator.engine.ports import ConnectionPool
from penstock_operator.model.common import LISTS_WITHOUT, ObjectKey
from penstock_operator.ports.kube import CLUSTERS, USERS, KubeError, Object
from penstock_operator.reconcile.user.types import UserOwner
from penstock_operator.users.batch import UserBatch, UserContext
from penstock_operator.users.observation import (
    ClusterKey,
    UserObservation,
    desired_users,
    final_policy,
    key_of,
    principal_of,
)
from penstock_operator.users.records import OwnerRecords

log = structlog.get_logger("penstock.operator.users")


class OrphanedUsers:
    """Finds and handles orphaned users. `absences` counts consecutive complete lists without an owner, by UID; this
    class writes it, others read it. `wall` returns Unix time in seconds."""

    def __init__(
        self,
        context: UserContext,
        connections: ConnectionPool,
        absences: dict[str, int],
        put: Callable[[ObjectKey], None],
        wall: Callable[[], float],
    ) -> None:
        self._context, self._connections, self._absences = context, connections, absences
        self._put, self._wall = put, wall
        self._reported_namespaces: set[str] = set()
        """Namespaces with inconclusive lists that were logged."""

    async def revoke_orphans(self) -> None:
        """Check each cluster, and revoke or keep its orphaned users. An error in one cluster is logged, not raised."""
        if not self._context.objects.is_listed(USERS):
            return  # absence means nothing yet
        suspects: dict[ClusterKey, dict[str, UserOwner]] = {}
        for body in self._context.objects.list_objects(CLUSTERS):
            if are_lists_conclusive(body, self._wall()):
                cluster = str(body["metadata"]["namespace"]), str(body["metadata"]["name"])
                try:
                    suspects[cluster] = await self._suspects(cluster, body)
                except KubeError as error:
                    self._warn("cannot read the owners of users", cluster, error)
        uids = {owner.uid for owners in suspects.values() for owner in owners.values()}
        for known in self._absences.keys() - uids:
            del self._absences[known]
        for cluster, owners in suspects.items():
            try:
                await self._handle(cluster, owners)
            except KubeError as error:
                self._warn("cannot list Users; orphaned users are kept", cluster, error)

    async def _suspects(self, cluster: ClusterKey, body: Object) -> dict[str, UserOwner]:
        """Return recorded owners that neither exist nor have a DELETED event that is queued."""
        objects = self._context.objects
        known = desired_users(objects, cluster)
        found: dict[str, UserOwner] = {}
        for principal, owner in (await OwnerRecords(self._context.kube, body).read()).items():
            if known.by_principal.get(principal):
                continue
            last = objects.deleted_by_uid(USERS, owner.uid)
            if last is not None and (final_policy(last) != "Delete" or objects.has_same_cluster(USERS, owner.uid)):
                self._put(key_of(last))
            else:
                found[principal] = owner
        return found

    async def _handle(self, cluster: ClusterKey, owners: Mapping[str, UserOwner]) -> None:
        """List the namespace, count, and reconcile the users whose owner is missing for long enough."""
        if not owners:
            return
        bodies = await self._context.kube.list(USERS, cluster[0])
        # Also an object that no watch has reported yet, such as a restored one, owns its principal.
        specified = {principal_of(body) for body in bodies}
        is_conclusive = is_list_conclusive(bodies, self._wall())
        self._log_kept(cluster[0], is_conclusive, owners)
        due = []
        for principal, owner in owners.items():
            is_proof = is_conclusive or owner.uid in self._context.kept_owners
            if not is_proof or principal in specified:
                self._absences.pop(owner.uid, None)
                continue
            self._absences[owner.uid] = self._absences.get(owner.uid, 0) + 1
            if self._absences[owner.uid] >= LISTS_WITHOUT:
                due.append(principal)
        if due and await are_lists_conclusive_now(self._context.kube, *cluster, self._wall()):
            await self._reconcile(cluster, due)

    async def _reconcile(self, cluster: ClusterKey, principals: list[str]) -> None:
        body = self._context.objects.get(CLUSTERS, *cluster)
        brokers = self._connections.gateway_for(*cluster)
        if body is None or brokers is None:
            return
        observations = [
            UserObservation(ObjectKey("User", cluster[0], principal), principal, None, body, is_orphan=True)
            for principal in principals
        ]
        await UserBatch(self._context, cluster, brokers, self._absences).run(observations)
        for observation in observations:
            if observation.error is not None:
                self._warn("failed to revoke an orphaned user", cluster, observation.error)
            if observation.events:
                await self._context.kube.record_events(body, observation.events)

    def _log_kept(self, namespace: str, is_conclusive: bool, owners: Mapping[str, UserOwner]) -> None:
        """Log once per namespace that orphaned users are kept because its lists are inconclusive."""
        if is_conclusive:
            self._reported_namespaces.discard(namespace)
        elif namespace not in self._reported_namespaces:
            self._reported_namespaces.add(namespace)
            such_as = sorted(owners)[:5]
            log.warning("orphaned users are kept", namespace=namespace, such_as=such_as, why=INCONCLUSIVE_LIST)

    def _warn(self, what: str, cluster: ClusterKey, error: object) -> None:
        log.warning(what, namespace=cluster[0], cluster=cluster[1], error=str(error))
