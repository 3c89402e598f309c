"""The status and Events of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock_operator.model.cluster import BrokerStatus, Cluster, ClusterStatus, ListenerStatus, MovingStatus
from penstock_operator.model.common import Condition, with_conditions
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.cluster.certificates import CertificatePlan
from penstock_operator.reconcile.cluster.hibernation import HibernationPlan
from penstock_operator.reconcile.cluster.moves import ReplicaMoves
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.partitions import PartitionSummary
from penstock_operator.reconcile.cluster.rebalance import BALANCED, RebalancePlan
from penstock_operator.reconcile.cluster.restore import RestorePlan
from penstock_operator.reconcile.cluster.roll import RollingRestart
from penstock_operator.reconcile.cluster.scale import ScalePlan, join_numbers
from penstock_operator.reconcile.cluster.snapshots import SnapshotPlan
from penstock_operator.reconcile.cluster.spread import SpreadPlan
from penstock_operator.reconcile.cluster.storage import StoragePlan
from penstock_operator.reconcile.cluster.store_members import StorePlan
from penstock_operator.specs import names
from penstock_operator.specs.cluster_annotations import FINAL_PHASES
from penstock_operator.specs.listeners import client_listeners

MAX_MESSAGE_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of the planning modules."""

    scale: ScalePlan
    roll: RollingRestart
    storage: StoragePlan
    move_plan: RebalancePlan = field(default_factory=RebalancePlan)
    certificates: CertificatePlan = field(default_factory=CertificatePlan)
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Bootstrap servers of the listeners in `spec.listeners`, by name."""
    store: StorePlan = field(default_factory=StorePlan)
    spread: SpreadPlan = field(default_factory=SpreadPlan)
    hibernation: HibernationPlan = field(default_factory=HibernationPlan)
    snapshots: SnapshotPlan = field(default_factory=SnapshotPlan)
    restore: RestorePlan = field(default_factory=RestorePlan)

    @property
    def moves(self) -> ReplicaMoves | None:
        """Replica moves."""
        return self.move_plan.moves

    @property
    def moving(self) -> str:
        """Why replicas move; empty if they do not."""
        return self.move_plan.moving


def status_of(cluster: Cluster, observed: ObservedCluster, found: Findings) -> ClusterStatus:
    """Return the status of a cluster."""
    reported = observed.reported
    brokers = broker_states(cluster, observed, found)
    conditions = [
        ready(cluster, observed, found),
        healthy(observed, found),
        progressing(cluster, observed, found),
        ("Scaled", found.scale.ok, found.scale.reason, found.scale.message),
        rolled(observed, found),
    ]
    if found.storage.reason:
        conditions.append(("Storage", found.storage.reason == "Expanding", found.storage.reason, found.storage.message))
    if found.certificates.reason:
        certificates = found.certificates
        conditions.append(("Certificates", certificates.is_valid, certificates.reason, certificates.message))
    if found.store.reason:
        conditions.append(("StateStore", found.store.is_healthy, found.store.reason, found.store.message))
    if found.snapshots.reason:
        snapshots = found.snapshots
        conditions.append(("Snapshots", snapshots.is_current, snapshots.reason, snapshots.message))
    if found.spread.reason:
        conditions.append(("Spread", found.spread.is_spread, found.spread.reason, found.spread.message))
    conditions = restored(hibernated(conditions, found.hibernation), found.restore)
    conditions += generic_conditions(conditions)
    made = tuple(
        Condition(
            type=kind,
            status="Unknown" if is_true is None else "True" if is_true else "False",
            reason=reason,
            message=message[:MAX_MESSAGE_CHARS],
            observed_generation=cluster.metadata.generation,
        )
        for kind, is_true, reason, message in conditions
    )
    before = cluster.status
    return ClusterStatus(
        observed_generation=cluster.metadata.generation,
        conditions=with_conditions(before.conditions, made, observed.now),
        replicas=len(observed.pods),
        ready_replicas=sum(pod.is_ready for pod in observed.pods if pod.ordinal < cluster.spec.brokers.replicas),
        selector=names.selector_text(cluster.metadata.name),
        cluster_id=reported.snapshot.cluster_id if reported is not None else before.cluster_id,
        controller=reported.snapshot.controller_id
        if reported is not None and reported.snapshot.controller_id >= 0
        else None,
        version=version_of(observed, before),
        brokers=brokers,
        offline=reported.partitions.offline if reported is not None else None,
        under_replicated=reported.partitions.under_replicated if reported is not None else None,
        moving=moving_status(cluster, found),
        rebalance=found.move_plan.proposal,
        bootstrap=bootstrap(cluster),
        listeners=tuple(ListenerStatus(name=name, bootstrap=text) for name, text in found.addresses.items()),
        snapshots=found.snapshots.status,
        restore=found.restore.status,
    )


def bootstrap(cluster: Cluster) -> str | None:
    """Return the bootstrap servers of the first listener for clients inside the Kubernetes cluster."""
    ports = [listener.port for listener in client_listeners(cluster) if not listener.is_external]
    return f"{names.service_host(cluster)}:{ports[0]}" if ports else None


def broker_states(cluster: Cluster, observed: ObservedCluster, found: Findings) -> tuple[BrokerStatus, ...]:
    """Return the status of each broker that is desired, has a pod, or is registered."""
    registered = {b.broker_id: b for b in observed.reported.snapshot.brokers} if observed.reported is not None else {}
    partitions = observed.reported.partitions if observed.reported is not None else None
    pods, before = observed.by_ordinal, {broker.id: broker for broker in cluster.status.brokers}
    states = []
    for number in sorted(set(range(found.scale.pods)) | pods.keys() | registered.keys()):
        pod, broker = pods.get(number), registered.get(number)
        if broker is not None and broker.is_draining:
            state = "Removable" if broker.is_removable else "Draining"
        elif pod is None and broker is None:
            state = "Hibernated" if found.hibernation.is_active else "Missing"
        elif pod is not None and pod.is_ready and (broker is not None or observed.reported is None):
            state = "Ready"
        else:
            state = "NotReady"
        node = pod.node if pod is not None else None
        known = before.get(number)
        states.append(
            BrokerStatus(
                id=number,
                state=state,
                node=node,
                zone=(observed.zones or {}).get(node) if node is not None else None,
                replicas=partitions.replica_counts.get(number, 0) if partitions is not None else None,
                leaders=partitions.leader_counts.get(number, 0) if partitions is not None else None,
                version=(broker.version or None) if broker is not None else known.version if known else None,
            )
        )
    return tuple(states)


def version_of(observed: ObservedCluster, before: ClusterStatus) -> str | None:
    """Return the oldest release that a broker runs."""
    if observed.reported is None:
        return before.version
    return min((b.version for b in observed.reported.snapshot.brokers if b.version), key=_comparable, default=None)


def _comparable(version: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in version.replace("-", ".").split("."))


Finding = tuple[str, "bool | None", str, str]


def generic_conditions(conditions: list[Finding]) -> list[Finding]:
    """Return the conditions by which GitOps tools judge any resource (kstatus): Reconciling while an operation is in
    progress, Stalled if one does not continue without a user. They exist only if they are True."""
    stalled = [finding for finding in conditions if finding[1] is False and finding[2] in STALLED_REASONS]
    if stalled:
        return [("Stalled", True, stalled[0][2], stalled[0][3])]
    return [("Reconciling", True, reason, text) for kind, is_true, reason, text in conditions
            if kind == "Progressing" and is_true]  # fmt: skip


def hibernated(conditions: list[Finding], plan: HibernationPlan) -> list[Finding]:
    """Return the conditions with condition Hibernated, if there is something to report. The state of pods that stop,
    are stopped or start is no problem: Ready is False, and others whose state only running pods can show are
    Unknown."""
    if plan.phase == "Awake":
        return conditions
    own: Finding = ("Hibernated", plan.phase == "Hibernated", plan.phase, plan.message)
    if not plan.is_active:
        return [*conditions, own]
    shown: dict[str, bool | None] = {
        "Ready": False, "Healthy": None, "Progressing": plan.phase != "Hibernated", "Rolled": None,
        "Snapshots": None,
    }  # fmt: skip
    found = []
    for finding in conditions:
        kind, is_true, reason, _ = finding
        is_back = plan.phase == "Waking" and is_true is True and kind != "Progressing"
        is_kept = kind not in shown or reason in ("Paused", "Failing") or is_back
        found.append(finding if is_kept else (kind, shown[kind], plan.phase, plan.message))
    return [*found, own]


def restored(conditions: list[Finding], plan: RestorePlan) -> list[Finding]:
    """Return the conditions with condition Restored, if there was a restore. While it runs, brokers without etcd are no
    problem: what is not True is Unknown, and Ready is False."""
    if plan.record is None:
        return conditions
    is_done = True if plan.phase == "Completed" else False if plan.phase in FINAL_PHASES else None
    own: Finding = ("Restored", is_done, plan.phase, plan.message)
    if not plan.is_active:
        return [*conditions, own]
    shown: dict[str, bool | None] = {
        "Ready": False, "Healthy": None, "Progressing": True, "Rolled": None, "Scaled": None
    }  # fmt: skip
    found = []
    for finding in conditions:
        kind, is_true, reason, _ = finding
        is_kept = kind not in shown or reason in ("Paused", "Failing") or (is_true is True and kind != "Progressing")
        found.append(finding if is_kept else (kind, shown[kind], RESTORING, plan.message))
    return [*found, own]


def ready(cluster: Cluster, observed: ObservedCluster, found: Findings) -> Finding:
    """Return condition Ready."""
    desired = found.scale.pods
    serving = [pod.ordinal for pod in observed.pods if pod.is_ready and pod.ordinal < desired]
    if stays_ready(cluster, observed, found, desired - len(serving)):
        message = f"{len(serving)} of {desired} brokers are ready, all partitions have leaders"
        return "Ready", True, "Serving", message + (f"; no pod: {observed.missing_pod}" if observed.missing_pod else "")
    if len(serving) < desired:
        away = sorted(set(range(desired)) - set(serving))
        problems = [f"broker {p.ordinal}: {p.problem}" for p in observed.pods if p.problem and p.ordinal in away]
        problems += [observed.missing_pod] if observed.missing_pod else []
        because = observed.failure or "; ".join(problems)
        message = f"{len(serving)} of {desired} brokers are ready" + (f": {because}" if because else "")
        return "Ready", False, "BrokersNotReady", message
    if observed.reported is None:
        return "Ready", None, "BrokersUnreachable", f"the brokers do not answer: {observed.brokers_error}"
    registered = {broker.broker_id for broker in observed.reported.snapshot.brokers}
    if missing := sorted(set(range(desired)) - registered):
        return (
            "Ready",
            False,
            "BrokersNotRegistered",
            f"broker {join_numbers(missing)} is not registered in the cluster",
        )
    if observed.reported.partitions.offline:
        return (
            "Ready",
            False,
            "PartitionsOffline",
            f"{observed.reported.partitions.offline:,} partitions have no leader",
        )
    if cluster.spec.brokers.replicas > desired or found.scale.reason == "ScalingUp":
        return "Ready", False, "ScalingUp", found.scale.message
    return "Ready", True, "Serving", f"{desired} brokers are ready"


def stays_ready(cluster: Cluster, observed: ObservedCluster, found: Findings, away: int) -> bool:
    """Whether Ready stays True although one broker is down. Otherwise each step of a roll would change the readiness of
    the cluster twice, and queue all its topics and groups."""
    was_ready = any(c.type == "Ready" and c.status == "True" for c in cluster.status.conditions)
    reported = observed.reported
    if not was_ready or away != 1 or found.scale.pods < 2 or found.scale.reason == "ScalingUp":
        return False
    return reported is not None and not reported.partitions.offline


def healthy(observed: ObservedCluster, found: Findings) -> Finding:
    """Return condition Healthy."""
    if observed.reported is None:
        return "Healthy", None, "BrokersUnreachable", f"the brokers do not answer: {observed.brokers_error}"
    partitions = observed.reported.partitions
    if partitions.offline:
        message = f"{partitions.offline:,} partitions have no leader, {partitions.under_replicated:,} lack replicas"
        return "Healthy", False, "PartitionsOffline", message
    if partitions.under_replicated:
        worst = ", ".join(f"{broker} ({count:,})" for broker, count in sorted(partitions.out_of_sync.items())[:10])
        message = f"{partitions.under_replicated:,} partitions have replicas that are not in sync, on broker {worst}"
        return "Healthy", False, "UnderReplicated", message
    if found.store.is_healthy is False:
        return "Healthy", False, "StateStoreUnhealthy", found.store.message
    return "Healthy", True, "InSync", "all replicas are in sync"


def progressing(cluster: Cluster, observed: ObservedCluster, found: Findings) -> Finding:
    """Return condition Progressing."""
    if cluster.spec.paused:
        return "Progressing", False, "Paused", "spec.paused is true: the operator changes nothing"
    if observed.failure or observed.routes_error:
        return "Progressing", False, "Failing", observed.failure or observed.routes_error
    if found.scale.reason in ("ScalingUp", "ScalingDown", "Draining", "Waiting"):
        return "Progressing", True, found.scale.reason, found.scale.message
    if found.roll.outdated:
        return "Progressing", True, "Rolling", rolled(observed, found)[3]
    if found.certificates.is_rolling:
        return "Progressing", True, found.certificates.reason, found.certificates.message
    if found.moving:
        left = f", {found.moves.left:,} partitions left" if found.moves is not None else ""
        waits = f"; waiting: {found.move_plan.waits}" if found.move_plan.waits else ""
        return "Progressing", True, "Moving", f"replicas move ({found.moving}){left}{waits}"
    if found.storage.reason == "Expanding":
        return "Progressing", True, "Expanding", found.storage.message
    return "Progressing", False, "Done", "no operation is in progress"


def rolled(observed: ObservedCluster, found: Findings) -> Finding:
    """Return condition Rolled."""
    roll = found.roll
    if not roll.outdated:
        return "Rolled", True, "AsWanted", "all brokers run the desired configuration"
    if not roll.must_restart:
        return "Rolled", False, roll.reason, f"all brokers were restarted; waiting: {roll.waits}"
    message = f"broker {join_numbers(roll.outdated)} must be restarted"
    if roll.waits:
        message += f"; waiting: {roll.waits}"
    partitions = observed.reported.partitions if observed.reported is not None else PartitionSummary()
    if count := sum(partitions.single_replica.get(number, 0) for number in roll.outdated):
        message += f"; {count:,} partitions have a single replica and are offline while their broker restarts"
    if count := partitions.count_at_min_isr(roll.outdated):
        message += (
            f"; {count:,} partitions, such as those of topic {partitions.at_min_isr_example}, reject writes with"
            " acks=all while one of their brokers restarts: increase their replication factor or decrease"
            " min.insync.replicas"
        )
    return "Rolled", False, roll.reason or "Waiting", message


def moving_status(cluster: Cluster, found: Findings) -> MovingStatus | None:
    """Return the progress of drains or moves; None if no replicas move."""
    if found.scale.left is not None and found.scale.leaving:
        reason, left = f"broker {join_numbers(found.scale.leaving)} removed", found.scale.left
    elif found.moving and found.moves is not None:
        reason, left = found.moving, found.moves.left
    else:
        return None
    before = cluster.status.moving
    total = max(left, before.partitions_total) if before is not None and before.reason == reason else left
    return MovingStatus(reason=reason, partitions_left=left, partitions_total=total)


WARNING_REASONS = {
    "BrokersNotReady", "BrokersNotRegistered", "BrokersUnreachable", "PartitionsOffline", "UnderReplicated",
    "TooFewBrokers", "BelowEtcdMembers", "DrainRefused", "Blocked", "NotExpandable", "SmallerRefused", "VolumeLost",
    "Failing",
    "SecretMissing", "SecretInvalid", "SecretUnreadable", "Expired", "MemberLost", "Replacing", "MemberNotReady",
    "QuorumLost", "NoSpace", "Corrupt", "UnknownMember", "Unreachable", "Crowded", "PlacedBack", "Overdue",
}  # fmt: skip
SILENT_REASONS = {
    "Serving", "Done", "Waiting", "Issuing", "StateStoreUnhealthy", "Moving", "Scheduling", "Failed",
    "Stored",
}  # fmt: skip
STALLED_REASONS = {
    "Blocked", "TooFewBrokers", "BelowEtcdMembers", "DrainRefused", "NotExpandable", "SmallerRefused", "VolumeLost",
    "SecretMissing", "SecretInvalid", "SecretUnreadable", "Refused",
}  # fmt: skip
"""Reasons of conditions that are False until a user changes something."""
RESTORING = "Restoring"
STOPPED_REASONS = {"Hibernating", "Hibernated", "Waking", RESTORING}
"""Reasons for which only conditions Hibernated and Restored get Events."""


def condition_events(cluster: Cluster, status: ClusterStatus, *, is_rolling: bool) -> tuple[KubeEvent, ...]:
    """Return an Event for each condition whose reason changed. Under-replication during a roll is expected: no
    Event."""
    before = {condition.type: condition.reason for condition in cluster.status.conditions}
    events = []
    for condition in status.conditions:
        if before.get(condition.type) == condition.reason or condition.reason in SILENT_REASONS:
            continue
        if condition.type in ("Reconciling", "Stalled", "Restored"):
            continue  # they repeat another condition, or have an Event of their own
        if condition.type == "Hibernated":
            events.append(KubeEvent("Normal", condition.type + condition.reason, condition.message))
            continue
        was_stopped = before.get(condition.type) in STOPPED_REASONS
        if condition.reason in STOPPED_REASONS or (was_stopped and condition.status == "True"):
            continue
        if condition.type not in before and condition.status != "False":
            continue  # a new object whose condition is as it should be
        if is_rolling and condition.type == "Healthy" and condition.reason != "PartitionsOffline":
            continue
        if condition.type in ("Progressing", "Ready") and condition.reason not in ("Paused", "Failing"):
            continue  # other conditions have the details
        kind: Literal["Warning", "Normal"] = "Warning" if condition.reason in WARNING_REASONS else "Normal"
        events.append(KubeEvent(kind, f"{condition.type}{condition.reason}", condition.message))
    return tuple(events)


def proposal_events(cluster: Cluster, status: ClusterStatus) -> tuple[KubeEvent, ...]:
    """Return the Event about a plan of moves that waits for an approval, once the bytes are known."""
    before, plan = cluster.status.rebalance, status.rebalance
    if plan is None or plan.bytes is None or plan.id == BALANCED:
        return ()
    if before is not None and (before.id, before.bytes is None) == (plan.id, False):
        return ()
    message = (
        f"plan {plan.id} moves replicas of {plan.partitions:,} partitions, {plan.bytes:,} bytes ({plan.reason});"
        f" to approve it, run `kubectl annotate --overwrite clusters.penstock.io/{cluster.metadata.name}"
        f" {names.REBALANCE}={plan.id}`"
    )
    return (KubeEvent("Normal", "RebalanceProposed", message),)
