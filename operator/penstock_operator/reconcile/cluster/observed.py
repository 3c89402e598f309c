"""Observed state of a cluster, the input of `reconcile.cluster`. Built by `clusters.observer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock_operator.ports.brokers import BrokerSnapshot, ObservedTopicState
from penstock_operator.ports.kube import CONFIG_MAPS, STATEFUL_SETS, KubeResource, Object
from penstock_operator.reconcile.cluster.observed_nodes import NodeRequirements, ObservedNode, read_requirements
from penstock_operator.reconcile.cluster.observed_store import ObservedStore
from penstock_operator.reconcile.cluster.partitions import PartitionSummary
from penstock_operator.specs import cluster_annotations, names
from penstock_operator.specs.listeners import PLAINTEXT

ETCD_CONTAINER, BROKER_CONTAINER = "etcd", "broker"


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """One broker's pod."""

    ordinal: int
    name: str
    uid: str
    restart: str | None
    """Hash of the configuration with which the pod was started."""
    restarted_at: str = ""
    """Annotation of `kubectl rollout restart` with which the pod was started."""
    is_ready: bool = False
    ready_since: str = ""
    is_terminating: bool = False
    is_running: bool = False
    """Whether the broker container is running."""
    is_etcd_ready: bool = False
    node: str | None = None
    problem: str = ""
    """Why the pod does not run, as Kubernetes reports it."""
    host_ip: str = ""
    """IP address of the node."""
    listeners: frozenset[str] = frozenset({PLAINTEXT})
    """Names of the broker's listeners; of a pod without the annotation, only those that other brokers can use."""
    inter_broker: str = PLAINTEXT
    """Listener by which the broker connects to others."""
    requirements: NodeRequirements = field(default_factory=NodeRequirements)
    ports: frozenset[int] = frozenset()
    """Ports of the broker container."""


@dataclass(frozen=True, slots=True)
class ObservedClaim:
    """A PersistentVolumeClaim of a broker or of its etcd member."""

    name: str
    template: str
    ordinal: int
    phase: str
    requested: str
    capacity: str = ""
    is_terminating: bool = False
    members: int = 0
    """Number of etcd members recorded in the claim's annotation; 0: not recorded."""


@dataclass(frozen=True, slots=True)
class ReportedState:
    """State that the brokers report, from one observation."""

    snapshot: BrokerSnapshot
    settings: Mapping[int, Mapping[str, str]]
    topics: Mapping[str, ObservedTopicState]
    partitions: PartitionSummary
    unknown_min_insync: tuple[str, ...] = ()
    """Topics whose min.insync.replicas was queried without an answer."""
    unknown_min_insync_reason: str = ""


@dataclass(frozen=True, slots=True)
class TlsProbe:
    """Result of a TLS handshake with one broker."""

    presented: str = ""
    """Fingerprint of the broker's certificate."""
    accepted: frozenset[str] = frozenset()
    """Fingerprints of the CAs whose client certificate the broker accepted."""


@dataclass(frozen=True, slots=True)
class ObservedCertificates:
    """Secrets with certificates, and what brokers present. None: the Secret does not exist."""

    authority_key: Object | None = field(default=None, repr=False)
    authority: Object | None = None
    issued: Mapping[str, Object] = field(default_factory=dict, repr=False)
    """Secrets of the certificates that the operator issues, by name."""
    client: Object | None = field(default=None, repr=False)
    """Secret with the certificate of client listeners, with `source: secret`."""
    client_ca: Object | None = None
    etcd: Object | None = field(default=None, repr=False)
    """Secret of `etcd.certificate`."""
    probes: Mapping[int, TlsProbe] = field(default_factory=dict)
    """By broker; empty if no probe was needed."""


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """Observed state of a cluster."""

    now: str
    """RFC 3339, in UTC."""
    live: Mapping[tuple[KubeResource, str], Object] = field(default_factory=dict)
    """Owned objects by resource and name."""
    pods: tuple[ObservedPod, ...] = ()
    missing_pod: str = ""
    """Why Kubernetes does not create the first pod that is missing, such as a full quota; empty if it does, or if none
    is missing."""
    claims: tuple[ObservedClaim, ...] = ()
    zones: Mapping[str, str] | None = None
    """Zone by node; None if the operator cannot read nodes."""
    nodes: tuple[ObservedNode, ...] | None = None
    """None if the operator cannot read nodes."""
    store: ObservedStore | None = None
    """None if the operator does not observe the etcd."""
    reported: ReportedState | None = None
    replica_sizes: Mapping[tuple[str, int], int] | None = None
    """Bytes of one replica by partition; None: not queried, because no plan of moves waits for an approval."""
    brokers_error: str = ""
    """Why `reported` is None."""
    failure: str = ""
    """Error of the last execution."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Recent rejections by the API server, by `ExpandClaim.key`."""
    accepted_drift: Mapping[tuple[KubeResource, str], str] = field(default_factory=dict)
    """Objects that differ from the applied ones right after the apply, with the hash of both; they are not applied
    again."""
    certificates: ObservedCertificates | None = None
    """None if the cluster has no certificates."""
    certificates_error: str = ""
    """Why the Secrets were not read."""
    routes_error: str = ""
    """Why the TLSRoutes were not read."""

    @property
    def stateful_set(self) -> Object | None:
        """The StatefulSet of the brokers."""
        return next((body for (resource, _), body in self.live.items() if resource == STATEFUL_SETS), None)

    @property
    def config_map(self) -> Object | None:
        """The ConfigMap of the brokers."""
        return next((body for (resource, _), body in self.live.items() if resource == CONFIG_MAPS), None)

    @property
    def by_ordinal(self) -> dict[int, ObservedPod]:
        """Pods by ordinal."""
        return {pod.ordinal: pod for pod in self.pods}


def read_pod(cluster: str, body: Object) -> ObservedPod | None:
    """Return the state of a broker's pod; None for other pods."""
    meta, status, spec = body["metadata"], body.get("status") or {}, body.get("spec") or {}
    ordinal = names.ordinal_of(cluster, meta["name"])
    if ordinal is None:
        return None
    containers = {c.get("name"): c for c in status.get("containerStatuses") or ()}
    beside = {c.get("name"): c for c in status.get("initContainerStatuses") or ()}
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    broker = containers.get(BROKER_CONTAINER, {})
    running = (broker.get("state") or {}).get("running")
    annotations = meta.get("annotations") or {}
    listeners = str(annotations.get(names.LISTENERS) or PLAINTEXT)
    return ObservedPod(
        ordinal=ordinal,
        name=meta["name"],
        uid=meta.get("uid", ""),
        restart=annotations.get(names.RESTART),
        restarted_at=str(annotations.get(names.RESTARTED_AT) or ""),
        is_ready=ready.get("status") == "True",
        ready_since=ready.get("lastTransitionTime") or "",
        is_terminating=meta.get("deletionTimestamp") is not None,
        is_running=running is not None,
        is_etcd_ready=bool(beside.get(ETCD_CONTAINER, {}).get("ready")),
        node=spec.get("nodeName"),
        problem=_problem(status, [*beside.values(), *containers.values()]),
        host_ip=str(status.get("hostIP") or ""),
        listeners=frozenset(listeners.split(",")),
        inter_broker=str(annotations.get(names.INTER_BROKER) or PLAINTEXT),
        requirements=read_requirements(spec),
        ports=ports_of(spec),
    )


def ports_of(pod_spec: Mapping[str, Any]) -> frozenset[int]:
    """Return the ports of the broker container."""
    containers = [each for each in pod_spec.get("containers") or () if each.get("name") == BROKER_CONTAINER]
    return frozenset(int(port["containerPort"]) for each in containers for port in each.get("ports") or ())


def _problem(status: Mapping[str, Any], containers: list[Mapping[str, Any]]) -> str:
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            last = ((container.get("lastState") or {}).get("terminated") or {}).get("exitCode")
            code = f", last exit code {last}" if last is not None else ""
            return f"container {container.get('name')}: {waiting['reason']}{code}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"not scheduled: {str(condition.get('message') or condition.get('reason'))[:300]}"
    return ""


def read_claim(cluster: str, body: Object) -> ObservedClaim | None:
    """Return the state of a broker's claim; None for other claims."""
    meta, status = body["metadata"], body.get("status") or {}
    template, _, pod_name = meta["name"].partition("-")
    ordinal = names.ordinal_of(cluster, pod_name)
    if ordinal is None or template not in (names.DATA_CLAIM, names.ETCD_CLAIM):
        return None
    return ObservedClaim(
        name=meta["name"],
        template=template,
        ordinal=ordinal,
        phase=status.get("phase", "Pending"),
        requested=storage_of(body.get("spec") or {}) or "0",
        capacity=(status.get("capacity") or {}).get("storage", ""),
        is_terminating=meta.get("deletionTimestamp") is not None,
        members=cluster_annotations.read(meta.get("annotations") or {}).etcd_members,
    )


def storage_of(claim_spec: Mapping[str, Any]) -> str | None:
    """Return the storage request of a claim or claim template."""
    found = ((claim_spec.get("resources") or {}).get("requests") or {}).get("storage")
    return None if found is None else str(found)


def seconds_between(earlier: str, later: str) -> float | None:
    """Return the difference of two RFC 3339 times in seconds; None if one is invalid."""
    try:
        return (parse_time(later) - parse_time(earlier)).total_seconds()
    except ValueError:
        return None


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time. Raises ValueError."""
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError(f'"{text}" has no time zone')
    return found


def first_missing_pod(cluster_name: str, stateful_set: Object | None, pods: Sequence[ObservedPod]) -> str:
    """Return the name of the first pod that the StatefulSet should have and does not, or ""."""
    replicas = int(((stateful_set or {}).get("spec") or {}).get("replicas") or 0)
    ordinals = {pod.ordinal for pod in pods}
    missing = next((ordinal for ordinal in range(replicas) if ordinal not in ordinals), None)
    return "" if missing is None else names.pod(cluster_name, missing)


def creation_error(pod: str, events: Sequence[Object]) -> str:
    """Return why a pod cannot be created, from the Events about its StatefulSet; "" if the last attempt succeeded."""
    attempts = [
        event
        for event in events
        if event.get("reason") in ("FailedCreate", "SuccessfulCreate")
        and f"Pod {pod} " in str(event.get("message") or "")
    ]
    newest = max(attempts, key=lambda event: str(event.get("lastTimestamp") or ""), default={})
    if newest.get("reason") != "FailedCreate":
        return ""
    text = str(newest["message"])
    return text.partition("failed error: ")[2] or text
