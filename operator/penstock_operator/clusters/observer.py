"""Looks at a cluster: what Kubernetes holds, from the copies, and what brokers say. Used by `controller`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock_operator.engine.ports import ConnectionPool, Objects
from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ObservedTopicState
from penstock_operator.ports.kube import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    NODES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Kube,
    KubeResource,
    Object,
)
from penstock_operator.reconcile.cluster.moves import PlannedMoves
from penstock_operator.reconcile.cluster.observed import (
    ObservedCluster,
    ObservedPod,
    ReportedState,
    read_claim,
    read_pod,
    seconds_between,
)
from penstock_operator.reconcile.cluster.partitions import PartitionReconciler, summary
from penstock_operator.specs import names

OWNED = (STATEFUL_SETS, SERVICES, CONFIG_MAPS, BUDGETS)
FRESH_S = 2.0
"""For which what brokers said is good enough, unless something depends on it: pods bring many events at once."""
PATIENCE_S = 20.0
"""With brokers, for one look."""
LARGE = 2000
"""Topics from which on work on all of them is done in a thread."""


@dataclass(slots=True)
class ClusterMemory:
    """Of one cluster between looks. All of it may be lost at any time."""

    planned: PlannedMoves | None = None
    failure: str = ""
    refused: dict[str, tuple[float, str]] = field(default_factory=dict)
    """What the API server would not do: until when it is not tried again, and why."""
    settled: dict[tuple[KubeResource, str], str] = field(default_factory=dict)
    said: ReportedState | None = None
    said_at: float = 0.0
    min_insync: Mapping[str, int] = field(default_factory=dict)
    """By topic, as of the last look at which something depended on it: enough to go on telling of it."""
    seen_ready: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By UID, of pods that are ready since a time to come: since when, and when that was seen first."""
    brokers_error: str = ""
    """Why brokers say nothing, in the words of the first try since they last did: other words for it are no news, and
    each would be a status, whose echo is the next look."""


class ClusterObserver:
    """`now` counts seconds and does not leap."""

    def __init__(self, kube: Kube, objects: Objects, connections: ConnectionPool) -> None:
        self._kube, self._objects, self._connections = kube, objects, connections

    async def look(
        self, cluster: Cluster, memory: ClusterMemory, wall: str, now: float, *, fresh: bool = False
    ) -> ObservedCluster:
        """With `fresh` nothing on which a pod's end depends comes from a copy. Raises `KubeError` then only."""
        namespace, name = cluster.metadata.namespace, cluster.metadata.name
        if fresh:
            found: Sequence[Object] = await self._kube.list(PODS, namespace, {names.CLUSTER_LABEL: name})
        else:
            found = self._objects.in_cluster(PODS, namespace, name)
        pods = tuple(sorted(clamped(self._pods(name, found), memory, wall), key=lambda pod: pod.ordinal))
        live = {
            (resource, body["metadata"]["name"]): body
            for resource in OWNED
            for body in self._objects.in_cluster(resource, namespace, name)
            if resource == SERVICES or body["metadata"]["name"] == names.stateful_set(name)  # labels are anybody's
        }
        if fresh:
            stateful_set = await self._kube.get(STATEFUL_SETS, namespace, names.stateful_set(name))
            live.pop((STATEFUL_SETS, names.stateful_set(name)), None)
            if stateful_set is not None:
                live[STATEFUL_SETS, names.stateful_set(name)] = stateful_set
        claims = [read_claim(name, body) for body in self._objects.in_cluster(CLAIMS, namespace, name)]
        said, error = await self._ask(cluster, memory, pods, now, fresh)
        memory.refused = {key: entry for key, entry in memory.refused.items() if entry[0] > now}
        return ObservedCluster(
            now=wall,
            live=live,
            pods=pods,
            claims=tuple(sorted((c for c in claims if c is not None), key=lambda claim: claim.name)),
            zones=self._zones(cluster),
            said=said,
            brokers_error=error,
            failure=memory.failure,
            refused={key: why for key, (_, why) in memory.refused.items()},
            settled=memory.settled,
        )

    def _pods(self, name: str, found: Sequence[Object]) -> list[ObservedPod]:
        return [pod for body in found if (pod := read_pod(name, body)) is not None]

    def _zones(self, cluster: Cluster) -> Mapping[str, str] | None:
        if not self._objects.is_listed(NODES):
            return None
        label = cluster.spec.zone_label
        zones = {body["metadata"]["name"]: body["metadata"].get("labels", {}).get(label) for body in self._nodes()}
        return {node: zone for node, zone in zones.items() if zone}

    def _nodes(self) -> Sequence[Object]:
        return self._objects.of(NODES)

    async def _ask(
        self, cluster: Cluster, memory: ClusterMemory, pods: Sequence[ObservedPod], now: float, fresh: bool
    ) -> tuple[ReportedState | None, str]:
        """What brokers say, or why they say nothing."""
        if not any(pod.is_running for pod in pods):
            memory.said, memory.brokers_error = None, ""
            return None, "none of them runs"
        if memory.said is not None and not fresh and now - memory.said_at < FRESH_S:
            return memory.said, ""
        memory.said = None
        brokers = self._connections.of(cluster.metadata.namespace, cluster.metadata.name)
        if brokers is None:
            return None, "the cluster is not known yet"
        try:
            async with asyncio.timeout(PATIENCE_S):
                if not fresh:
                    memory.said = await said_by(brokers, memory.min_insync)
                else:
                    memory.said, memory.min_insync = await surely_said_by(brokers)
        except BrokersError as e:
            memory.brokers_error = memory.brokers_error or str(e)
        except TimeoutError:
            memory.brokers_error = memory.brokers_error or f"no answer for {PATIENCE_S:.0f} s"
        else:
            memory.said_at, memory.brokers_error = now, ""
        return memory.said, memory.brokers_error


def clamped(pods: Sequence[ObservedPod], memory: ClusterMemory, wall: str) -> list[ObservedPod]:
    """Pods whose `ready_since` is not later than when they were first seen so: the API server's clock may be ahead of
    this one, by longer than anybody wants to wait."""
    seen: dict[str, tuple[str, str]] = {}
    for pod in pods:
        known = memory.seen_ready.get(pod.uid)
        if known is not None and known[0] == pod.ready_since:
            seen[pod.uid] = known
        elif is_later(pod.ready_since, wall):
            seen[pod.uid] = (pod.ready_since, wall)
    memory.seen_ready = seen
    return [replace(pod, ready_since=seen[pod.uid][1]) if pod.uid in seen else pod for pod in pods]


def is_later(one: str, than: str) -> bool:
    since = seconds_between(one, than)
    return since is not None and since < 0


async def surely_said_by(brokers: BrokerGateway) -> tuple[ReportedState, Mapping[str, int]]:
    """As `said_by`, with min.insync.replicas of all topics, which is a request for every few hundred of them. Where
    that is not told, the rest is as good as before: not everything depends on it."""
    said, min_insync, why = await said_by(brokers, {}), dict[str, int](), ""
    try:
        min_insync = await brokers.min_insync(said.topics.keys())
    except BrokersError as e:
        why = str(e)
    unsure = tuple(sorted(said.topics.keys() - min_insync.keys()))
    partitions = await summed(said.topics, min_insync)
    return replace(said, partitions=partitions, unsure=unsure, unsure_why=why), min_insync


async def said_by(brokers: BrokerGateway, min_insync: Mapping[str, int]) -> ReportedState:
    """Three requests, and one to each broker. Raises `BrokersError`."""
    picture = await brokers.picture()
    settings = await brokers.broker_settings([broker.broker_id for broker in picture.brokers])
    topics = await brokers.topics(settings=False)
    return ReportedState(picture, settings, topics, await summed(topics, min_insync))


async def summed(topics: Mapping[str, ObservedTopicState], min_insync: Mapping[str, int]) -> PartitionReconciler:
    if len(topics) > LARGE:
        return await asyncio.to_thread(summary, topics, min_insync)
    return summary(topics, min_insync)
