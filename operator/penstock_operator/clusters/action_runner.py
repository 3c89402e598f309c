"""Executes the planned actions of a cluster. Used by `controller`."""

from __future__ import annotations

from penstock.runtime.logging import get_logger
from penstock_operator.clusters.certificate_issuer import CertificateIssuer
from penstock_operator.clusters.observer import ClusterMemory
from penstock_operator.clusters.ownership import ownership_conflict
from penstock_operator.clusters.store_actions import StoreActionRunner
from penstock_operator.engine.ports import ConnectionPool
from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.brokers import BrokersError
from penstock_operator.ports.kube import CLAIMS, PODS, STATEFUL_SETS, Kube, KubeError, KubeEvent, KubeResource, Object
from penstock_operator.ports.state_store import StateStoreError
from penstock_operator.reconcile.cluster.actions import (
    AddStoreMember,
    AnnotateClaim,
    ApplyObject,
    ChangeBrokers,
    ClusterAction,
    CreateAuthority,
    CreateEtcdCertificate,
    CreatePod,
    CreateRestorePod,
    DeleteObject,
    DropAuthority,
    ExpandClaim,
    IssueCertificate,
    MovePod,
    MoveStoreLeader,
    PromoteAuthority,
    PromoteStoreMember,
    ReassignPartitions,
    RemoveStoreMember,
    RestartPod,
    RestartStorePod,
    ScaleDownStatefulSet,
    ScaleStore,
    Step,
    needs,
    step_of,
)
from penstock_operator.reconcile.cluster.reconcile import compared_fields, drift_digest
from penstock_operator.reconcile.cluster.scale import applied_replicas, join_numbers, live_replicas
from penstock_operator.specs import cluster_annotations, compare, names

REFUSED_RETRY_S = 600.0
"""Pause before a change that the API server rejected is retried."""

log = get_logger("penstock.operator.clusters")


class OwnershipConflict(Exception):
    """An object with a name that the cluster needs exists and has another owner."""


class ActionRunner:
    """Executes actions against the API server and the brokers."""

    def __init__(
        self, kube: Kube, connections: ConnectionPool, issuer: CertificateIssuer, store: StoreActionRunner
    ) -> None:
        self._kube, self._connections, self._issuer, self._store = kube, connections, issuer, store

    async def act(
        self, cluster: Cluster, actions: tuple[ClusterAction, ...], memory: ClusterMemory, now: float
    ) -> tuple[list[KubeEvent], str]:
        """Execute actions in order. Return Events and the error message, or "". Skips actions that depend on a failed
        step. Stops at an ownership conflict, because the operator reaches brokers by these names."""
        events: list[KubeEvent] = []
        problems: list[str] = []
        failed: set[Step] = set()
        for action in actions:
            if needs(action) & failed:
                continue
            try:
                problem = await self._run_action(cluster, action, memory, now, events)
            except OwnershipConflict as e:
                return events, str(e)
            except (KubeError, BrokersError, StateStoreError) as e:
                problem = str(e)
            if problem:
                problems.append(problem)
                failed.add(step_of(action))
        return events, summarize(problems)

    async def _run_action(
        self, cluster: Cluster, action: ClusterAction, memory: ClusterMemory, now: float, events: list[KubeEvent]
    ) -> str:
        namespace = cluster.metadata.namespace
        match action:
            case ApplyObject(resource, body, why, is_new, seen, event):
                if is_new:
                    body, seen = await self._check_ownership(cluster, resource, body)
                log.info("applying object", resource=resource.plural, name=body["metadata"]["name"], why=why)
                if seen is None:
                    await self._apply(resource, namespace, body, memory)
                else:
                    await self._apply_if_unchanged(resource, namespace, body, memory, seen)
                await self._record_revert(seen, event, events)
            case ScaleDownStatefulSet(body, removed, version, event):
                made = await self._apply(STATEFUL_SETS, namespace, body, memory, version)
                await self._record_revert(made, event, events)
                events.append(
                    KubeEvent(
                        "Normal", "BrokersRemoved", f"removing broker {join_numbers(removed)}: it holds no replicas"
                    )
                )
            case DeleteObject(resource, name, uid, orphan):
                await self._kube.delete(resource, namespace, name, uid, orphan=orphan)
            case ExpandClaim():
                await self._grow(namespace, action, memory, now)
            case AnnotateClaim(name, members):
                patch = {
                    "metadata": {
                        "annotations": cluster_annotations.written(
                            cluster_annotations.ClusterAnnotations(etcd_members=members)
                        )
                    }
                }
                await self._kube.patch(CLAIMS, namespace, name, patch)
            case RestartPod(name, uid, ordinal, why):
                if await self._kube.delete(PODS, namespace, name, uid):
                    events.append(KubeEvent("Normal", "BrokerRestarted", f"restarting broker {ordinal}: {why}"))
            case MovePod(name, uid, _, node):
                if await self._kube.delete(PODS, namespace, name, uid):
                    why = f"it shares node {node} although another node has fewer"
                    events.append(KubeEvent("Normal", "PodMoved", f"restarting pod {name}: {why}"))
            case CreatePod(body, event):
                events += await self._create_pod(namespace, body, event)
            case CreateRestorePod(body):
                await self._create_pod(namespace, body, None)
            case (
                RemoveStoreMember() | AddStoreMember() | PromoteStoreMember() | MoveStoreLeader()
                | RestartStorePod() | ScaleStore()
            ):  # fmt: skip
                events += await self._store.run(cluster, action)
            case (
                CreateAuthority() | PromoteAuthority() | DropAuthority() | IssueCertificate() | CreateEtcdCertificate()
            ):
                event, problem = await self._issuer.run(cluster, action)
                events += [event] if event is not None else []
                return problem
            case ChangeBrokers() | ReassignPartitions():
                return await self._send_to_brokers(cluster, action, memory)
        return ""

    async def _create_pod(self, namespace: str, body: Object, event: KubeEvent | None) -> list[KubeEvent]:
        """Create a pod. Return the Events to record. Raises `KubeError`."""
        try:
            await self._kube.create(PODS, namespace, body)
        except KubeError as e:
            if e.status != 409:
                raise
            return []  # the cache is late, or the previous one is still being deleted
        return [event] if event is not None else []

    async def _check_ownership(
        self, cluster: Cluster, resource: KubeResource, body: Object
    ) -> tuple[Object, Object | None]:
        """Check an object that the cache does not have before it is created. Return the body to apply, and an existing
        StatefulSet, whose replicas are kept: a late watch or a removed label must not remove brokers that hold
        replicas. Raises `OwnershipConflict`."""
        there = await self._kube.get(resource, cluster.metadata.namespace, body["metadata"]["name"])
        if problem := ownership_conflict(cluster, resource, there):
            raise OwnershipConflict(problem)
        if there is None or resource != STATEFUL_SETS:
            return body, None
        replicas = max(int(body["spec"]["replicas"]), live_replicas(there), applied_replicas(there) or 0)
        annotations = body["metadata"]["annotations"] | {names.REPLICAS: str(replicas)}
        return body | {
            "metadata": body["metadata"] | {"annotations": annotations},
            "spec": body["spec"] | {"replicas": replicas},
        }, there

    async def _record_revert(self, about: Object | None, event: KubeEvent | None, events: list[KubeEvent]) -> None:
        """Record an Event about a reverted change at the changed object, and append it to those of the Cluster."""
        if event is not None and about is not None:
            events.append(event)
            await self._kube.record_events(about, [event])

    async def _apply_if_unchanged(
        self, resource: KubeResource, namespace: str, body: Object, memory: ClusterMemory, seen: Object
    ) -> None:
        """Apply only if the object's UID and generation are those of `seen`; a status change does not matter. Raises
        `KubeError` (409) otherwise, and the next reconciliation decides again."""
        try:
            await self._apply(resource, namespace, body, memory, str(seen["metadata"].get("resourceVersion") or ""))
        except KubeError as e:
            there = await self._kube.get(resource, namespace, body["metadata"]["name"]) if e.status == 409 else None
            if there is not None and compare.difference(compared_fields(body), there) is None:
                return  # already applied; the cache is late
            if there is None or identity(there) != identity(seen):
                raise
            await self._apply(resource, namespace, body, memory, str(there["metadata"]["resourceVersion"]))

    async def _apply(
        self, resource: KubeResource, namespace: str, body: Object, memory: ClusterMemory, version: str = ""
    ) -> Object:
        """Apply an object; with `version` only if that is its resource version. Record drift that an apply does not
        fix. Return the object."""
        meta = body["metadata"] | ({"resourceVersion": version} if version else {})
        made = await self._kube.apply(resource, namespace, body | {"metadata": meta})
        place = (resource, body["metadata"]["name"])
        different = compare.difference(compared_fields(body), made)
        if different is None:
            memory.accepted_drift.pop(place, None)
            return made
        # A webhook or another controller changes the object. Accept that until either side changes.
        log.warning(
            "object differs from the applied one; accepting the difference",
            resource=resource.plural,
            name=place[1],
            field=different,
        )
        memory.accepted_drift[place] = drift_digest(body, made)
        return made

    async def _grow(self, namespace: str, action: ExpandClaim, memory: ClusterMemory, now: float) -> None:
        patch = {"spec": {"resources": {"requests": {"storage": action.size}}}}
        try:
            await self._kube.patch(CLAIMS, namespace, action.name, patch)
        except KubeError as e:
            if e.is_passing:
                raise
            memory.refused[action.key] = (now + REFUSED_RETRY_S, str(e))

    async def _send_to_brokers(
        self, cluster: Cluster, action: ChangeBrokers | ReassignPartitions, memory: ClusterMemory
    ) -> str:
        brokers = self._connections.gateway_for(cluster.metadata.namespace, cluster.metadata.name)
        if brokers is None:
            return "the Cluster is not in the cache yet"
        memory.reported = None
        problems: dict[str, BrokersError] = {}
        if isinstance(action, ChangeBrokers):
            for name, error in (await brokers.change_brokers(action.changes)).items():
                if error is not None:
                    problems[f"settings of {f'broker {name}' if name else 'all brokers'}"] = error
        else:
            for (topic, partition), error in (await brokers.reassign(action.targets)).items():
                if error is not None and error.code != "NO_REASSIGNMENT_IN_PROGRESS":
                    memory.planned = None
                    problems[f"moving {topic}-{partition}"] = error
        if not problems:
            return ""
        return summarize([f"{what}: {error}" for what, error in problems.items()])


def summarize(problems: list[str]) -> str:
    """Return the first problem and the number of others, or ""."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return problems[0] + more if problems else ""


def identity(body: Object) -> tuple[object, object]:
    """Return UID and generation: they change when the object is replaced or its spec changes."""
    return body["metadata"].get("uid"), body["metadata"].get("generation")
