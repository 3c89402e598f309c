"""What becomes of a group's offsets when its object goes: nothing, unless deletionPolicy is Delete.

There are no finalizers, so an object may go while nobody looks. The group keeps who owned it and what was wanted
(`penstock.owner`, `penstock.deletion.policy`). It is deleted when the object's DELETED event came, or when two complete
lists in a row, fresh from the API server, lack the owner's UID (while the Cluster is missing or was made a moment ago
they do not count, nor does a list with nothing that was not); never while the namespace or the definition of
ConsumerGroups is going away with everything in it, which a dry-run create tells. A group that is kept although what is
stored says Delete (its object's last word had not reached the brokers, or all is going) loses that note: it must not be
deleted later for the same absence.
"""

from __future__ import annotations

import msgspec

from penstock.runtime.clock import Clock
from penstock.runtime.logging import get_logger
from penstock_operator.engine.absence import (
    NO_PROOF,
    KeptOwners,
    do_lists_count,
    do_lists_count_now,
    does_list_count,
    is_taken_down,
)
from penstock_operator.engine.ports import ConnectionPool, Objects, ReconcileResult
from penstock_operator.groups.views import GroupView, GroupViews, Place, parsed
from penstock_operator.model.common import LISTS_WITHOUT, ObjectKey
from penstock_operator.model.group import ConsumerGroup
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
    def __init__(
        self, kube: Kube, objects: Objects, connections: ConnectionPool, clock: Clock, views: GroupViews
    ) -> None:
        self._kube, self._objects, self._connections, self._views = kube, objects, connections, views
        self._clock = clock
        self._lacked: dict[tuple[Place, str, str], int] = {}
        """By cluster, group and owner's UID, in how many lists in a row it was missing."""
        self._kept_owners = KeptOwners()
        self._told: set[str] = set()
        """Namespaces whose lists prove nothing, as was said."""

    async def gone(self, key: ObjectKey) -> ReconcileResult:
        """An object that the watches no longer have."""
        last = self._objects.deleted(CONSUMER_GROUPS, key.namespace, key.name)
        if last is None or is_discovered(last):
            return ReconcileResult()
        try:
            group = parsed(last)
        except msgspec.ValidationError:
            return ReconcileResult()
        place = (key.namespace, group.spec.cluster_ref.name)
        try:
            await self._settle(place, group)
        except KubeError as error:
            return ReconcileResult(error=str(error))
        if _is_to_go(group) and not self._objects.has_same_cluster(CONSUMER_GROUPS, group.metadata.uid):
            return ReconcileResult()  # It may have gone with everything else: lists decide.
        brokers = self._connections.of(*place)
        if brokers is None or group.group_id in self._views.winners(*place):
            return ReconcileResult()  # Nobody to ask, or another object stands for it: that one decides.
        if self._views.of(place).is_blind:
            return ReconcileResult(
                error=f"no broker of Cluster {place[1]} answers"
            )  # Many at once are not to wait for that.
        try:
            await self._finish(place, brokers, group)
        except (BrokersError, KubeError) as error:
            return ReconcileResult(error=str(error))
        return ReconcileResult()

    async def _settle(self, place: Place, group: ConsumerGroup) -> None:
        """Notes when the event comes that the group stays, whatever the brokers say: later, when they answer and the
        namespace is back, it would look like somebody's wish."""
        uid = group.metadata.uid
        if uid in self._kept_owners:
            return
        if not _is_to_go(group) or await is_taken_down(self._kube, "ConsumerGroup", *place):
            self._kept_owners.note(uid)

    async def _finish(self, place: Place, brokers: BrokerGateway, group: ConsumerGroup) -> None:
        """The end of a group whose object was deleted, by the last word of that."""
        uid = group.metadata.uid
        state = (await brokers.groups([group.group_id])).get(group.group_id)
        if state is None or state.settings.get(OWNER, uid) != uid:
            return
        if uid not in self._kept_owners:
            await self._delete(place, brokers, group.group_id)
        elif owner_of_ended(state) == uid:
            await self._keep(place, brokers, group.group_id)

    async def resync(self) -> None:
        """Groups whose owner is gone, found by `groups.discovery`. What fails of one keeps no other waiting."""
        candidates: dict[tuple[Place, str, str], None] = {}
        for place, view in self._views.all().items():
            if not do_lists_count(self._objects.get(CLUSTERS, *place), self._wall_s()):
                continue
            candidates.update({(place, group_id, uid): None for group_id, uid in view.orphans.items()})
        self._lacked = {candidate: times for candidate, times in self._lacked.items() if candidate in candidates}
        for namespace in sorted({place[0] for place, _, _ in candidates}):
            try:
                bodies = await self._kube.list(CONSUMER_GROUPS, namespace)
            except KubeError as error:  # not a complete list: nothing is counted
                log.warning("groups without their object", namespace=namespace, why=str(error))
                continue
            uids = {body["metadata"]["uid"] for body in bodies}
            wanted = {_group_of(body) for body in bodies}
            counts = does_list_count(bodies, self._wall_s())
            self._tell(namespace, counts)
            for candidate in [c for c in candidates if c[0][0] == namespace]:
                (_, cluster), group_id, uid = candidate
                # One that is known to have gone, and whose group stays, needs no proof: what is stored is put right.
                is_proof = counts or self._was_to_stay(uid)
                # Also where one wants it that no watch has told of.
                if not is_proof or uid in uids or (cluster, group_id) in wanted:
                    self._lacked.pop(candidate, None)
                    continue
                self._lacked[candidate] = self._lacked.get(candidate, 0) + 1
                if self._lacked[candidate] >= LISTS_WITHOUT:
                    await self._end_safely(candidate)

    def _tell(self, namespace: str, counts: bool) -> None:
        """Says once of a namespace that groups are kept whose objects may have been deleted."""
        if counts:
            self._told.discard(namespace)
        elif namespace not in self._told:
            self._told.add(namespace)
            log.warning("groups without their object are kept", namespace=namespace, why=NO_PROOF)

    async def _end_safely(self, candidate: tuple[Place, str, str]) -> None:
        try:
            await self._end(candidate)
        except (BrokersError, KubeError) as error:
            (namespace, cluster), group_id, _ = candidate
            log.warning("a group stays", namespace=namespace, cluster=cluster, group=group_id, why=str(error))

    async def _end(self, candidate: tuple[Place, str, str]) -> None:
        place, group_id, uid = candidate
        brokers = self._connections.of(*place)
        if brokers is None or group_id in self._views.winners(*place):
            return
        if not await do_lists_count_now(self._kube, *place, self._wall_s()):
            return
        state = (await brokers.groups([group_id])).get(group_id)
        if state is not None and owner_of_ended(state) == uid:
            if self._was_to_stay(uid) or await is_taken_down(self._kube, "ConsumerGroup", *place):
                await self._keep(place, brokers, group_id)
            else:
                await self._delete(place, brokers, group_id)
        self._lacked.pop(candidate, None)

    def _wall_s(self) -> float:
        return self._clock.wall_ms() / 1_000

    def _was_to_stay(self, uid: str) -> bool:
        """By its object's last word, where its DELETED event brought it."""
        if uid in self._kept_owners:
            return True
        last = self._objects.deleted_of_uid(CONSUMER_GROUPS, uid)
        try:
            return last is not None and not _is_to_go(parsed(last))
        except msgspec.ValidationError:
            return True

    async def _keep(self, place: Place, brokers: BrokerGateway, group_id: str) -> None:
        change = ConfigPatch(group_id, {OWNER: None, DELETION_POLICY: None})
        refused = (await brokers.change_groups([change])).get(group_id)
        if refused is not None:
            raise refused
        self._views.forget(place, group_id)
        self._views.of(place).orphans.pop(group_id, None)
        log.info("group kept without its object", namespace=place[0], cluster=place[1], group=group_id)

    async def _delete(self, place: Place, brokers: BrokerGateway, group_id: str) -> None:
        refused = (await brokers.delete_groups([group_id])).get(group_id)
        if refused is not None and refused.code != "GROUP_ID_NOT_FOUND":
            raise refused
        view: GroupView = self._views.of(place)
        view.states.pop(group_id, None)
        view.orphans.pop(group_id, None)
        log.info("group deleted with its object", namespace=place[0], cluster=place[1], group=group_id)


def _is_to_go(group: ConsumerGroup) -> bool:
    return group.spec.lasting_policy == "Delete"


def _group_of(body: Object) -> tuple[str, str]:
    """The cluster and the id of the group that an object stands for."""
    spec = body.get("spec") or {}
    return str((spec.get("clusterRef") or {}).get("name") or ""), str(spec.get("groupId") or body["metadata"]["name"])


def owner_of_ended(state: ObservedGroupState) -> str:
    """The UID of the object that a group goes with; "" where it stays."""
    return state.settings.get(OWNER, "") if state.settings.get(DELETION_POLICY) == "Delete" else ""
