"""Plans a cluster. Pure and deterministic. Called by `clusters.controller`.

The modules decide independently: `scale` the number of pods, `storage` volume sizes, `external` addresses,
`certificates` keys and CA, `transition` the listener for brokers, `roll` restarts, `rebalance` replica moves,
`settings` dynamic broker settings, `store` the etcd, `snapshots` its snapshots, `spread` pods that share a node,
`hibernation` the stop of all pods, which suspends the others. This module orders their actions:
annotations are written before the operation that they announce, throttle and failure domains are set before replicas
move, and pods restart only when the StatefulSet is up to date.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock_operator.model.cluster import Cluster, ClusterStatus
from penstock_operator.ports.kube import NETWORK_POLICIES, STATEFUL_SETS, TLS_ROUTES, KubeEvent, KubeResource, Object
from penstock_operator.reconcile.cluster.actions import (
    AnnotateClaim,
    ApplyObject,
    ChangeBrokers,
    ClusterAction,
    DeleteObject,
    ReassignPartitions,
    ScaleDownStatefulSet,
)
from penstock_operator.reconcile.cluster.certificates import plan_certificates
from penstock_operator.reconcile.cluster.external import external_hosts, is_own, listener_addresses, plan_external
from penstock_operator.reconcile.cluster.founded import is_founded, members_of_claims
from penstock_operator.reconcile.cluster.groups import spread_groups
from penstock_operator.reconcile.cluster.hibernation import HibernationPlan, plan_hibernation
from penstock_operator.reconcile.cluster.moves import PlannedMoves
from penstock_operator.reconcile.cluster.observed import ObservedCluster, seconds_between
from penstock_operator.reconcile.cluster.rebalance import RebalancePlan, plan_moves
from penstock_operator.reconcile.cluster.restore import RestoreImages, RestorePlan, plan_restore
from penstock_operator.reconcile.cluster.roll import RollingRestart, may_evict, plan_roll, requested_restart
from penstock_operator.reconcile.cluster.routes import plan_routes
from penstock_operator.reconcile.cluster.scale import ScalePlan, current_pods, plan_scale, scale_revert_event
from penstock_operator.reconcile.cluster.settings import domain_changes, running_changes
from penstock_operator.reconcile.cluster.snapshots import plan_snapshots
from penstock_operator.reconcile.cluster.spread import SpreadPlan, plan_spread
from penstock_operator.reconcile.cluster.status import RESTORING, Findings, condition_events, proposal_events, status_of
from penstock_operator.reconcile.cluster.storage import plan_storage
from penstock_operator.reconcile.cluster.store import plan_store
from penstock_operator.reconcile.cluster.store_members import StorePlan
from penstock_operator.reconcile.cluster.store_storage import plan_store_storage, with_store_storage
from penstock_operator.reconcile.cluster.transition import plan_transition
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.specs import cluster_annotations, compare, etcd, names, objects, pod
from penstock_operator.specs.access import has_network_policy
from penstock_operator.specs.hosts import certificate_hosts

BUSY_INTERVAL_S = 3.0
"""Requeue interval while an operation is in progress."""
WAIT_INTERVAL_S = 5.0
"""Requeue interval while brokers do not answer or are not ready; their recovery may cause no event."""


@dataclass(frozen=True, slots=True)
class ReconcileOutcome:
    """A plan, and the planned moves that the caller passes to the next call."""

    plan: ReconcilePlan[ClusterAction, ClusterStatus]
    planned: PlannedMoves | None


FORMING = "Forming"
"""Reason of condition StateStore while the members of a new etcd start one after the other."""
FORMING_REASONS = {"MemberNotReady", "QuorumLost", "Unreachable"}
FORMING_TIMEOUT_S = 300


def reconcile(
    cluster: Cluster,
    observed: ObservedCluster,
    *,
    image: str,
    operator_image: str = "",
    planned: PlannedMoves | None = None,
) -> ReconcileOutcome:
    """Plan a cluster. `image`: default image of the brokers. `operator_image`: image of the pods for snapshots."""
    recorded = cluster_annotations.read(((observed.config_map or {}).get("metadata") or {}).get("annotations") or {})
    members = etcd_members(cluster, observed, recorded)
    has_sidecar = cluster.spec.etcd.sidecar is not None
    scale = plan_scale(cluster, observed, recorded, members if has_sidecar else 0)
    hibernation = plan_hibernation(cluster, observed, recorded, scale)
    restore = plan_restore(
        cluster, observed, recorded, hibernation, scale,
        RestoreImages(operator_image, cluster.spec.image or image),
    )  # fmt: skip
    is_held = hibernation.is_active or restore.is_active
    if restore.is_active:
        scale = without_changes(scale, current_pods(cluster, observed))
    was_stopped = bool(recorded.hibernation)
    storage = with_store_storage(plan_storage(cluster, observed), plan_store_storage(cluster, observed))
    transition = plan_transition(cluster, observed.pods)
    external = plan_external(cluster, observed, scale.pods, recorded.external_unknown_to)
    hosts = certificate_hosts(cluster, scale.pods, external_hosts(cluster, observed, scale.pods, external.addresses))
    routes = plan_routes(cluster, observed, scale.pods, recorded.has_routes)
    certificates = plan_certificates(cluster, observed, hosts, scale.pods, transition)
    recorded = replace(
        recorded,
        draining=scale.draining,
        etcd_members=members if has_sidecar else 0,
        external_unknown_to=external.unknown_to,
        hibernation=hibernation.record,
        restore=restore.record,
        has_routes=routes.has_routes,
    )
    running, recorded = running_changes(cluster, observed, recorded)
    may_change = not hibernation.is_stopping and not restore.is_active
    broker_changes = (*running, *domain_changes(cluster, observed)) if may_change else ()
    template = pod.template(cluster, cluster.spec.image or image, members, transition)
    restart = template["metadata"]["annotations"][names.RESTART]
    moving = recorded.moving if scale.moving is None else scale.moving
    roll, move_plan = RollingRestart(), RebalancePlan(moving=moving, proposal=cluster.status.rebalance)
    if not is_held:
        roll = plan_roll(cluster, observed, restart, scale.pods, members, recorded)
        move_plan = plan_moves(cluster, observed, scale, roll, bool(broker_changes), moving, planned)
    moves, moving = move_plan.moves, move_plan.moving
    store = plan_store_of(cluster, observed, hibernation, restore)
    waits = hibernation.message if hibernation.is_active else restore.message if restore.is_active else ""
    snapshots = plan_snapshots(cluster, observed, operator_image, waits=waits)
    is_changing = bool(broker_changes or moving or storage.actions)
    groups = spread_groups(cluster, observed, scale, roll, store, is_changing=is_changing)
    if hibernation.is_active:
        spread = SpreadPlan(None, hibernation.phase, hibernation.message, moves=recorded.spread_moves)
    elif restore.is_active:
        spread = SpreadPlan(None, RESTORING, restore.message, moves=recorded.spread_moves)
    else:
        spread = plan_spread(groups, observed.nodes, recorded.spread_moves, observed.now)
    recorded = replace(recorded, moving=moving, spread_moves=spread.moves)

    there = current_pods(cluster, observed)
    holds = external.is_held
    facts = objects.RenderContext(
        image=image,
        replicas=min(there or 0, scale.pods) if holds else scale.pods,
        services=scale.pods,
        etcd_members=members,
        annotations=recorded,
        external=external.addresses,
        transition=transition,
        hosts=hosts,
        data_size=storage.sizes.get(names.DATA_CLAIM),
        etcd_size=storage.sizes.get(names.ETCD_CLAIM),
        ports={pod.ordinal: pod.ports for pod in observed.pods},
        restarted_at=requested_restart(observed),
        is_founded=is_founded(cluster, observed),
        is_stopped=hibernation.are_brokers_stopped,
        may_evict=may_evict(cluster, observed, scale.pods),
        # Without etcd no broker is ready although all serve; then unready brokers need protection, too.
        may_evict_unready=any(pod.is_ready for pod in observed.pods),
    )
    is_remade = any(isinstance(action, DeleteObject) for action in storage.actions)
    is_skipped = is_remade or (holds and not facts.replicas) or not certificates.is_ready
    skipped = {STATEFUL_SETS} if is_skipped else set()
    if observed.routes_error:
        skipped.add(TLS_ROUTES)
    revert = None if was_stopped or hibernation.is_active else scale_revert_event(cluster, observed)
    applied = plan_applies(cluster, observed, facts, scale, skipped, revert)

    actions: list[ClusterAction] = [*certificates.actions, *applied, *external.unwanted, *routes.unwanted]
    actions += [*unwanted_policies(cluster, observed), *storage.actions, *store.actions, *hibernation.actions]
    actions += [*snapshots.actions, *restore.actions]
    if has_sidecar and facts.is_founded:
        actions += annotate_claims(observed, members)
    if (broker_changes or scale.changes) and may_change:
        actions.append(ChangeBrokers((*broker_changes, *scale.changes)))
    if scale.cancels and not hibernation.is_stopping:
        actions.append(ReassignPartitions(dict.fromkeys(scale.cancels)))
    if moves is not None and moves.begin:
        actions.append(ReassignPartitions(dict(moves.begin)))
    stopped = roll.action or spread.move
    if (
        stopped is not None
        and certificates.is_ready
        and not any(resource_of(action) == STATEFUL_SETS for action in actions)
    ):
        actions.append(stopped)

    found = Findings(
        scale, roll, storage, move_plan, certificates,
        listener_addresses(cluster, observed, scale.pods, external.addresses), store, spread, hibernation, snapshots,
        restore,
    )  # fmt: skip
    status = status_of(cluster, observed, found)
    plan = ReconcilePlan(
        status,
        () if cluster.spec.paused else tuple(actions),
        (
            *condition_events(cluster, status, is_rolling=bool(roll.outdated)),
            *proposal_events(cluster, status),
            *snapshots.events,
            *restore.events,
        ),
        requeue_after(cluster, observed, found, bool(actions), holds, facts.may_evict),
    )
    return ReconcileOutcome(plan, moves.planned if moves is not None else planned if moving else None)


def without_changes(scale: ScalePlan, pods: int | None) -> ScalePlan:
    """Return the plan for brokers whose number does not change now."""
    return replace(scale, pods=scale.pods if pods is None else pods, shrinks=False, changes=(), cancels=())


def plan_store_of(
    cluster: Cluster, observed: ObservedCluster, hibernation: HibernationPlan, restore: RestorePlan
) -> StorePlan:
    """Plan the etcd. An etcd that hibernation or a restore stopped is not unhealthy. While it is restored, no member is
    replaced."""
    if hibernation.is_store_stopped:
        return StorePlan(None, hibernation.phase, hibernation.message)
    store = plan_store(cluster, observed)
    if restore.is_active and store.reason and store.is_healthy is not True:
        return StorePlan(None, RESTORING, restore.message)
    if hibernation.phase == "Waking" and store.reason and store.is_healthy is not True:
        return replace(store, is_healthy=None, reason="Waking")
    if store.reason in FORMING_REASONS and is_forming(cluster, observed.now):
        return replace(store, reason=FORMING)
    return store


def is_forming(cluster: Cluster, now: str) -> bool:
    """Whether the cluster was created recently and its etcd has not been healthy yet."""
    age = seconds_between(cluster.metadata.creation_timestamp, now)
    before = next((c.reason for c in cluster.status.conditions if c.type == "StateStore"), FORMING)
    return before == FORMING and age is not None and age < FORMING_TIMEOUT_S


def etcd_members(cluster: Cluster, observed: ObservedCluster, recorded: cluster_annotations.ClusterAnnotations) -> int:
    """Return the number of sidecar etcd members, which is fixed at creation. The pod template takes precedence over the
    annotation, which users with write access to ConfigMaps can change."""
    spec = ((observed.stateful_set or {}).get("spec", {}).get("template") or {}).get("spec") or {}
    for container in spec.get("initContainers") or ():
        for variable in container.get("env") or ():
            if variable.get("name") == "ETCD_NAMES" and variable.get("value"):
                count = len(str(variable["value"]).split(","))
                if count in etcd.MEMBERS:
                    return count
    return recorded.etcd_members or members_of_claims(observed) or etcd.members_for(cluster.spec.brokers.replicas)


def annotate_claims(observed: ObservedCluster, members: int) -> list[AnnotateClaim]:
    """Return the actions that record the number of etcd members at etcd claims."""
    return [
        AnnotateClaim(claim.name, members)
        for claim in observed.claims
        if claim.template == names.ETCD_CLAIM and claim.ordinal < members and not claim.members
        if not claim.is_terminating
    ]


def plan_applies(
    cluster: Cluster,
    observed: ObservedCluster,
    facts: objects.RenderContext,
    scale: ScalePlan,
    skipped: set[KubeResource],
    revert: KubeEvent | None,
) -> list[ApplyObject | ScaleDownStatefulSet]:
    """Return the actions for objects that are missing or differ from the rendered ones. `revert`: see
    `scale_revert_event`."""
    found: list[ApplyObject | ScaleDownStatefulSet] = []
    for resource, body in objects.render(cluster, facts):
        name = body["metadata"]["name"]
        live = observed.live.get((resource, name))
        why = apply_reason(resource, body, live, observed)
        if not why or resource in skipped:
            continue
        if resource == STATEFUL_SETS and scale.shrinks and live is not None:
            version = str(live["metadata"].get("resourceVersion") or "")
            found.append(ScaleDownStatefulSet(body, tuple(sorted(scale.leaving)), version, revert))
        elif resource == STATEFUL_SETS:
            found.append(ApplyObject(resource, body, why, is_new=live is None, seen=live, event=revert))
        else:
            found.append(ApplyObject(resource, body, why, is_new=live is None))
    return found


def apply_reason(resource: KubeResource, body: Object, live: Object | None, observed: ObservedCluster) -> str:
    """Return why an object must be applied, or ""."""
    if live is None:
        return "it does not exist"
    different = compare.difference(compared_fields(body), live)
    if different is None:
        return ""
    if observed.accepted_drift.get((resource, body["metadata"]["name"])) == drift_digest(body, live):
        return ""
    return f"{different} differs"


def compared_fields(body: Object) -> Object:
    """Return the parts of a rendered object that are compared with the live one."""
    return {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}


def drift_digest(body: Object, live: Object) -> str:
    """Return the hash of an applied object and the live result."""
    kept = {key: value for key, value in live.items() if key not in ("metadata", "status")}
    return compare.digest([body, kept])


def unwanted_policies(cluster: Cluster, observed: ObservedCluster) -> list[DeleteObject]:
    """Return the action that deletes a NetworkPolicy that is disabled."""
    there = observed.live.get((NETWORK_POLICIES, names.network_policy(cluster.metadata.name)))
    if there is None or has_network_policy(cluster) or not is_own(cluster, there):
        return []
    return [DeleteObject(NETWORK_POLICIES, there["metadata"]["name"], there["metadata"]["uid"])]


def resource_of(action: ClusterAction) -> KubeResource | None:
    """Return the resource that an action applies or deletes."""
    match action:
        case ApplyObject(resource=resource) | DeleteObject(resource=resource):
            return resource
        case ScaleDownStatefulSet():
            return STATEFUL_SETS
        case _:
            return None


def requeue_after(
    cluster: Cluster, observed: ObservedCluster, found: Findings, acts: bool, holds: bool, may_evict: bool
) -> float | None:
    """Return the requeue interval in seconds; None if events and the resync suffice."""
    if cluster.spec.paused:
        return None
    if found.hibernation.is_stopping:  # the API server reports each change until the cluster is to wake
        pauses = (found.hibernation.requeue_after_s, found.certificates.requeue_after_s, 1.0 if acts else None)
        return min((time for time in pauses if time is not None), default=None)
    times = [found.hibernation.requeue_after_s, found.scale.requeue_after_s]
    times += [found.roll.requeue_after_s, found.storage.requeue_after_s]
    times += [found.certificates.requeue_after_s, found.store.requeue_after_s, found.spread.requeue_after_s]
    times += [found.snapshots.requeue_after_s, found.restore.requeue_after_s]
    is_unmeasured = found.move_plan.proposal is not None and found.move_plan.proposal.bytes is None
    if acts or found.moving or is_unmeasured or found.roll.action is not None or found.scale.leaving:
        times.append(BUSY_INTERVAL_S)
    if holds:
        times.append(1.0)
    ready = sum(pod.is_ready for pod in observed.pods)
    reported = observed.reported
    if reported is None or ready < found.scale.pods or reported.partitions.under_replicated or not may_evict:
        times.append(WAIT_INTERVAL_S)
    elif len(reported.snapshot.brokers) < found.scale.pods:
        times.append(BUSY_INTERVAL_S)
    return min((time for time in times if time is not None), default=None)
