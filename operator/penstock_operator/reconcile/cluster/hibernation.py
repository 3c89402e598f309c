"""Plans hibernation: no pod of the cluster runs, and all data stays. Used by `reconcile`.

Annotation `penstock.io/hibernate: "true"` of a Cluster stops the brokers and then the companion etcd; without it, etcd
starts first. Annotation `cluster_annotations.HIBERNATION` of the ConfigMap is written before the first pod stops: an
operator that restarts does not mistake a stopped cluster for one that another client scaled to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock_operator.model.cluster import Cluster
from penstock_operator.reconcile.cluster.actions import ScaleStore
from penstock_operator.reconcile.cluster.observed import ObservedCluster, seconds_between
from penstock_operator.reconcile.cluster.observed_store import ObservedStore
from penstock_operator.reconcile.cluster.scale import ScalePlan, join_numbers, live_replicas
from penstock_operator.specs import companion, names
from penstock_operator.specs.cluster_annotations import FINAL_PHASES, HIBERNATED, ClusterAnnotations

STEP_INTERVAL_S = 1.0
"""Requeue interval while pods stop or start."""
WAKE_TIMEOUT_S = 120.0
"""Time after which a cluster that does not serve again counts as awake, so that its conditions state the problem."""

Phase = Literal["Awake", "Refused", "Postponed", "Hibernating", "Hibernated", "Waking"]


@dataclass(frozen=True, slots=True)
class HibernationPlan:
    """Phase, and the annotation to record. `message` is that of condition Hibernated."""

    phase: Phase = "Awake"
    message: str = ""
    record: str = ""
    are_brokers_stopped: bool = False
    """Whether the StatefulSet of the brokers has no replicas."""
    is_store_stopped: bool = False
    """Whether the companion etcd stops, is stopped, or has not started again."""
    actions: tuple[ScaleStore, ...] = ()
    requeue_after_s: float | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether all pods have to stop, or have stopped."""
        return self.phase in ("Hibernating", "Hibernated")

    @property
    def is_active(self) -> bool:
        """Whether the cluster stops, is stopped, or starts again."""
        return self.is_stopping or self.phase == "Waking"


def plan_hibernation(
    cluster: Cluster, observed: ObservedCluster, recorded: ClusterAnnotations, scale: ScalePlan
) -> HibernationPlan:
    """Plan the next step."""
    wish = cluster.metadata.annotations.get(names.HIBERNATE, "")
    if wish == "true":
        if recorded.hibernation != HIBERNATED and (blocker := hibernation_blocker(cluster, observed, recorded, scale)):
            message = f"hibernation waits: {blocker}; the pods stop when that has ended"
            return HibernationPlan("Postponed", message, recorded.hibernation, requeue_after_s=STEP_INTERVAL_S)
        return plan_stop(cluster, observed)
    if recorded.hibernation:
        return plan_wake(cluster, observed, recorded, scale)
    if wish not in ("", "false"):
        message = f'annotation {names.HIBERNATE} is "{wish[:40]}": set it to "true" to hibernate, or remove it'
        return HibernationPlan("Refused", message)
    return HibernationPlan()


def hibernation_blocker(
    cluster: Cluster, observed: ObservedCluster, recorded: ClusterAnnotations, scale: ScalePlan
) -> str:
    """Return the operation that must end before the pods stop, or "". It would be interrupted for long."""
    if cluster.spec.paused:
        return "spec.paused is true"
    if recorded.restore is not None and recorded.restore.phase not in (*FINAL_PHASES, "Waiting"):
        return "etcd is being restored"
    if scale.leaving:
        return f"broker {join_numbers(scale.leaving)} is being removed"
    if recorded.moving:
        return f"replicas move ({recorded.moving})"
    if observed.reported is not None:
        if moving := observed.reported.partitions.moving:
            return f"{moving:,} partitions are being reassigned"
        brokers = observed.reported.snapshot.brokers
        if draining := [broker.broker_id for broker in brokers if broker.is_draining and not broker.is_removable]:
            return f"broker {join_numbers(draining)} is being drained"
    return ""


def plan_stop(cluster: Cluster, observed: ObservedCluster) -> HibernationPlan:
    """Plan the stop of the brokers, and then of the companion etcd, which brokers need to hand over partitions."""
    store, set_name = observed.store, cluster.spec.etcd.stateful_set

    def stopping(message: str, *actions: ScaleStore, is_store_stopped: bool = False) -> HibernationPlan:
        return HibernationPlan(
            "Hibernating", message, HIBERNATED, True, is_store_stopped, actions, requeue_after_s=STEP_INTERVAL_S
        )

    if observed.pods:
        return stopping(f"{len(observed.pods)} brokers are stopping")
    if observed.stateful_set is None or live_replicas(observed.stateful_set):
        return stopping("the brokers are stopping")
    if set_name is not None and store is not None and store.replicas:
        return stopping("etcd is stopping", ScaleStore(set_name, 0), is_store_stopped=True)
    if store is not None and store.pods:
        return stopping(f"{len(store.pods)} members of etcd are stopping", is_store_stopped=True)
    message = (
        f"no pod runs, and all volumes are kept; remove annotation {names.HIBERNATE} to start the cluster:"
        f" kubectl annotate clusters.penstock.io/{cluster.metadata.name} {names.HIBERNATE}-"
    )
    return HibernationPlan("Hibernated", message, HIBERNATED, True, set_name is not None)


def plan_wake(
    cluster: Cluster, observed: ObservedCluster, recorded: ClusterAnnotations, scale: ScalePlan
) -> HibernationPlan:
    """Plan the start of the companion etcd, and then of the brokers. They start as soon as etcd has a quorum."""
    since = recorded.hibernation if recorded.hibernation != HIBERNATED else observed.now
    elapsed = seconds_between(since, observed.now)
    if elapsed is None or elapsed > WAKE_TIMEOUT_S or is_awake(observed, scale.pods):
        return HibernationPlan()
    actions: tuple[ScaleStore, ...] = ()
    set_name, store = cluster.spec.etcd.stateful_set, observed.store
    required = companion.required_pods(store.bootstrap) if store is not None else 0
    members = max(len(cluster.spec.etcd.endpoints), required)
    if set_name is not None and store is not None and store.replicas is not None and store.replicas < members:
        actions = (ScaleStore(set_name, members),)
    waits_for_store = set_name is not None and store is not None and not has_quorum(store, members)
    ready = sum(pod.is_ready for pod in observed.pods)
    message = "etcd is starting" if waits_for_store else f"{ready} of {scale.pods} brokers are ready"
    return HibernationPlan("Waking", message, since, waits_for_store, waits_for_store, actions, STEP_INTERVAL_S)


def has_quorum(store: ObservedStore, members: int) -> bool:
    """Whether etcd serves. If the operator cannot connect to etcd, the readiness of its pods decides."""
    if store.report is not None and store.report.members is not None:
        return True
    return sum(pod.is_ready and not pod.is_terminating for pod in store.pods) > members // 2


def is_awake(observed: ObservedCluster, pods: int) -> bool:
    """Whether all brokers serve again, with all replicas in sync."""
    reported, by_ordinal = observed.reported, observed.by_ordinal
    if reported is None or reported.partitions.offline or any(reported.partitions.out_of_sync.values()):
        return False
    registered = {broker.broker_id for broker in reported.snapshot.brokers}
    return all(n in registered and (pod := by_ordinal.get(n)) is not None and pod.is_ready for n in range(pods))
