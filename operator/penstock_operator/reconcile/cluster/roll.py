"""Restarts pods that were started with something else than what is wanted: one at a time, and only when that is safe.

A pod that serves goes only when all others serve and are in sync, so that each partition keeps all of its replicas but
one: with more replicas than its min.insync.replicas asks for, clients notice nothing. Those with no more are told of
(`Partitions.tight`), as nothing but the user can help them. The controller goes last. A pod that is outdated and does
not run, or whose broker is in sync nowhere, goes at once: it is no loss, and a change that was bad is mended by the
next one. Not to be ready alone says little: without etcd no broker is, and all serve. Whatever is not known counts as
unsafe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_operator.model.cluster import Cluster
from penstock_operator.reconcile.cluster.actions import RestartPod
from penstock_operator.reconcile.cluster.founded import is_founded
from penstock_operator.reconcile.cluster.observed import ObservedCluster, ObservedPod, seconds_between
from penstock_operator.specs.cluster_annotations import ClusterAnnotations

SETTLE_S = 5.0
"""How long a pod must have been ready before the next one goes: what brokers tell each other takes a moment."""
RESTART_S = 60.0
"""For which a broker that restarts, and what it has to fetch, is nothing to worry about."""


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """`outdated` are brokers that are yet to be restarted; `waits` says why none is now."""

    outdated: tuple[int, ...] = ()
    action: RestartPod | None = None
    waits: str = ""
    reason: str = ""
    """The condition's: Rolling, Waiting or Blocked."""
    look_again_s: float | None = None


def plan_roll(
    cluster: Cluster, observed: ObservedCluster, restart: str, pods: int, members: int, notes: ClusterAnnotations
) -> RollingRestart:
    """`restart` is the hash that pods should have, `pods` how many there are to be, `members` a sidecar etcd's."""
    there = [pod for pod in observed.pods if pod.ordinal < pods]
    outdated = [pod for pod in there if not pod.is_terminating and is_outdated(pod, restart, notes)]
    if not outdated:
        return RollingRestart()
    numbers = tuple(sorted(pod.ordinal for pod in outdated))
    quorum = members if cluster.spec.etcd.sidecar is not None else 0
    may_go = may_running_go(cluster, observed, there, restart)
    for pod in sorted(outdated, key=lambda pod: pod.ordinal):
        if pod.is_ready or (pod.is_running and not (may_go and are_others_running(pod, there, pods))):
            continue
        if is_no_loss(pod, observed, quorum):
            return RollingRestart(numbers, restarted(pod), reason="Rolling")
    if waits := why_not_yet(there, observed, pods):
        return RollingRestart(numbers, None, waits, waiting(there, observed, pods), 5.0)
    assert observed.said is not None, "brokers that say nothing are waited for"
    controller = observed.said.picture.controller_id
    chosen = min((pod for pod in outdated if pod.is_ready), key=lambda pod: (pod.ordinal == controller, pod.ordinal))
    if waits := why_not_this(chosen, observed):
        return RollingRestart(numbers, None, waits, waiting(there, observed, pods), 5.0)
    return RollingRestart(numbers, restarted(chosen), reason="Rolling")


def may_leave(observed: ObservedCluster, pods: int) -> bool:
    """Whether a node that is drained may take a broker that is ready: when all are, for long enough that what brokers
    say is of after it, and none of them has a replica that is not in sync. Replicas of brokers that have no pod are
    not waited for, nor partitions without a leader while all brokers are ready: waiting brings neither back. Where
    brokers cannot be asked, ready pods are all that is known, and a drain must not hang for that."""
    by_ordinal = observed.by_ordinal
    for ordinal in range(pods):
        pod = by_ordinal.get(ordinal)
        if pod is None or not pod.is_ready or pod.is_terminating:
            return False
        since = seconds_between(pod.ready_since, observed.now)
        if since is not None and since < SETTLE_S:
            return False
    behind = observed.said.partitions.behind if observed.said is not None else {}
    return not any(behind.get(ordinal) for ordinal in range(pods))


def waiting(there: Sequence[ObservedPod], observed: ObservedCluster, pods: int) -> str:
    """The reason of a roll that waits: between two restarts, or for what does not end by itself."""
    if any(pod.problem for pod in there):
        return "Blocked"
    if len(there) < pods or any(pod.is_terminating for pod in there):
        return "Waiting"
    since = [seconds_between(pod.ready_since, observed.now) for pod in there]
    return "Waiting" if any(s is None or s < RESTART_S for s in since) else "Blocked"


def restarted(pod: ObservedPod) -> RestartPod:
    return RestartPod(pod.name, pod.uid, pod.ordinal)


def is_outdated(pod: ObservedPod, restart: str, notes: ClusterAnnotations) -> bool:
    if pod.restart != restart:
        return True
    return bool(pod.uid) and notes.external_unknown_to.get(pod.ordinal) == pod.uid


def may_running_go(cluster: Cluster, observed: ObservedCluster, there: Sequence[ObservedPod], restart: str) -> bool:
    """Whether a pod that runs and is not ready may go at all. Where nobody says what it holds: only while there is
    nothing to hold, and to find out with one of them whether that mends all."""
    if observed.said is not None:
        return True
    if any(pod.is_ready for pod in observed.pods):
        return False
    return not is_founded(cluster, observed) or all(pod.restart != restart for pod in there)


def are_others_running(pod: ObservedPod, there: Sequence[ObservedPod], pods: int) -> bool:
    """Pods that run go one at a time."""
    others = [other for other in there if other.ordinal != pod.ordinal]
    return len(others) >= pods - 1 and all(other.is_running and not other.is_terminating for other in others)


def is_no_loss(pod: ObservedPod, observed: ObservedCluster, members: int) -> bool:
    """Whether a pod that is not ready can go without taking anything away. `members` 0: there is no sidecar etcd."""
    if pod.ordinal < members and pod.is_etcd_ready:
        left = sum(p.is_etcd_ready for p in observed.pods if p.ordinal < members and p.ordinal != pod.ordinal)
        if left < members // 2 + 1:
            return False
    if not pod.is_running or observed.said is None:
        return True
    if all(broker.broker_id != pod.ordinal for broker in observed.said.picture.brokers):
        return True
    return not observed.said.partitions.in_sync.get(pod.ordinal)


def why_not_yet(there: Sequence[ObservedPod], observed: ObservedCluster, pods: int) -> str:
    """Why no pod that serves may go; empty where one may."""
    by_ordinal = {pod.ordinal: pod for pod in there}
    for ordinal in range(pods):
        pod = by_ordinal.get(ordinal)
        if pod is None:
            return f"broker {ordinal} has no pod yet"
        if pod.is_terminating:
            return f"broker {ordinal} is ending"
        if not pod.is_ready:
            return f"broker {ordinal} is not ready" + (f" ({pod.problem})" if pod.problem else "")
    if observed.said is None:
        return f"the brokers cannot be asked: {observed.brokers_error}"
    registered = {broker.broker_id for broker in observed.said.picture.brokers}
    for pod in there:
        if pod.ordinal not in registered:
            return f"broker {pod.ordinal} is not registered with the others"
        since = seconds_between(pod.ready_since, observed.now)
        if since is not None and since < SETTLE_S:
            return f"broker {pod.ordinal} has just become ready"
    return ""


def why_not_this(pod: ObservedPod, observed: ObservedCluster) -> str:
    """Why one that serves may not go although all others do; empty where it may."""
    assert observed.said is not None, "asked for before"
    if unsure := observed.said.unsure:
        more = f" and {len(unsure) - 1:,} more" if len(unsure) > 1 else ""
        because = f": {observed.said.unsure_why}" if observed.said.unsure_why else ""
        return f"min.insync.replicas of topic {unsure[0]}{more} is not known{because}"
    partitions = observed.said.partitions
    behind = {broker: count for broker, count in partitions.behind.items() if broker != pod.ordinal and count}
    if behind:
        broker, count = max(behind.items(), key=lambda item: item[1])
        return f"{count:,} replicas of broker {broker} are not in sync"
    if partitions.offline:
        return f"{partitions.offline:,} partitions have no leader"
    return ""
