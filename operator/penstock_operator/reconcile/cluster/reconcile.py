"""What is to be done about a cluster: pure, and the same whenever it is asked. Called by `clusters.controller`.

The parts decide by themselves: `cluster_scale` how many pods, `cluster_storage` how large volumes, `cluster_external`
by which addresses, `cluster_roll` who restarts, `cluster_moves` what moves, `cluster_settings` what brokers are told.
Here they are put in order: what is noted is written before it is begun, brokers are bounded and know where they stand
before replicas move, and pods restart only when the StatefulSet is what it should be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock_operator.model.cluster import Cluster, ClusterStatus
from penstock_operator.ports.kube import STATEFUL_SETS, KubeResource, Object
from penstock_operator.reconcile.cluster import moves as cluster_moves
from penstock_operator.reconcile.cluster.actions import (
    Apply,
    ChangeBrokers,
    ClusterAction,
    NoteClaim,
    ReassignPartitions,
    Remove,
    ResizeSet,
)
from penstock_operator.reconcile.cluster.external import plan_external
from penstock_operator.reconcile.cluster.founded import is_founded, members_of_claims
from penstock_operator.reconcile.cluster.moves import MoveReconciler, PlannedMoves
from penstock_operator.reconcile.cluster.observed import ObservedCluster
from penstock_operator.reconcile.cluster.roll import RollingRestart, may_leave, plan_roll
from penstock_operator.reconcile.cluster.scale import ScaleReconciler, plan_scale, pods_there
from penstock_operator.reconcile.cluster.settings import domain_changes, running_changes
from penstock_operator.reconcile.cluster.status import Findings, happenings, status_of
from penstock_operator.reconcile.cluster.storage import plan_storage
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.specs import cluster_annotations, compare, etcd, names, objects, pod

LOOK_S = 3.0
"""Between two looks while something goes on."""
WAIT_S = 5.0
"""While brokers do not answer or are not ready, which events may not tell the end of."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """`planned` is to be given at the next look."""

    plan: ReconcilePlan[ClusterAction, ClusterStatus]
    planned: PlannedMoves | None


def reconcile(
    cluster: Cluster, observed: ObservedCluster, *, image: str, planned: PlannedMoves | None = None
) -> Reconciled:
    """`image` is the brokers', where the resource names none."""
    noted = cluster_annotations.read(((observed.config_map or {}).get("metadata") or {}).get("annotations") or {})
    members = etcd_members(cluster, observed, noted)
    has_sidecar = cluster.spec.etcd.sidecar is not None
    scale = plan_scale(cluster, observed, noted, members if has_sidecar else 0)
    storage = plan_storage(cluster, observed)
    external = plan_external(cluster, observed, scale.pods, noted.external_unknown_to)
    noted = replace(
        noted,
        draining=scale.draining,
        etcd_members=members if has_sidecar else 0,
        external_unknown_to=external.unknown_to,
    )
    running, noted = running_changes(cluster, observed, noted)
    told = (*running, *domain_changes(cluster, observed))
    template = pod.template(cluster, cluster.spec.image or image, members)
    restart = template["metadata"]["annotations"][names.RESTART]
    roll = plan_roll(cluster, observed, restart, scale.pods, members, noted)
    moving = noted.moving if scale.moving is None else scale.moving
    moves, moving, waits = plan_moves(cluster, observed, scale, roll, bool(told), moving, planned)
    noted = replace(noted, moving=moving)

    there = pods_there(cluster, observed)
    holds = bool(external.missing) and cluster.spec.external is not None and cluster.spec.external.type == "NodePort"
    facts = objects.ClusterFacts(
        image=image,
        replicas=min(there or 0, scale.pods) if holds else scale.pods,
        services=scale.pods,
        etcd_members=members,
        annotations=noted,
        external=external.addresses,
        data_size=storage.sizes.get(names.DATA_CLAIM),
        etcd_size=storage.sizes.get(names.ETCD_CLAIM),
        is_founded=is_founded(cluster, observed),
        may_leave=may_leave(observed, scale.pods),
        # Without etcd none is ready and all serve: then one that is not ready is no less of a loss.
        may_unready_leave=any(pod.is_ready for pod in observed.pods),
    )
    is_remade = any(isinstance(action, Remove) for action in storage.actions)
    skipped = {STATEFUL_SETS} if is_remade or (holds and not facts.replicas) else set()
    applied = plan_applies(cluster, observed, facts, scale, skipped)

    actions: list[ClusterAction] = [*applied, *external.unwanted, *storage.actions]
    if has_sidecar and facts.is_founded:
        actions += note_claims(observed, members)
    if told or scale.changes:
        actions.append(ChangeBrokers((*told, *scale.changes)))
    if scale.cancels:
        actions.append(ReassignPartitions(dict.fromkeys(scale.cancels)))
    if moves is not None and moves.begin:
        actions.append(ReassignPartitions(dict(moves.begin)))
    if roll.action is not None and not any(resource_of(action) == STATEFUL_SETS for action in actions):
        actions.append(roll.action)

    found = Findings(scale, roll, storage, moves, moving, waits)
    status = status_of(cluster, observed, found)
    plan = ReconcilePlan(
        status,
        () if cluster.spec.paused else tuple(actions),
        happenings(cluster, status, is_rolling=bool(roll.outdated)),
        look_again(cluster, observed, found, bool(actions), holds, facts.may_leave),
    )
    return Reconciled(plan, moves.planned if moves is not None else planned if moving else None)


def etcd_members(cluster: Cluster, observed: ObservedCluster, noted: cluster_annotations.ClusterAnnotations) -> int:
    """Fixed when the cluster is made: etcd's members know each other by name. What pods are made with goes before what
    is noted, which anybody who may write ConfigMaps can change."""
    spec = ((observed.stateful_set or {}).get("spec", {}).get("template") or {}).get("spec") or {}
    for container in spec.get("initContainers") or ():
        for variable in container.get("env") or ():
            if variable.get("name") == "ETCD_NAMES" and variable.get("value"):
                count = len(str(variable["value"]).split(","))
                if count in etcd.MEMBERS:
                    return count
    return noted.etcd_members or members_of_claims(observed) or etcd.members_for(cluster.spec.brokers.replicas)


def note_claims(observed: ObservedCluster, members: int) -> list[NoteClaim]:
    return [
        NoteClaim(claim.name, members)
        for claim in observed.claims
        if claim.template == names.ETCD_CLAIM and claim.ordinal < members and not claim.members
        if not claim.is_terminating
    ]


def plan_moves(
    cluster: Cluster,
    observed: ObservedCluster,
    scale: ScaleReconciler,
    roll: RollingRestart,
    is_telling: bool,
    moving: str,
    planned: PlannedMoves | None,
) -> tuple[MoveReconciler | None, str, str]:
    """What moves, why replicas are being moved from now on, and why they are not just now."""
    said = observed.said
    if not cluster.spec.moving.automatic:
        return None, "", ""
    if not moving:
        if said is None or scale.leaving or not scale.ok or roll.outdated or is_telling:
            return None, "", ""
        idle = cluster_moves.gets_nothing(said, scale.pods)
        if not idle or cluster_moves.why_not_now(observed, scale.pods):
            return None, "", ""
        moves = cluster_moves.next_moves(observed, planned)
        if not any(broker in after for after in moves.begin.values() for broker in idle):
            return replace_begin(moves), "", ""
        # Noted first, begun at the next look.
        return replace_begin(moves), f"broker {', '.join(map(str, idle))} holds nothing", ""
    waits = ""
    if scale.changes or scale.reason == "ScalingUp":
        waits = scale.message
    elif roll.outdated:
        waits = "brokers are being restarted"
    elif is_telling:
        waits = "brokers are being told where they stand"
    else:
        waits = cluster_moves.why_not_now(observed, scale.pods)
    if waits:
        return None, moving, waits
    moves = cluster_moves.next_moves(observed, planned)
    return moves, moving if moves.left else "", moves.why_not


def replace_begin(moves: MoveReconciler) -> MoveReconciler | None:
    """Nothing is begun, the plan is kept."""
    return replace(moves, begin={}) if moves.planned is not None else None


def plan_applies(
    cluster: Cluster,
    observed: ObservedCluster,
    facts: objects.ClusterFacts,
    scale: ScaleReconciler,
    skipped: set[KubeResource],
) -> list[Apply | ResizeSet]:
    """Objects that are missing or not as they are rendered."""
    found: list[Apply | ResizeSet] = []
    for resource, body in objects.render(cluster, facts):
        name = body["metadata"]["name"]
        live = observed.live.get((resource, name))
        why = why_apply(resource, body, live, observed)
        if not why or resource in skipped:
            continue
        if resource == STATEFUL_SETS and scale.shrinks and live is not None:
            version = str(live["metadata"].get("resourceVersion") or "")
            found.append(ResizeSet(body, tuple(sorted(scale.leaving)), version))
        else:
            seen = live if resource == STATEFUL_SETS else None
            found.append(Apply(resource, body, why, is_new=live is None, seen=seen))
    return found


def why_apply(resource: KubeResource, body: Object, live: Object | None, observed: ObservedCluster) -> str:
    if live is None:
        return "it is not there"
    different = compare.difference(wanted_of(body), live)
    if different is None:
        return ""
    if observed.settled.get((resource, body["metadata"]["name"])) == settled_digest(body, live):
        return ""
    return f"{different} is different"


def wanted_of(body: Object) -> Object:
    return {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}


def settled_digest(body: Object, live: Object) -> str:
    """Of what was applied and what came of it."""
    kept = {key: value for key, value in live.items() if key not in ("metadata", "status")}
    return compare.digest([body, kept])


def resource_of(action: ClusterAction) -> KubeResource | None:
    match action:
        case Apply(resource=resource) | Remove(resource=resource):
            return resource
        case ResizeSet():
            return STATEFUL_SETS
        case _:
            return None


def look_again(
    cluster: Cluster, observed: ObservedCluster, found: Findings, acts: bool, holds: bool, may_leave: bool
) -> float | None:
    """None where only events and the resync can bring anything new."""
    if cluster.spec.paused:
        return None
    times = [found.scale.look_again_s, found.roll.look_again_s, found.storage.look_again_s]
    if acts or found.moving or found.roll.action is not None or found.scale.leaving:
        times.append(LOOK_S)
    if holds:
        times.append(1.0)
    ready = sum(pod.is_ready for pod in observed.pods)
    said = observed.said
    if said is None or ready < found.scale.pods or said.partitions.under_replicated or not may_leave:
        times.append(WAIT_S)
    elif len(said.picture.brokers) < found.scale.pods:
        times.append(LOOK_S)
    return min((time for time in times if time is not None), default=None)
