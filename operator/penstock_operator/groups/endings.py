"""What becomes of a group's offsets when its object goes: nothing, unless deletionPolicy is Delete.

There are no finalizers, so an object may go while nobody looks. The group keeps who owned it and what was wanted
(`penstock.owner`, `penstock.deletion.policy`). It is deleted when the object's DELETED event came, or when two complete
lists in a row, fresh from the API server, lack the owner's UID; never while the namespace or the definition of
ConsumerGroups is going away with everything in it, which a dry-run create tells.
"""

from __future__ import annotations

import msgspec

from penstock.runtime.logging import get_logger
from penstock_operator.engine.ports import Connections, Objects, Verdict
from penstock_operator.groups.views import Place, View, Views, parsed
from penstock_operator.model.common import API_VERSION, Key
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER, Brokers, BrokersError, GroupState
from penstock_operator.ports.kube import CONSUMER_GROUPS, Kube, KubeError
from penstock_operator.reconcile.group_names import is_discovered

LISTS_NEEDED = 2

log = get_logger("operator")


class Endings:
    def __init__(self, kube: Kube, objects: Objects, connections: Connections, views: Views) -> None:
        self._kube, self._objects, self._connections, self._views = kube, objects, connections, views
        self._lacked: dict[tuple[Place, str, str], int] = {}
        """By cluster, group and owner's UID, in how many lists in a row it was missing."""

    async def gone(self, key: Key) -> Verdict:
        """An object that the watches no longer have."""
        last = self._objects.deleted(CONSUMER_GROUPS, key.namespace, key.name)
        if last is None or is_discovered(last):
            return Verdict()
        try:
            group = parsed(last)
        except msgspec.ValidationError:
            return Verdict()
        place = (key.namespace, group.spec.cluster_ref.name)
        brokers = self._connections.of(*place)
        if group.spec.deletion_policy != "Delete" or group.spec.paused or brokers is None:
            return Verdict()
        if group.group_id in self._views.winners(*place):
            return Verdict()  # Another object stands for it: that one decides.
        try:
            state = (await brokers.groups([group.group_id])).get(group.group_id)
            if state is None or state.settings.get(OWNER, group.metadata.uid) != group.metadata.uid:
                return Verdict()
            if await self._is_all_going(key.namespace):
                return Verdict()
            await self._delete(place, brokers, group.group_id)
        except (BrokersError, KubeError) as error:
            return Verdict(error=str(error))
        return Verdict()

    async def resync(self) -> None:
        """Groups whose owner is gone, found by `groups.discovery`. Raises `KubeError`, `BrokersError`."""
        candidates: dict[tuple[Place, str, str], None] = {}
        for place, view in self._views.all().items():
            candidates.update({(place, group_id, uid): None for group_id, uid in view.orphans.items()})
        self._lacked = {candidate: times for candidate, times in self._lacked.items() if candidate in candidates}
        for namespace in sorted({place[0] for place, _, _ in candidates}):
            bodies = await self._kube.list(CONSUMER_GROUPS, namespace)
            uids = {body["metadata"]["uid"] for body in bodies}
            for candidate in [c for c in candidates if c[0][0] == namespace]:
                if candidate[2] in uids:
                    self._lacked.pop(candidate, None)
                    continue
                self._lacked[candidate] = self._lacked.get(candidate, 0) + 1
                if self._lacked[candidate] >= LISTS_NEEDED and not await self._is_all_going(namespace):
                    await self._end(candidate)

    async def _end(self, candidate: tuple[Place, str, str]) -> None:
        place, group_id, uid = candidate
        brokers = self._connections.of(*place)
        if brokers is None or group_id in self._views.winners(*place):
            return
        state = (await brokers.groups([group_id])).get(group_id)
        if state is not None and owner_of_ended(state) == uid:
            await self._delete(place, brokers, group_id)
        del self._lacked[candidate]

    async def _delete(self, place: Place, brokers: Brokers, group_id: str) -> None:
        refused = (await brokers.delete_groups([group_id])).get(group_id)
        if refused is not None and refused.code != "GROUP_ID_NOT_FOUND":
            raise refused
        view: View = self._views.of(place)
        view.states.pop(group_id, None)
        view.orphans.pop(group_id, None)
        log.info("group deleted with its object", namespace=place[0], cluster=place[1], group=group_id)

    async def _is_all_going(self, namespace: str) -> bool:
        """Raises `KubeError` where the API server does not say."""
        probe = {
            "apiVersion": API_VERSION,
            "kind": "ConsumerGroup",
            "metadata": {"generateName": "probe-", "namespace": namespace},
            "spec": {"clusterRef": {"name": "probe"}},
        }
        try:
            await self._kube.create(CONSUMER_GROUPS, namespace, probe, dry_run=True)
        except KubeError as error:
            if error.status in (403, 404, 405):
                return True
            raise
        return False


def owner_of_ended(state: GroupState) -> str:
    """The UID of the object that a group goes with; "" where it stays."""
    return state.settings.get(OWNER, "") if state.settings.get(DELETION_POLICY) == "Delete" else ""
