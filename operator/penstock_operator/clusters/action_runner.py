"""Carries out what was decided about a cluster. Used by `controller`."""

from __future__ import annotations

from penstock.runtime.logging import get_logger
from penstock_operator.clusters.observer import ClusterMemory
from penstock_operator.engine.ports import ConnectionPool
from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.brokers import BrokersError
from penstock_operator.ports.kube import CLAIMS, PODS, STATEFUL_SETS, Kube, KubeError, KubeEvent, KubeResource, Object
from penstock_operator.reconcile.cluster.actions import (
    Apply,
    ChangeBrokers,
    ClusterAction,
    GrowClaim,
    NoteClaim,
    ReassignPartitions,
    Remove,
    ResizeSet,
    RestartPod,
    Step,
    needs,
    step_of,
)
from penstock_operator.reconcile.cluster.reconcile import settled_digest, wanted_of
from penstock_operator.reconcile.cluster.scale import words
from penstock_operator.specs import cluster_annotations, compare, names

REFUSED_FOR_S = 600.0
"""After which what the API server would not do is tried again."""

log = get_logger("penstock.operator.clusters")


class NotOursError(Exception):
    """An object of a name that the cluster needs is somebody else's."""


class ActionRunner:
    def __init__(self, kube: Kube, connections: ConnectionPool) -> None:
        self._kube, self._connections = kube, connections

    async def act(
        self, cluster: Cluster, actions: tuple[ClusterAction, ...], memory: ClusterMemory, now: float
    ) -> tuple[list[KubeEvent], str]:
        """What people are to be told, and what went wrong. What needs something that went wrong is not begun, and
        nothing is where an object of the cluster's name is somebody else's: brokers are reached by these names."""
        told: list[KubeEvent] = []
        problems: list[str] = []
        failed: set[Step] = set()
        for action in actions:
            if needs(action) & failed:
                continue
            try:
                problem = await self._one(cluster, action, memory, now, told)
            except NotOursError as e:
                return told, str(e)
            except (KubeError, BrokersError) as e:
                problem = str(e)
            if problem:
                problems.append(problem)
                failed.add(step_of(action))
        return told, summed_up(problems)

    async def _one(
        self, cluster: Cluster, action: ClusterAction, memory: ClusterMemory, now: float, told: list[KubeEvent]
    ) -> str:
        namespace = cluster.metadata.namespace
        match action:
            case Apply(resource, body, why, is_new, seen):
                if is_new:
                    body, seen = await self._made_new(cluster, resource, body)
                log.info("applies", resource=resource.plural, name=body["metadata"]["name"], why=why)
                if seen is None:
                    await self._apply(resource, namespace, body, memory)
                else:
                    await self._apply_to(resource, namespace, body, memory, seen)
            case ResizeSet(body, removed, version):
                await self._apply(STATEFUL_SETS, namespace, body, memory, version)
                told.append(KubeEvent("Normal", "BrokersRemoved", f"broker {words(removed)} held nothing and goes"))
            case Remove(resource, name, uid, orphan):
                await self._kube.delete(resource, namespace, name, uid, orphan=orphan)
            case GrowClaim():
                await self._grow(namespace, action, memory, now)
            case NoteClaim(name, members):
                patch = {
                    "metadata": {
                        "annotations": cluster_annotations.written(
                            cluster_annotations.ClusterAnnotations(etcd_members=members)
                        )
                    }
                }
                await self._kube.patch(CLAIMS, namespace, name, patch)
            case RestartPod(name, uid, ordinal):
                if await self._kube.delete(PODS, namespace, name, uid):
                    why = "it was started with something else than what is wanted now"
                    told.append(KubeEvent("Normal", "BrokerRestarted", f"broker {ordinal} is restarted: {why}"))
            case ChangeBrokers() | ReassignPartitions():
                return await self._tell_brokers(cluster, action, memory)
        return ""

    async def _made_new(self, cluster: Cluster, resource: KubeResource, body: Object) -> tuple[Object, Object | None]:
        """What is to be applied where no object was seen, and the one that is there all the same, of a StatefulSet:
        a watch that is late, or a label that was taken away, must not take pods that nobody has emptied. Raises
        `NotOursError`."""
        there = await self._kube.get(resource, cluster.metadata.namespace, body["metadata"]["name"])
        if problem := why_not_ours(cluster, resource, there):
            raise NotOursError(problem)
        if there is None or resource != STATEFUL_SETS:
            return body, None
        replicas = max(int(body["spec"]["replicas"]), int(there.get("spec", {}).get("replicas") or 0))
        return body | {"spec": body["spec"] | {"replicas": replicas}}, there

    async def _apply_to(
        self, resource: KubeResource, namespace: str, body: Object, memory: ClusterMemory, seen: Object
    ) -> None:
        """Only where what was seen is still wanted as it was: its status may have gone on. A request that was decided
        by another, or long ago, is refused (409), for the next look to decide."""
        try:
            await self._apply(resource, namespace, body, memory, str(seen["metadata"].get("resourceVersion") or ""))
        except KubeError as e:
            there = await self._kube.get(resource, namespace, body["metadata"]["name"]) if e.status == 409 else None
            if there is not None and compare.difference(wanted_of(body), there) is None:
                return  # done before, and the copy is late
            if there is None or identity(there) != identity(seen):
                raise
            await self._apply(resource, namespace, body, memory, str(there["metadata"]["resourceVersion"]))

    async def _apply(
        self, resource: KubeResource, namespace: str, body: Object, memory: ClusterMemory, version: str = ""
    ) -> None:
        """With `version` only where the object is still of that."""
        meta = body["metadata"] | ({"resourceVersion": version} if version else {})
        made = await self._kube.apply(resource, namespace, body | {"metadata": meta})
        place = (resource, body["metadata"]["name"])
        different = compare.difference(wanted_of(body), made)
        if different is None:
            memory.settled.pop(place, None)
            return
        # Something in between has changed it: that is left alone until either side changes.
        log.warning("an object is not as it was applied", resource=resource.plural, name=place[1], field=different)
        memory.settled[place] = settled_digest(body, made)

    async def _grow(self, namespace: str, action: GrowClaim, memory: ClusterMemory, now: float) -> None:
        patch = {"spec": {"resources": {"requests": {"storage": action.size}}}}
        try:
            await self._kube.patch(CLAIMS, namespace, action.name, patch)
        except KubeError as e:
            if e.is_passing:
                raise
            memory.refused[action.key] = (now + REFUSED_FOR_S, str(e))

    async def _tell_brokers(
        self, cluster: Cluster, action: ChangeBrokers | ReassignPartitions, memory: ClusterMemory
    ) -> str:
        brokers = self._connections.of(cluster.metadata.namespace, cluster.metadata.name)
        if brokers is None:
            return "the cluster is not known yet"
        memory.said = None
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
        return summed_up([f"{what}: {error}" for what, error in problems.items()])


def summed_up(problems: list[str]) -> str:
    """The first in full, and how many others there are."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return problems[0] + more if problems else ""


def identity(body: Object) -> tuple[object, object]:
    """Another UID is another object, another generation one that is wanted otherwise."""
    return body["metadata"].get("uid"), body["metadata"].get("generation")


def why_not_ours(cluster: Cluster, resource: KubeResource, there: Object | None) -> str:
    """Why an object that is about to be made cannot be: one of the name is there, and is somebody else's."""
    meta = cluster.metadata
    if there is None or there["metadata"].get("labels", {}).get(names.CLUSTER_LABEL) == meta.name:
        return ""
    owners = there["metadata"].get("ownerReferences") or ()
    if any(owner.get("uid") == meta.uid for owner in owners):
        return ""
    whose = next((f", of {owner.get('kind')} {owner.get('name')}" for owner in owners), "")
    return (
        f"{there.get('kind', resource.plural)} {there['metadata']['name']} is there already and is not this"
        f" Cluster's{whose}:"
        " delete it, or make the Cluster under another name"
    )
