"""Executes the planned actions on the companion etcd. Used by `action_runner`."""

from __future__ import annotations

from penstock.runtime.logging import get_logger
from penstock_operator.clusters.store_access import store_access
from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import PODS, STATEFUL_SETS, Kube, KubeEvent
from penstock_operator.ports.state_store import StateStoreClient, StateStoreError
from penstock_operator.reconcile.cluster.actions import (
    AddStoreMember,
    MoveStoreLeader,
    PromoteStoreMember,
    RemoveStoreMember,
    RestartStorePod,
    ScaleStore,
    StoreAction,
)

log = get_logger("penstock.operator.clusters")


class StoreActionRunner:
    """Executes `StoreAction`s."""

    def __init__(self, kube: Kube, store: StateStoreClient) -> None:
        self._kube, self._store = kube, store

    async def run(self, cluster: Cluster, action: StoreAction) -> list[KubeEvent]:
        """Execute an action. Return the Events to record. Raises `KubeError`, and `StateStoreError` if a retry does not
        help: etcd rejects changes of its members in the first seconds after the last one, and the next reconciliation
        plans them again."""
        try:
            return await self._run(cluster, action)
        except StateStoreError as e:
            if not e.is_passing:
                raise
            log.info("etcd does not change its members yet", cluster=cluster.metadata.name, why=str(e))
            return []

    async def _run(self, cluster: Cluster, action: StoreAction) -> list[KubeEvent]:
        match action:
            case RemoveStoreMember(name, endpoint, member_id, why):
                await self._store.remove_member(endpoint, await store_access(self._kube, cluster), member_id)
                message = f"removed the membership {member_id:x} of {name}: {why}"
                return [KubeEvent("Normal", "StoreMemberRemoved", message)]
            case AddStoreMember(name, endpoint, peer_url):
                await self._store.add_member(endpoint, await store_access(self._kube, cluster), peer_url)
                return [KubeEvent("Normal", "StoreMemberAdded", f"added {name} as a new member of etcd")]
            case PromoteStoreMember(name, endpoint, member_id):
                await self._store.promote_member(endpoint, await store_access(self._kube, cluster), member_id)
                return [KubeEvent("Normal", "StoreMemberPromoted", f"{name} is in sync, and votes from now on")]
            case MoveStoreLeader(name, endpoint, member_id):
                await self._store.move_leader(endpoint, await store_access(self._kube, cluster), member_id)
                return [KubeEvent("Normal", "StoreLeaderMoved", f"{name} is the leader of etcd now")]
            case RestartStorePod(name, uid, why):
                if await self._kube.delete(PODS, cluster.metadata.namespace, name, uid):
                    return [KubeEvent("Normal", "StoreMemberRestarted", f"restarting pod {name}: {why}")]
            case ScaleStore(name, replicas):
                await self._kube.patch(
                    STATEFUL_SETS, cluster.metadata.namespace, name, {"spec": {"replicas": replicas}}
                )
                log.info("scaled etcd", cluster=cluster.metadata.name, stateful_set=name, replicas=replicas)
        return []
