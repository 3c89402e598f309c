"""Plans the number of pods, drains of brokers, and condition Scaled.

Scaling up adds all pods at once. Scaling down drains the highest ordinals until the brokers report them empty, and then
shrinks the StatefulSet once. The plan depends only on observed state and annotations, so the operator can be
interrupted at any time. A scale-down that is reverted or impossible reverts the drains.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock_operator.model.cluster import MAX_BROKERS, Cluster
from penstock_operator.ports.brokers import ConfigPatch
from penstock_operator.ports.kube import KubeEvent, Object
from penstock_operator.reconcile.cluster.founded import is_founded
from penstock_operator.reconcile.cluster.observed import ObservedCluster, ReportedState
from penstock_operator.specs import names
from penstock_operator.specs.cluster_annotations import ClusterAnnotations
from penstock_operator.specs.settings import DRAINING


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """Result of planning the number of brokers."""

    pods: int
    """Desired number of pods now."""
    shrinks: bool = False
    draining: frozenset[int] = frozenset()
    """`ClusterAnnotations.draining` to record, including removed brokers."""
    changes: tuple[ConfigPatch, ...] = ()
    cancels: tuple[tuple[str, int], ...] = ()
    """Partitions whose reassignments are cancelled because a drain is reverted."""
    moving: str | None = None
    """Reason of replica moves to record; None: unchanged."""
    ok: bool = True
    reason: str = "AsWanted"
    message: str = ""
    requeue_after_s: float | None = None
    left: int | None = None
    """Replicas left on draining brokers."""
    leaving: frozenset[int] = field(default_factory=frozenset)
    """Brokers that are being removed."""


def current_pods(cluster: Cluster, observed: ObservedCluster) -> int | None:
    """Return the replicas of the StatefulSet, and at least those that the operator applied: brokers that another client
    scaled away may hold replicas. If it is gone, derive them from pods and status. None for a new cluster."""
    live = observed.stateful_set
    if live is not None:
        return min(max(live_replicas(live), applied_replicas(live) or 0), MAX_BROKERS)
    known = [pod.ordinal for pod in observed.pods]
    if is_founded(cluster, observed):  # brokers without pods may hold replicas
        known += [broker.id for broker in cluster.status.brokers if broker.id < MAX_BROKERS]
    return max(max(known) + 1, cluster.spec.brokers.replicas) if known else None


def live_replicas(stateful_set: Object) -> int:
    """Return `spec.replicas` of a StatefulSet."""
    replicas = (stateful_set.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)


def applied_replicas(stateful_set: Object) -> int | None:
    """Return the replicas that the operator applied last; None if unknown, because users can write annotations."""
    text = str((stateful_set["metadata"].get("annotations") or {}).get(names.REPLICAS) or "")
    is_number = text.isdecimal() and len(text) <= len(str(MAX_BROKERS)) and int(text) <= MAX_BROKERS
    return int(text) if is_number else None


def scale_revert_event(cluster: Cluster, observed: ObservedCluster) -> KubeEvent | None:
    """Return the Event that explains why a scaling of the StatefulSet by another client is reverted."""
    live, name, desired = observed.stateful_set, cluster.metadata.name, cluster.spec.brokers.replicas
    applied = applied_replicas(live) if live is not None else None
    if live is None or applied is None or live_replicas(live) in (applied, desired):
        return None
    replicas = live_replicas(live)
    return KubeEvent(
        "Warning",
        "ScaleReverted",
        f'reverting the scaling of StatefulSet "{names.stateful_set(name)}" from {applied} to {replicas} replicas:'
        f" Cluster.spec.brokers.replicas is {desired}; to change it, run `kubectl scale clusters.penstock.io/{name}"
        f" --replicas={replicas}`",
    )


def plan_scale(cluster: Cluster, observed: ObservedCluster, annotations: ClusterAnnotations, members: int) -> ScalePlan:
    """Plan the number of brokers, and drains that a user requested. `members`: number of sidecar etcd members, or 0."""
    requested = requested_drains(cluster)
    others = replace(annotations, draining=annotations.draining - requested)
    plan = plan_size(cluster, observed, others, members)
    recorded = plan.draining | annotations.draining & requested
    return plan_drains(cluster, observed, replace(plan, draining=recorded), requested)


def requested_drains(cluster: Cluster) -> frozenset[int]:
    """Return the brokers that a user wants to drain; ignores words that are not numbers of brokers."""
    words = map(str.strip, cluster.metadata.annotations.get(names.DRAIN_BROKERS, "").split(","))
    numbers = (int(word) for word in words if word.isdecimal() and len(word) <= len(str(MAX_BROKERS)))
    return frozenset(number for number in numbers if number < cluster.spec.brokers.replicas)


def plan_drains(cluster: Cluster, observed: ObservedCluster, plan: ScalePlan, requested: frozenset[int]) -> ScalePlan:
    """Add the drains that a user requested to a plan. They start if the other brokers can hold all replicas."""
    reported = observed.reported
    if reported is None or not requested:
        return plan
    begun = sorted(
        broker.broker_id
        for broker in reported.snapshot.brokers
        if broker.broker_id in requested and not broker.is_draining and broker.answers
    )
    if not begun:
        return plan
    already = {b.broker_id for b in reported.snapshot.brokers if b.is_draining and b.broker_id < plan.pods}
    usable = cluster.spec.brokers.replicas - len(already | set(begun))
    if topics := reported.partitions.topics_needing_more_than(usable):
        message = (
            f"broker {join_numbers(begun)} cannot be drained: {usable} brokers are too few for the replication factor"
            f" of these topics: {topics}. Decrease their replication factor, or change annotation {names.DRAIN_BROKERS}"
        )
        return replace(plan, ok=False, reason="DrainRefused", message=message) if plan.ok else plan
    changes = tuple(ConfigPatch(str(n), {DRAINING: "true"}) for n in begun)
    return replace(plan, draining=plan.draining | set(begun), changes=(*plan.changes, *changes), requeue_after_s=2.0)


def plan_size(cluster: Cluster, observed: ObservedCluster, annotations: ClusterAnnotations, members: int) -> ScalePlan:
    """Plan the number of brokers."""
    desired, there = cluster.spec.brokers.replicas, current_pods(cluster, observed)
    if there is None and desired < members:  # an earlier Cluster of this name, with retained volumes
        reason, message = below_members(members)
        return ScalePlan(members, False, annotations.draining, ok=False, reason=reason, message=message)
    if there is None:
        return ScalePlan(desired, draining=annotations.draining)
    if desired >= there:
        return _grow(cluster, observed, annotations, there)
    if refusal := scale_down_blocker(observed, annotations, desired, members):
        reason, message = refusal
        return _revert_drains(cluster, observed, annotations, there, kept=there, reason=reason, message=message)
    return _drain(cluster, observed, annotations, there)


def _grow(cluster: Cluster, observed: ObservedCluster, annotations: ClusterAnnotations, there: int) -> ScalePlan:
    desired = cluster.spec.brokers.replicas
    if desired == there:
        return _revert_drains(cluster, observed, annotations, there, kept=desired)
    more = f"{desired - there} broker{'s' * (desired - there > 1)} added"
    back = _revert_drains(cluster, observed, annotations, desired, kept=desired)
    # Earlier brokers with these ids were drained, possibly by an operator whose annotations are lost.
    new = frozenset(range(there, desired))
    return ScalePlan(
        desired, False, back.draining | new, back.changes, back.cancels, more, False, "ScalingUp",
        f"{there} of {desired} brokers exist", 2.0,
    )  # fmt: skip


def _revert_drains(
    cluster: Cluster,
    observed: ObservedCluster,
    annotations: ClusterAnnotations,
    pods: int,
    *,
    kept: int,
    reason: str = "",
    message: str = "",
) -> ScalePlan:
    """Revert the operator's drains of brokers with ids below `kept`."""
    reported = observed.reported
    draining, back = reverted_drains(reported, annotations, kept)
    moving = None
    if back and not annotations.moving:
        moving = f"removal of brokers {join_numbers(back)} reverted" if len(back) > 1 else f"broker {back[0]} kept"
    return ScalePlan(
        pods,
        draining=draining,
        changes=undrain_patches(back),
        cancels=leaving_moves(reported, frozenset(back)) if reported is not None and back else (),
        moving=moving,
        ok=not reason,
        reason=reason or "AsWanted",
        message=message or _describe_size(observed, pods),
        requeue_after_s=2.0 if back or not are_drains_known(reported, draining, kept) else 30.0 if reason else None,
    )


def reverted_drains(
    reported: ReportedState | None, annotations: ClusterAnnotations, kept: int
) -> tuple[frozenset[int], list[int]]:
    """Return the drains to record, and the brokers below `kept` whose drain by the operator must be reverted.

    A new broker that does not answer yet may still have the draining setting of an earlier broker with its id.
    """
    draining, back = set(annotations.draining), []
    for broker in reported.snapshot.brokers if reported is not None else ():
        if broker.broker_id in draining and broker.broker_id < kept:
            if broker.is_draining:
                back.append(broker.broker_id)
            elif broker.answers:
                draining.discard(broker.broker_id)
    return frozenset(draining), back


def are_drains_known(reported: ReportedState | None, draining: frozenset[int], kept: int) -> bool:
    """Whether the draining state of all recorded brokers below `kept` is known."""
    brokers = reported.snapshot.brokers if reported is not None else ()
    return all(b.answers or b.broker_id not in draining or b.broker_id >= kept for b in brokers)


def undrain_patches(brokers: list[int]) -> tuple[ConfigPatch, ...]:
    """Return the changes that end drains."""
    return tuple(ConfigPatch(str(n), {DRAINING: None}) for n in brokers)


def _describe_size(observed: ObservedCluster, pods: int) -> str:
    return f"{pods} broker{'s' * (pods != 1)}"


def below_members(members: int) -> tuple[str, str]:
    """Return reason and message for a number of brokers below the number of etcd members."""
    return (
        "BelowEtcdMembers",
        f"brokers 0 to {members - 1} run the {members} etcd members: set brokers.replicas to at least {members}",
    )


def scale_down_blocker(
    observed: ObservedCluster, annotations: ClusterAnnotations, desired: int, members: int
) -> tuple[str, str] | None:
    """Return reason and message if the cluster cannot have only `desired` brokers, otherwise None."""
    if desired < members:
        return below_members(members)
    if observed.reported is None:
        return None
    draining = [b.broker_id for b in observed.reported.snapshot.brokers if b.is_draining and b.broker_id < desired]
    by_hand = [n for n in draining if n not in annotations.draining]
    usable = desired - len(by_hand)
    if topics := observed.reported.partitions.topics_needing_more_than(usable):
        drained = f" (broker {join_numbers(by_hand)} is drained manually)" if by_hand else ""
        return (
            "TooFewBrokers",
            f"{desired} brokers{drained} are too few for the replication factor of these topics: {topics}."
            " Decrease their replication factor, or increase brokers.replicas",
        )
    return None


def _drain(cluster: Cluster, observed: ObservedCluster, annotations: ClusterAnnotations, there: int) -> ScalePlan:
    desired = cluster.spec.brokers.replicas
    leaving = frozenset(range(desired, there))
    reported = observed.reported
    if reported is None:
        if not is_founded(cluster, observed) and not any(pod.is_ready for pod in observed.pods):
            return ScalePlan(
                desired, True, annotations.draining, message="no cluster has formed yet", requeue_after_s=2.0
            )
        message = f"draining waits until the brokers answer: {observed.brokers_error}"
        return ScalePlan(
            there, False, annotations.draining, (), (), None, False, "Waiting", message, 5.0, None, leaving
        )
    registered = {broker.broker_id: broker for broker in reported.snapshot.brokers}
    away = [n for n in range(desired) if n not in registered]
    recorded, back = reverted_drains(reported, annotations, desired)  # if an even smaller number was desired before
    draining = recorded | leaving
    full = sorted(n for n in leaving if not is_empty(n, reported))
    if not full:
        return ScalePlan(
            desired, True, draining, ok=False, reason="ScalingDown", requeue_after_s=2.0, left=0, leaving=leaving,
            message=f"broker {join_numbers(leaving)} {'is' if len(leaving) == 1 else 'are'} empty",
        )  # fmt: skip
    left = sum(reported.partitions.replica_counts.get(n, 0) for n in leaving)
    if away and not all(registered[n].is_draining for n in full if n in registered):
        message = f"draining waits for broker {join_numbers(away)}, which must receive replicas and is down"
        return ScalePlan(
            there, False, annotations.draining, (), (), None, False, "Waiting", message, 5.0, left, leaving
        )
    begun = tuple(
        ConfigPatch(str(n), {DRAINING: "true"})
        for n in sorted(leaving)
        if n in registered and not registered[n].is_draining
    )
    missing = [n for n in full if n not in registered]
    waits = f"; broker {join_numbers(missing)} is down and holds replicas" if missing else ""
    return ScalePlan(
        there, False, draining, (*undrain_patches(back), *begun), leaving_moves(reported, frozenset(back)), "", False,
        "Draining",
        f"broker {join_numbers(full)} {'is' if len(full) == 1 else 'are'} being drained: {left:,} replicas left{waits}",
        3.0, left, leaving,
    )  # fmt: skip


def is_empty(broker_id: int, reported: ReportedState) -> bool:
    """Whether a broker can be removed: it reports that, or it is not registered and has no replicas."""
    for broker in reported.snapshot.brokers:
        if broker.broker_id == broker_id:
            return broker.is_draining and broker.is_removable and not reported.partitions.replica_counts.get(broker_id)
    return not reported.partitions.replica_counts.get(broker_id)


def leaving_moves(reported: ReportedState, brokers: frozenset[int]) -> tuple[tuple[str, int], ...]:
    """Return the partitions with reassignments away from these brokers."""
    return tuple(
        (name, index)
        for name, topic in reported.topics.items()
        for index, part in enumerate(topic.partitions)
        if part.removing and not brokers.isdisjoint(part.removing)
    )


def join_numbers(numbers: frozenset[int] | list[int] | tuple[int, ...]) -> str:
    """Return the sorted numbers, comma-separated."""
    return ", ".join(map(str, sorted(numbers)))
