"""Observed state of a cluster's etcd. Part of `ObservedCluster`, built by `clusters.store_observer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock_operator.ports.kube import Object
from penstock_operator.ports.state_store import StateStoreReport
from penstock_operator.reconcile.cluster.observed_nodes import NodeRequirements, read_requirements
from penstock_operator.specs import companion, snapshots

ETCD_CONTAINER = "etcd"
DATA_VOLUME = "data"


@dataclass(frozen=True, slots=True)
class ObservedStorePod:
    """The pod of one member of the companion etcd."""

    ordinal: int
    name: str
    uid: str
    is_ready: bool = False
    ready_since: str = ""
    is_terminating: bool = False
    has_no_data: bool = False
    """Whether etcd refused to start because its volume is empty: see `specs.companion`."""
    node: str | None = None
    problem: str = ""
    """Why the pod does not run, as Kubernetes reports it."""
    requirements: NodeRequirements = field(default_factory=NodeRequirements)
    claim: str = ""
    """Name of the claim of its data volume."""


@dataclass(frozen=True, slots=True)
class ObservedStoreClaim:
    """The claim of a member's volume."""

    name: str
    pod_uid: str
    requested: str
    capacity: str = ""
    is_terminating: bool = False


@dataclass(frozen=True, slots=True)
class ObservedTaskPod:
    """A pod that takes or restores a snapshot."""

    name: str
    uid: str
    started_at: str = ""
    has_ended: bool = False
    ended_at: str = ""
    """Time at which its container ended; empty if Kubernetes does not report it, as after an eviction."""
    is_done: bool = False
    """Whether it ended without an error."""
    is_running: bool = False
    is_terminating: bool = False
    message: str = ""
    """Result of the last container that ended, or why the pod does not run."""


@dataclass(frozen=True, slots=True)
class ObservedStore:
    """State of the etcd. `report` None: it was not observed, because of `error`."""

    report: StateStoreReport | None
    error: str = ""
    pods: tuple[ObservedStorePod, ...] = ()
    """Pods of the companion etcd."""
    bootstrap: Object | None = None
    """ConfigMap with which members without data start."""
    replicas: int | None = None
    """Replicas of the companion etcd's StatefulSet; None: not observed, because only hibernation, a restore and a
    change of the number of members need it."""
    next_claim: str = ""
    """Claim that exists for the pod that the StatefulSet would add, if `replicas` is observed."""
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    """Pod spec in the template of that StatefulSet, if `replicas` is observed."""
    claims: tuple[ObservedStoreClaim, ...] = ()
    """Claims of the members' volumes; empty without `etcd.storage`."""
    tasks: tuple[ObservedTaskPod, ...] = ()
    """Pods that take or restore snapshots."""

    def task(self, name: str) -> ObservedTaskPod | None:
        """Return the pod of that name."""
        return next((pod for pod in self.tasks if pod.name == name), None)


def read_store_pod(stateful_set: str, body: Object) -> ObservedStorePod | None:
    """Return the state of a member's pod; None for other pods."""
    meta, status, spec = body["metadata"], body.get("status") or {}, body.get("spec") or {}
    ordinal = companion.ordinal_of(stateful_set, meta["name"])
    owners = meta.get("ownerReferences") or ()
    if ordinal is None or not any(o.get("kind") == "StatefulSet" and o.get("name") == stateful_set for o in owners):
        return None
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    container: Mapping[str, Any] = next(
        (c for c in status.get("containerStatuses") or () if c.get("name") == ETCD_CONTAINER), {}
    )
    return ObservedStorePod(
        ordinal=ordinal,
        name=meta["name"],
        uid=meta.get("uid", ""),
        is_ready=ready.get("status") == "True",
        ready_since=ready.get("lastTransitionTime") or "",
        is_terminating=meta.get("deletionTimestamp") is not None,
        has_no_data=has_no_data(container),
        node=spec.get("nodeName"),
        problem=problem_of(status, container),
        requirements=read_requirements(spec),
        claim=claim_of(spec),
    )


def claim_of(pod_spec: Mapping[str, Any]) -> str:
    """Return the name of the claim of a member's data volume, or ""."""
    volumes = (v.get("persistentVolumeClaim") for v in pod_spec.get("volumes") or () if v.get("name") == DATA_VOLUME)
    return next((str(claim["claimName"]) for claim in volumes if claim), "")


def read_store_claim(pod_uid: str, body: Object) -> ObservedStoreClaim:
    """Return the state of the claim of a member's volume."""
    requests = ((body.get("spec") or {}).get("resources") or {}).get("requests") or {}
    capacity = (body.get("status") or {}).get("capacity") or {}
    return ObservedStoreClaim(
        name=body["metadata"]["name"],
        pod_uid=pod_uid,
        requested=str(requests.get("storage") or "0"),
        capacity=str(capacity.get("storage") or ""),
        is_terminating=body["metadata"].get("deletionTimestamp") is not None,
    )


def has_no_data(container: Mapping[str, Any]) -> bool:
    """Whether the last start of the etcd container ended because the volume is empty."""
    state = container.get("state") or {}
    if state.get("running") is not None:
        return False
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
    return companion.NO_DATA in str(ended.get("message") or "")


def problem_of(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """Return why a member's pod does not run, or ""."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
        return str(waiting["reason"])
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"not scheduled: {str(condition.get('message') or condition.get('reason'))[:300]}"
    return ""


def read_task_pod(cluster_uid: str, body: Object) -> ObservedTaskPod | None:
    """Return the state of a pod that takes or restores snapshots of the Cluster; None for other pods."""
    meta, status = body["metadata"], body.get("status") or {}
    if (meta.get("labels") or {}).get("app.kubernetes.io/component") != snapshots.COMPONENT:
        return None
    if not any(owner.get("uid") == cluster_uid for owner in meta.get("ownerReferences") or ()):
        return None
    phase = status.get("phase")
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    ends = [end for c in containers if (end := (c.get("state") or {}).get("terminated"))]
    failed = [end for end in ends if end.get("exitCode") != 0]
    last: Mapping[str, Any] = next(iter(failed or ends[-1:]), {})
    has_ended = phase in ("Succeeded", "Failed")
    waiting = next((p for c in containers if (p := problem_of(status, c))), "") or problem_of(status, {})
    message = str(last.get("message") or "") if has_ended and last else ""
    if phase == "Failed" and not message:
        message = str(status.get("message") or status.get("reason") or last.get("reason") or "it failed")
    return ObservedTaskPod(
        name=meta["name"],
        uid=meta.get("uid", ""),
        started_at=str((meta.get("annotations") or {}).get(snapshots.STARTED_AT) or ""),
        has_ended=has_ended,
        ended_at=str(last.get("finishedAt") or "") if has_ended else "",
        is_done=phase == "Succeeded",
        is_running=phase == "Running" or any((c.get("state") or {}).get("running") for c in containers),
        is_terminating=meta.get("deletionTimestamp") is not None,
        message=message if has_ended else waiting,
    )
