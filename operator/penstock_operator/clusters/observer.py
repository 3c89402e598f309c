"""Observes a cluster: Kubernetes objects from the cache, and the state that the brokers report. Used by
`controller`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock_operator.clusters.certificate_observer import CertificateObserver, access_of
from penstock_operator.clusters.route_observer import may_have_routes, observe_routes
from penstock_operator.clusters.store_observer import StoreObserver
from penstock_operator.engine.ports import ConnectionPool, Objects
from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.brokers import BrokerAccess, BrokerGateway, BrokersError, ObservedTopicState
from penstock_operator.ports.kube import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Kube,
    KubeError,
    KubeResource,
    Object,
)
from penstock_operator.reconcile.cluster.moves import PlannedMoves
from penstock_operator.reconcile.cluster.observed import (
    ObservedCertificates,
    ObservedCluster,
    ObservedPod,
    ReportedState,
    creation_error,
    first_missing_pod,
    read_claim,
    read_pod,
    seconds_between,
)
from penstock_operator.reconcile.cluster.observed_nodes import read_node
from penstock_operator.reconcile.cluster.observed_store import ObservedStore
from penstock_operator.reconcile.cluster.partitions import PartitionSummary, summary
from penstock_operator.reconcile.cluster.transition import plan_transition
from penstock_operator.specs import names
from penstock_operator.specs.security import has_certificates

OWNED = (STATEFUL_SETS, SERVICES, CONFIG_MAPS, BUDGETS, NETWORK_POLICIES)
MAX_REPORT_AGE_S = 2.0
"""Maximum age of a reused broker report; pods cause many events at once. Ignored when a pod is about to be stopped."""
MAX_EVENTS_AGE_S = 2.0
"""Pause between two reads of the Events about a pod that is missing."""
MAX_STORE_REPORT_AGE_S = 2.0
"""The same for etcd."""
BROKER_TIMEOUT_S = 20.0
"""Timeout of all broker requests of one observation."""
PROMPT_TIMEOUT_S = 2.0
"""Timeout of these requests while no broker is ready."""
OUTDATED_STATUS_TIMEOUT_S = 4.0
"""Timeout while the status has a broker as ready that is not. Longer, so that one broker that restarts is no reason to
give up brokers that answer slowly."""
LARGE_TOPIC_COUNT = 2000
"""Number of topics above which computations over all topics run in a thread."""


@dataclass(slots=True)
class ClusterMemory:
    """State of one cluster between reconciliations. It is a cache: losing it is safe."""

    planned: PlannedMoves | None = None
    replica_sizes: Mapping[tuple[str, int], int] | None = None
    measured: PlannedMoves | None = None
    """Plan for which `replica_sizes` were queried."""
    failure: str = ""
    refused: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Changes that the API server rejected, by action key: time until which they are not retried, and the error."""
    accepted_drift: dict[tuple[KubeResource, str], str] = field(default_factory=dict)
    reported: ReportedState | None = None
    reported_at: float = 0.0
    min_insync: Mapping[str, int] = field(default_factory=dict)
    """By topic, from the last fresh observation; used for status messages."""
    store: ObservedStore | None = None
    store_at: float = 0.0
    seen_ready: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Pods whose `ready_since` is in the future, by UID: that time, and when it was first observed."""
    missing_pod: tuple[str, float, str] = ("", 0.0, "")
    """Name of the pod that was missing, when its Events were read, and what they say."""
    brokers_error: str = ""
    """The first error since brokers last answered. Later errors do not replace it: each new message would be a status
    write, whose event triggers the next reconciliation."""


class ClusterObserver:
    """Builds `ObservedCluster` from the cache, the API server and the brokers."""

    def __init__(
        self,
        kube: Kube,
        objects: Objects,
        connections: ConnectionPool,
        certificates: CertificateObserver,
        store: StoreObserver,
    ) -> None:
        self._kube, self._objects, self._connections = kube, objects, connections
        self._certificates, self._store = certificates, store

    async def observe(
        self, cluster: Cluster, memory: ClusterMemory, wall: str, now: float, *, fresh: bool = False
    ) -> ObservedCluster:
        """Observe a cluster. `wall` is RFC 3339, `now` monotonic seconds. With `fresh`, pods, StatefulSet, ConfigMap
        and broker reports are current instead of cached. Raises `KubeError`, only with `fresh`."""
        namespace, name = cluster.metadata.namespace, cluster.metadata.name
        if fresh:
            listed = await self._kube.list(PODS, namespace, {names.CLUSTER_LABEL: name})
            pods = self._pods(name, listed, memory, wall)
        else:
            pods = self._cached_pods(cluster, memory, wall)
        live = {
            (resource, body["metadata"]["name"]): body
            for resource in OWNED
            for body in self._objects.in_cluster(resource, namespace, name)
            if resource == SERVICES or body["metadata"]["name"] == names.stateful_set(name)  # users can set labels, too
        }
        if fresh:
            stateful_set = await self._kube.get(STATEFUL_SETS, namespace, names.stateful_set(name))
            live.pop((STATEFUL_SETS, names.stateful_set(name)), None)
            if stateful_set is not None:
                live[STATEFUL_SETS, names.stateful_set(name)] = stateful_set
            config_map = await self._kube.get(CONFIG_MAPS, namespace, names.config_map(name))
            if config_map is not None and (CONFIG_MAPS, names.config_map(name)) in live:
                live[CONFIG_MAPS, names.config_map(name)] = config_map
        claims = [read_claim(name, body) for body in self._objects.in_cluster(CLAIMS, namespace, name)]
        certificates, unreadable = None, ""
        try:
            certificates = await self._observe_certificates(cluster, pods, wall)
            if certificates is not None:
                live |= await self._certificates.certificate_request(cluster)
        except KubeError as e:
            certificates, unreadable = None, f"cannot read Secrets: {e}"
        routes_error = ""
        if may_have_routes(cluster, live.get((CONFIG_MAPS, names.config_map(name)))):
            routes, routes_error = await observe_routes(self._kube, cluster)
            live |= routes
        (reported, error), store = await asyncio.gather(
            self._query_brokers(cluster, memory, pods, now, fresh), self._observe_store(cluster, memory, now, fresh)
        )
        if not fresh:  # the query may have taken long
            pods = self._cached_pods(cluster, memory, wall)
        memory.refused = {key: entry for key, entry in memory.refused.items() if entry[0] > now}
        return ObservedCluster(
            now=wall,
            live=live,
            pods=pods,
            missing_pod=await self._why_a_pod_is_missing(cluster, memory, live, pods, now),
            claims=tuple(sorted((c for c in claims if c is not None), key=lambda claim: claim.name)),
            zones=self._zones(cluster),
            nodes=tuple(map(read_node, self._nodes())) if self._objects.is_listed(NODES) else None,
            store=store,
            reported=reported,
            replica_sizes=await self._measure(cluster, memory) if reported is not None else None,
            brokers_error=error,
            failure=memory.failure,
            refused={key: why for key, (_, why) in memory.refused.items()},
            accepted_drift=memory.accepted_drift,
            certificates=certificates,
            certificates_error=unreadable,
            routes_error=routes_error,
        )

    async def _why_a_pod_is_missing(
        self,
        cluster: Cluster,
        memory: ClusterMemory,
        live: Mapping[tuple[KubeResource, str], Object],
        pods: Sequence[ObservedPod],
        now: float,
    ) -> str:
        """Return why Kubernetes does not create a pod, which only Events about the StatefulSet say."""
        namespace, name = place_of(cluster)
        stateful_set = live.get((STATEFUL_SETS, names.stateful_set(name)))
        missing = first_missing_pod(name, stateful_set, pods)
        if not missing or stateful_set is None:
            return ""
        known, read_at, why = memory.missing_pod
        if known != missing or now - read_at >= MAX_EVENTS_AGE_S:
            try:
                why = creation_error(missing, await self._kube.events(namespace, stateful_set["metadata"]["uid"]))
            except KubeError:  # Not permitted by the Role of an earlier chart, for example: the pod counts as coming.
                why = ""
            memory.missing_pod = (missing, now, why)
        return why

    async def _observe_store(
        self, cluster: Cluster, memory: ClusterMemory, now: float, fresh: bool
    ) -> ObservedStore | None:
        """Return the state of the etcd. A recent report is used again, with the current pods. Raises `KubeError`, only
        with `fresh`."""
        if fresh or memory.store is None or now - memory.store_at >= MAX_STORE_REPORT_AGE_S:
            memory.store, memory.store_at = await self._store.observe(cluster, before=memory.store, fresh=fresh), now
        return self._store.refresh(cluster, memory.store) if memory.store is not None and not fresh else memory.store

    async def _observe_certificates(
        self, cluster: Cluster, pods: Sequence[ObservedPod], wall: str
    ) -> ObservedCertificates | None:
        """Return the certificates, and set how the operator connects to the brokers. Raises `KubeError`."""
        transition = plan_transition(cluster, pods)
        if not has_certificates(cluster, transition):
            self._connections.set_access(*place_of(cluster), BrokerAccess(cluster.spec.port))
            return None
        found = await self._certificates.observe(cluster, pods, wall)
        access = access_of(cluster, transition, found)
        if access is not None:
            self._connections.set_access(*place_of(cluster), access)
        return found

    def _cached_pods(self, cluster: Cluster, memory: ClusterMemory, wall: str) -> tuple[ObservedPod, ...]:
        namespace, name = place_of(cluster)
        return self._pods(name, self._objects.in_cluster(PODS, namespace, name), memory, wall)

    def _ready_brokers(self, cluster: Cluster) -> set[int]:
        bodies = self._objects.in_cluster(PODS, *place_of(cluster))
        pods = [pod for body in bodies if (pod := read_pod(cluster.metadata.name, body)) is not None]
        return {pod.ordinal for pod in pods if pod.is_ready}

    def _pods(self, name: str, found: Sequence[Object], memory: ClusterMemory, wall: str) -> tuple[ObservedPod, ...]:
        pods = [pod for body in found if (pod := read_pod(name, body)) is not None]
        return tuple(sorted(clamp_ready_since(pods, memory, wall), key=lambda pod: pod.ordinal))

    def _zones(self, cluster: Cluster) -> Mapping[str, str] | None:
        if not self._objects.is_listed(NODES):
            return None
        label = cluster.spec.zone_label
        zones = {body["metadata"]["name"]: body["metadata"].get("labels", {}).get(label) for body in self._nodes()}
        return {node: zone for node, zone in zones.items() if zone}

    def _nodes(self) -> Sequence[Object]:
        return self._objects.list_objects(NODES)

    async def _query_brokers(
        self, cluster: Cluster, memory: ClusterMemory, pods: Sequence[ObservedPod], now: float, fresh: bool
    ) -> tuple[ReportedState | None, str]:
        """Return what the brokers report, or None and the error."""
        if not any(pod.is_running for pod in pods):
            memory.reported, memory.brokers_error = None, ""
            return None, "no broker is running"
        if memory.reported is not None and not fresh and now - memory.reported_at < MAX_REPORT_AGE_S:
            return memory.reported, ""
        memory.reported = None
        brokers = self._connections.gateway_for(cluster.metadata.namespace, cluster.metadata.name)
        if brokers is None:
            return None, "the Cluster is not in the cache yet"
        try:
            if not fresh:
                memory.reported = await self._query_promptly(cluster, brokers, memory)
            else:
                async with asyncio.timeout(BROKER_TIMEOUT_S):
                    memory.reported, memory.min_insync = await fetch_state_with_min_insync(brokers)
        except BrokersError as e:
            memory.brokers_error = memory.brokers_error or str(e)
        except TimeoutError:
            memory.brokers_error = memory.brokers_error or "no answer in time"
        else:
            memory.reported_at, memory.brokers_error = now, ""
        return memory.reported, memory.brokers_error

    async def _measure(self, cluster: Cluster, memory: ClusterMemory) -> Mapping[tuple[str, int], int] | None:
        """Return the sizes of replicas if a plan waits for an approval, from one query per plan."""
        if cluster.status.rebalance is None or memory.planned is None:
            return None
        brokers = self._connections.gateway_for(cluster.metadata.namespace, cluster.metadata.name)
        if memory.measured is not memory.planned and brokers is not None:
            try:
                async with asyncio.timeout(BROKER_TIMEOUT_S):
                    memory.replica_sizes = await brokers.replica_sizes()
            except (BrokersError, TimeoutError):
                return None
            memory.measured = memory.planned
        return memory.replica_sizes

    async def _query_promptly(self, cluster: Cluster, brokers: BrokerGateway, memory: ClusterMemory) -> ReportedState:
        """Return what the brokers report. Gives up early while no broker is ready, or the status has one as ready that
        is not, because the status of the pods must not wait for brokers that are down. A ready one may be on a node
        that Kubernetes does not know to be away. Raises `BrokersError`, TimeoutError."""
        written = {broker.id for broker in cluster.status.brokers if broker.state == "Ready"}
        waited_s = 0.0
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            query = asyncio.ensure_future(fetch_reported_state(brokers, memory.min_insync))
            try:
                while not (await asyncio.wait({query}, timeout=PROMPT_TIMEOUT_S))[0]:
                    waited_s += PROMPT_TIMEOUT_S
                    ready = self._ready_brokers(cluster)
                    if not ready or (waited_s >= OUTDATED_STATUS_TIMEOUT_S and written - ready):
                        raise TimeoutError
                return await query
            finally:
                query.cancel()


def place_of(cluster: Cluster) -> tuple[str, str]:
    """Return namespace and name."""
    return cluster.metadata.namespace, cluster.metadata.name


def clamp_ready_since(pods: Sequence[ObservedPod], memory: ClusterMemory, wall: str) -> list[ObservedPod]:
    """Return pods with `ready_since` limited to the time at which the operator first observed it, because the API
    server's clock may be ahead of the operator's."""
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
    """Whether the RFC 3339 time `one` is after `than`; False if either is invalid."""
    since = seconds_between(one, than)
    return since is not None and since < 0


async def fetch_state_with_min_insync(brokers: BrokerGateway) -> tuple[ReportedState, Mapping[str, int]]:
    """Return the reported state and min.insync.replicas of all topics (one request per 500 topics). If that query
    fails, the state lists the topics as unknown; other decisions do not depend on it. Raises `BrokersError`."""
    reported, min_insync, why = await fetch_reported_state(brokers, {}), dict[str, int](), ""
    try:
        min_insync = await brokers.min_insync(reported.topics.keys())
    except BrokersError as e:
        why = str(e)
    unknown_min_insync = tuple(sorted(reported.topics.keys() - min_insync.keys()))
    partitions = await summarize_partitions(reported.topics, min_insync)
    return replace(
        reported, partitions=partitions, unknown_min_insync=unknown_min_insync, unknown_min_insync_reason=why
    ), min_insync


async def fetch_reported_state(brokers: BrokerGateway, min_insync: Mapping[str, int]) -> ReportedState:
    """Return the reported state with three requests, plus one per broker. Raises `BrokersError`."""
    snapshot = await brokers.describe_cluster()
    settings = await brokers.broker_settings([broker.broker_id for broker in snapshot.brokers])
    topics = await brokers.topics(settings=False)
    return ReportedState(snapshot, settings, topics, await summarize_partitions(topics, min_insync))


async def summarize_partitions(
    topics: Mapping[str, ObservedTopicState], min_insync: Mapping[str, int]
) -> PartitionSummary:
    """Summarize all partitions, in a thread if there are many topics."""
    if len(topics) > LARGE_TOPIC_COUNT:
        return await asyncio.to_thread(summary, topics, min_insync)
    return summary(topics, min_insync)
