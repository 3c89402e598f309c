"""Deletes groups whose ConsumerGroup object is gone, if its deletionPolicy was Delete.

Objects have no finalizers and may disappear while no operator runs, so the group stores its owner and policy
(`penstock.owner`, `penstock.deletion.policy`). The operator deletes the group after the object's DELETED event, or
after two consecutive complete lists without the owner's UID (`engine.absence` states when lists count), but never while
the namespace or the CRD is being deleted, which a dry-run create shows. If a group is retained although its stored
policy is Delete (the final policy of the object had not reached the brokers, or everything is being deleted), the
stored policy is removed, so that the same absence does not delete the group later.
"""

from __future__ import annotations

from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock_operator.engine.absence import (
    INCONCLUSIVE_LIST,
    KeptOwners,
    are_lists_conclusive,
    are_lists_conclusive_now,
    is_being_torn_down,
    is_list_conclusive,
)
from penstock_operator.engine.ports import ConnectionPool, Objects, ReconcileResult
from penstock_operator.groups.views import ClusterKey, GroupView, GroupViews
from penstock_operator.model.common import LISTS_WITHOUT, ObjectKey
from penstock_operator.model.group import ConsumerGroup
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.ports.brokers import (
    DELETION_POLICY,
    OWNER,
    BrokerGateway,
    BrokersError,
    ConfigPatch,
    ObservedGroupState,
)
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, Kube, KubeError, Object
from penstock_operator.reconcile.group.names import is_discovered

log = get_logger("operator")


class GroupDeletions:
    """Handles deleted ConsumerGroup objects of all clusters."""

    def __init__(
        self, kube: Kube, objects: Objects, connections: ConnectionPool, clock: Clock, views: GroupViews
    ) -> None:
        self._kube, self._objects, self._connections, self._views = kube, objects, connections, views
        self._clock = clock
        self._absences: dict[tuple[ClusterKey, str, str], int] = {}
        """By cluster, group and owner UID: number of consecutive lists without the owner."""
        self._kept_owners = KeptOwners()
        self._reported_namespaces: set[str] = set()
        """Namespaces with inconclusive lists that were logged."""

    async def handle_deleted(self, key: ObjectKey) -> ReconcileResult:
        """Handle a key whose object is no longer in the cache."""
        last = self._objects.deleted(CONSUMER_GROUPS, key.namespace, key.name)
        if last is None or is_discovered(last):
            return ReconcileResult()
        try:
            group = parse("ConsumerGroup", last)
        except InvalidResource:
            return ReconcileResult()
        cluster_key = (key.namespace, group.spec.cluster_ref.name)
        try:
            await self._record_decision(cluster_key, group)
        except KubeError as error:
            return ReconcileResult(error=str(error))
        if _is_deleted_with_object(group) and not self._objects.has_same_cluster(CONSUMER_GROUPS, group.metadata.uid):
            return ReconcileResult()  # It may have been deleted with the cluster: lists decide.
        brokers = self._connections.gateway_for(*cluster_key)
        if brokers is None or group.group_id in self._views.winners(*cluster_key):
            return ReconcileResult()  # No brokers, or another object owns the group and decides.
        if self._views.view_for(cluster_key).is_unreachable:
            return ReconcileResult(
                error=f'no broker of Cluster "{cluster_key[1]}" answers'
            )  # Avoids a timeout per group.
        try:
            await self._resolve_deletion(cluster_key, brokers, group)
        except (BrokersError, KubeError) as error:
            return ReconcileResult(error=str(error))
        return ReconcileResult()

    async def _record_decision(self, cluster_key: ClusterKey, group: ConsumerGroup) -> None:
        """Record on the DELETED event if the group is retained, before brokers are contacted: once a deleted namespace
        is recreated, the deletion would look like a user's request."""
        uid = group.metadata.uid
        if uid in self._kept_owners:
            return
        if not _is_deleted_with_object(group) or await is_being_torn_down(self._kube, "ConsumerGroup", *cluster_key):
            self._kept_owners.add(uid)

    async def _resolve_deletion(self, cluster_key: ClusterKey, brokers: BrokerGateway, group: ConsumerGroup) -> None:
        """Delete or retain a group by the final policy of its deleted object."""
        uid = group.metadata.uid
        state = (await brokers.groups([group.group_id])).get(group.group_id)
        if state is None or state.settings.get(OWNER, uid) != uid:
            return
        if uid not in self._kept_owners:
            await self._delete(cluster_key, brokers, group.group_id)
        elif deletion_owner(state) == uid:
            await self._keep(cluster_key, brokers, group.group_id)

    async def resync(self) -> None:
        """Delete or retain groups without an owner that `groups.discovery` found. A failure does not affect other
        groups."""
        candidates: dict[tuple[ClusterKey, str, str], None] = {}
        for cluster_key, view in self._views.all().items():
            if not are_lists_conclusive(self._objects.get(CLUSTERS, *cluster_key), self._wall_s()):
                continue
            candidates.update({(cluster_key, group_id, uid): None for group_id, uid in view.orphans.items()})
        self._absences = {candidate: times for candidate, times in self._absences.items() if candidate in candidates}
        for namespace in sorted({cluster_key[0] for cluster_key, _, _ in candidates}):
            try:
                bodies = await self._kube.list(CONSUMER_GROUPS, namespace)
            except KubeError as error:  # incomplete list: count nothing
                log.warning("cannot list ConsumerGroups; orphaned groups are kept", namespace=namespace, why=str(error))
                continue
            uids = {body["metadata"]["uid"] for body in bodies}
            listed_groups = {_group_of(body) for body in bodies}
            is_conclusive = is_list_conclusive(bodies, self._wall_s())
            self._log_kept(namespace, is_conclusive)
            for candidate in [c for c in candidates if c[0][0] == namespace]:
                (_, cluster), group_id, uid = candidate
                # A retained group needs no evidence: only its stored policy is removed.
                is_proof = is_conclusive or self._was_retained(uid)
                # A listed object may own the group before the watch reports it.
                if not is_proof or uid in uids or (cluster, group_id) in listed_groups:
                    self._absences.pop(candidate, None)
                    continue
                self._absences[candidate] = self._absences.get(candidate, 0) + 1
                if self._absences[candidate] >= LISTS_WITHOUT:
                    await self._try_delete_orphan(candidate)

    def _log_kept(self, namespace: str, is_conclusive: bool) -> None:
        """Log once per namespace that orphaned groups are kept because its lists are inconclusive."""
        if is_conclusive:
            self._reported_namespaces.discard(namespace)
        elif namespace not in self._reported_namespaces:
            self._reported_namespaces.add(namespace)
            log.warning("orphaned groups are kept", namespace=namespace, why=INCONCLUSIVE_LIST)

    async def _try_delete_orphan(self, candidate: tuple[ClusterKey, str, str]) -> None:
        try:
            await self._delete_orphan(candidate)
        except (BrokersError, KubeError) as error:
            (namespace, cluster), group_id, _ = candidate
            log.warning(
                "failed to delete an orphaned group",
                namespace=namespace,
                cluster=cluster,
                group=group_id,
                why=str(error),
            )

    async def _delete_orphan(self, candidate: tuple[ClusterKey, str, str]) -> None:
        cluster_key, group_id, uid = candidate
        brokers = self._connections.gateway_for(*cluster_key)
        if brokers is None or group_id in self._views.winners(*cluster_key):
            return
        if not await are_lists_conclusive_now(self._kube, *cluster_key, self._wall_s()):
            return
        state = (await brokers.groups([group_id])).get(group_id)
        if state is not None and deletion_owner(state) == uid:
            if self._was_retained(uid) or await is_being_torn_down(self._kube, "ConsumerGroup", *cluster_key):
                await self._keep(cluster_key, brokers, group_id)
            else:
                await self._delete(cluster_key, brokers, group_id)
        self._absences.pop(candidate, None)

    def _wall_s(self) -> float:
        return self._clock.wall_ms() / 1_000

    def _was_retained(self, uid: str) -> bool:
        """Whether the final policy of the deleted object, as its DELETED event reported it, was Retain."""
        if uid in self._kept_owners:
            return True
        last = self._objects.deleted_by_uid(CONSUMER_GROUPS, uid)
        try:
            return last is not None and not _is_deleted_with_object(parse("ConsumerGroup", last))
        except InvalidResource:
            return True

    async def _keep(self, cluster_key: ClusterKey, brokers: BrokerGateway, group_id: str) -> None:
        change = ConfigPatch(group_id, {OWNER: None, DELETION_POLICY: None})
        refused = (await brokers.change_groups([change])).get(group_id)
        if refused is not None:
            raise refused
        self._views.forget(cluster_key, group_id)
        self._views.view_for(cluster_key).orphans.pop(group_id, None)
        log.info(
            "group retained after its object was deleted",
            namespace=cluster_key[0],
            cluster=cluster_key[1],
            group=group_id,
        )

    async def _delete(self, cluster_key: ClusterKey, brokers: BrokerGateway, group_id: str) -> None:
        refused = (await brokers.delete_groups([group_id])).get(group_id)
        if refused is not None and refused.code != "GROUP_ID_NOT_FOUND":
            raise refused
        view: GroupView = self._views.view_for(cluster_key)
        view.states.pop(group_id, None)
        view.orphans.pop(group_id, None)
        log.info(
            "group deleted after its object was deleted",
            namespace=cluster_key[0],
            cluster=cluster_key[1],
            group=group_id,
        )


def _is_deleted_with_object(group: ConsumerGroup) -> bool:
    return group.spec.lasting_policy == "Delete"


def _group_of(body: Object) -> tuple[str, str]:
    """Return the cluster name and the group id of an object."""
    spec = body.get("spec") or {}
    return str((spec.get("clusterRef") or {}).get("name") or ""), str(spec.get("groupId") or body["metadata"]["name"])


def deletion_owner(state: ObservedGroupState) -> str:
    """Return the UID of the owner if the group is deleted with it, otherwise ""."""
    return state.settings.get(OWNER, "") if state.settings.get(DELETION_POLICY) == "Delete" else ""
