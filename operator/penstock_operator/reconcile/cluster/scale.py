"""How many pods there are to be now, which brokers are drained, and what is said about it.

More pods come at once. Fewer come by draining the highest ordinals until the brokers say that each is empty; only then
does the StatefulSet shrink, once. Everything follows from what is observed and from the notes, so that it does not
matter when the operator is interrupted; a wish that is taken back, or cannot be fulfilled, takes the drains back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock_operator.model.cluster import MAX_BROKERS, Cluster
from penstock_operator.ports.brokers import ConfigPatch
from penstock_operator.reconcile.cluster.founded import is_founded
from penstock_operator.reconcile.cluster.observed import ObservedCluster, ReportedState
from penstock_operator.specs.cluster_annotations import ClusterAnnotations
from penstock_operator.specs.settings import DRAINING


@dataclass(frozen=True, slots=True)
class ScaleReconciler:
    pods: int
    """That there are to be now."""
    shrinks: bool = False
    draining: frozenset[int] = frozenset()
    """For the notes: brokers that the operator has drained, those that are gone included."""
    changes: tuple[ConfigPatch, ...] = ()
    cancels: tuple[tuple[str, int], ...] = ()
    """Partitions whose moves are taken back with a drain."""
    moving: str | None = None
    """Why replicas are to be moved from now on; None leaves that as it is."""
    ok: bool = True
    reason: str = "AsWanted"
    message: str = ""
    look_again_s: float | None = None
    left: int | None = None
    """Replicas that drained brokers still hold."""
    leaving: frozenset[int] = field(default_factory=frozenset)
    """Brokers that are being drained now."""


def pods_there(cluster: Cluster, observed: ObservedCluster) -> int | None:
    """How many pods the StatefulSet has, or had where it is gone: its pods and the status tell. None for a new cluster,
    whose first pods are not there yet."""
    live = observed.stateful_set
    if live is not None:
        replicas = live.get("spec", {}).get("replicas")
        return 1 if replicas is None else min(int(replicas), MAX_BROKERS)
    known = [pod.ordinal for pod in observed.pods]
    if is_founded(cluster, observed):  # brokers that hold replicas are not forgotten with their pods
        known += [broker.id for broker in cluster.status.brokers if broker.id < MAX_BROKERS]
    return max(max(known) + 1, cluster.spec.brokers.replicas) if known else None


def plan_scale(cluster: Cluster, observed: ObservedCluster, notes: ClusterAnnotations, members: int) -> ScaleReconciler:
    """`members`: of the sidecar etcd, 0 where there is none."""
    wanted, there = cluster.spec.brokers.replicas, pods_there(cluster, observed)
    if there is None and wanted < members:  # of an earlier Cluster of this name, whose volumes were kept
        reason, message = why_below_members(members)
        return ScaleReconciler(members, False, notes.draining, ok=False, reason=reason, message=message)
    if there is None:
        return ScaleReconciler(wanted, draining=notes.draining)
    if wanted >= there:
        return _grow(cluster, observed, notes, there)
    if refusal := why_not_fewer(observed, notes, wanted, members):
        reason, message = refusal
        return _taken_back(cluster, observed, notes, there, kept=there, reason=reason, message=message)
    return _drain(cluster, observed, notes, there)


def _grow(cluster: Cluster, observed: ObservedCluster, notes: ClusterAnnotations, there: int) -> ScaleReconciler:
    wanted = cluster.spec.brokers.replicas
    if wanted == there:
        return _taken_back(cluster, observed, notes, there, kept=wanted)
    more = f"{wanted - there} broker{'s' * (wanted - there > 1)} added"
    back = _taken_back(cluster, observed, notes, wanted, kept=wanted)
    # Whoever had these numbers before was drained, maybe by an operator whose notes are gone.
    new = frozenset(range(there, wanted))
    return ScaleReconciler(
        wanted, False, back.draining | new, back.changes, back.cancels, more, False, "ScalingUp",
        f"{there} of {wanted} brokers are there", 2.0,
    )  # fmt: skip


def _taken_back(
    cluster: Cluster,
    observed: ObservedCluster,
    notes: ClusterAnnotations,
    pods: int,
    *,
    kept: int,
    reason: str = "",
    message: str = "",
) -> ScaleReconciler:
    """No broker below `kept` is drained by the operator any more."""
    said = observed.said
    draining, back = kept_again(said, notes, kept)
    moving = None
    if back and not notes.moving:
        moving = f"the removal of brokers {words(back)} taken back" if len(back) > 1 else f"broker {back[0]} kept"
    return ScaleReconciler(
        pods,
        draining=draining,
        changes=undrained(back),
        cancels=leaving_moves(said, frozenset(back)) if said is not None and back else (),
        moving=moving,
        ok=not reason,
        reason=reason or "AsWanted",
        message=message or _as_wanted(observed, pods),
        look_again_s=2.0 if back or not all_told(said, draining, kept) else 30.0 if reason else None,
    )


def kept_again(said: ReportedState | None, notes: ClusterAnnotations, kept: int) -> tuple[frozenset[int], list[int]]:
    """What is to be noted of drains, and which brokers below `kept` the operator drains and is not to any more.

    A broker that has only just come, and does not answer yet, may still be draining from its earlier life.
    """
    draining, back = set(notes.draining), []
    for broker in said.picture.brokers if said is not None else ():
        if broker.broker_id in draining and broker.broker_id < kept:
            if broker.is_draining:
                back.append(broker.broker_id)
            elif broker.answers:
                draining.discard(broker.broker_id)
    return frozenset(draining), back


def all_told(said: ReportedState | None, draining: frozenset[int], kept: int) -> bool:
    """Whether of each broker below `kept` that may be drained it is known whether it is."""
    brokers = said.picture.brokers if said is not None else ()
    return all(b.answers or b.broker_id not in draining or b.broker_id >= kept for b in brokers)


def undrained(brokers: list[int]) -> tuple[ConfigPatch, ...]:
    return tuple(ConfigPatch(str(n), {DRAINING: None}) for n in brokers)


def _as_wanted(observed: ObservedCluster, pods: int) -> str:
    return f"{pods} broker{'s' * (pods != 1)}"


def why_below_members(members: int) -> tuple[str, str]:
    return (
        "BelowEtcdMembers",
        f"brokers 0 to {members - 1} carry the {members} members of etcd, so there must be at least {members}:"
        f" set brokers.replicas to {members} or more",
    )


def why_not_fewer(
    observed: ObservedCluster, notes: ClusterAnnotations, wanted: int, members: int
) -> tuple[str, str] | None:
    """Reason and message, where so few brokers cannot be."""
    if wanted < members:
        return why_below_members(members)
    if observed.said is None:
        return None
    draining = [b.broker_id for b in observed.said.picture.brokers if b.is_draining and b.broker_id < wanted]
    by_hand = [n for n in draining if n not in notes.draining]
    usable = wanted - len(by_hand)
    if topics := observed.said.partitions.wanting_more_than(usable):
        drained = f" (and broker {words(by_hand)} is being drained by somebody)" if by_hand else ""
        return (
            "TooFewBrokers",
            f"{wanted} brokers{drained} cannot hold these topics, which want more replicas: {topics}."
            " Lower their replication factor, or set brokers.replicas higher",
        )
    return None


def _drain(cluster: Cluster, observed: ObservedCluster, notes: ClusterAnnotations, there: int) -> ScaleReconciler:
    wanted = cluster.spec.brokers.replicas
    leaving = frozenset(range(wanted, there))
    said = observed.said
    if said is None:
        if not is_founded(cluster, observed) and not any(pod.is_ready for pod in observed.pods):
            return ScaleReconciler(wanted, True, notes.draining, message="no cluster was formed yet", look_again_s=2.0)
        message = f"draining waits until the brokers answer: {observed.brokers_error}"
        return ScaleReconciler(
            there, False, notes.draining, (), (), None, False, "Waiting", message, 5.0, None, leaving
        )
    registered = {broker.broker_id: broker for broker in said.picture.brokers}
    away = [n for n in range(wanted) if n not in registered]
    noted, back = kept_again(said, notes, wanted)  # where fewer still were wanted before
    draining = noted | leaving
    full = sorted(n for n in leaving if not is_empty(n, said))
    if not full:
        return ScaleReconciler(
            wanted, True, draining, ok=False, reason="ScalingDown", look_again_s=2.0, left=0, leaving=leaving,
            message=f"broker {words(leaving)} {'is' if len(leaving) == 1 else 'are'} empty",
        )  # fmt: skip
    left = sum(said.partitions.held.get(n, 0) for n in leaving)
    if away and not all(registered[n].is_draining for n in full if n in registered):
        message = f"draining waits for broker {words(away)}, which is to take replicas and is away"
        return ScaleReconciler(
            there, False, notes.draining, (), (), None, False, "Waiting", message, 5.0, left, leaving
        )
    begun = tuple(
        ConfigPatch(str(n), {DRAINING: "true"})
        for n in sorted(leaving)
        if n in registered and not registered[n].is_draining
    )
    missing = [n for n in full if n not in registered]
    waits = f"; broker {words(missing)} is away and holds replicas" if missing else ""
    return ScaleReconciler(
        there, False, draining, (*undrained(back), *begun), leaving_moves(said, frozenset(back)), "", False, "Draining",
        f"broker {words(full)} {'is' if len(full) == 1 else 'are'} being emptied: {left:,} replicas left{waits}",
        3.0, left, leaving,
    )  # fmt: skip


def is_empty(broker_id: int, said: ReportedState) -> bool:
    """Whether a broker can be removed: it says so, or it is not there and nothing is assigned to it."""
    for broker in said.picture.brokers:
        if broker.broker_id == broker_id:
            return broker.is_draining and broker.is_removable and not said.partitions.held.get(broker_id)
    return not said.partitions.held.get(broker_id)


def leaving_moves(said: ReportedState, brokers: frozenset[int]) -> tuple[tuple[str, int], ...]:
    """Partitions that are being moved off these brokers."""
    return tuple(
        (name, index)
        for name, topic in said.topics.items()
        for index, part in enumerate(topic.partitions)
        if part.removing and not brokers.isdisjoint(part.removing)
    )


def words(numbers: frozenset[int] | list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(numbers)))
