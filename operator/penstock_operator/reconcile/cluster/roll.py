"""Rolling restart of pods with an outdated configuration, one at a time and only if it is safe.

A serving pod restarts only if all others serve and are in sync, so each partition loses at most one replica. Partitions
with more replicas than min.insync.replicas stay writable; the status reports the others
(`PartitionSummary.at_min_isr`), which only the user can change. The controller restarts last. An outdated pod that does
not run, or whose broker has no in-sync replica, restarts immediately, so the next change can fix a bad one. Readiness
alone is not sufficient: without etcd no broker is ready although all serve. Unknown state counts as unsafe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_operator.model.cluster import Cluster
from penstock_operator.reconcile.cluster.actions import RestartPod
from penstock_operator.reconcile.cluster.founded import is_founded
from penstock_operator.reconcile.cluster.observed import ObservedCluster, ObservedPod, seconds_between
from penstock_operator.specs import names
from penstock_operator.specs.cluster_annotations import ClusterAnnotations
from penstock_operator.specs.listeners import advertises_pod, client_listeners

SETTLE_S = 5.0
"""Time for which a pod must be ready before the next restart: broker state and endpoints of Services propagate with a
delay."""
CACHED_NAME_S = 30.0
"""Time for which DNS servers return the former address of a pod, or none: the default of CoreDNS."""
RESTART_S = 60.0
"""Expected duration of a restart and of catching up, before a waiting roll counts as blocked."""
MAX_RESTARTED_AT_CHARS = 40
"""Maximum length of the time of a requested restart in messages; users can write any text."""


@dataclass(frozen=True, slots=True)
class PodRevision:
    """What a pod must have been started with."""

    configuration: str
    """Hash of the configuration."""
    restarted_at: str = ""
    """Last `kubectl rollout restart`; empty: none."""
    requested: frozenset[str] = frozenset()
    """UIDs of the pods whose restart was requested."""

    def mismatch(self, pod: ObservedPod) -> str:
        """Return why a pod has another revision, or ""."""
        if pod.restart != self.configuration:
            return "its pod does not have the desired configuration"
        if self.restarted_at and pod.restarted_at != self.restarted_at:
            return f"`kubectl rollout restart` was run at {self.restarted_at[:MAX_RESTARTED_AT_CHARS]}"
        if pod.uid in self.requested:
            return f"annotation {names.RESTART_PODS} requests it"
        return ""


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """State of a roll: `outdated` brokers, the next restart, and why it waits.

    Once all brokers have the desired configuration, `outdated` are those that are not back and in sync yet.
    """

    outdated: tuple[int, ...] = ()
    action: RestartPod | None = None
    waits: str = ""
    reason: str = ""
    """Reason of condition Rolled: Rolling, Waiting or Blocked."""
    requeue_after_s: float | None = None
    must_restart: bool = True
    """Whether the `outdated` brokers have another configuration. False at the end of a roll."""


def plan_roll(
    cluster: Cluster, observed: ObservedCluster, restart: str, pods: int, members: int, annotations: ClusterAnnotations
) -> RollingRestart:
    """Plan the next restart. `restart`: desired hash; `pods`: desired number; `members`: number of sidecar etcd
    members."""
    there = [pod for pod in observed.pods if pod.ordinal < pods]
    desired = PodRevision(restart, requested_restart(observed), requested_pods(cluster))
    outdated = [pod for pod in there if not pod.is_terminating and restart_reason(pod, desired, annotations)]
    if not outdated:
        return await_last_restart(cluster, observed, there, pods, desired)
    numbers = tuple(sorted(pod.ordinal for pod in outdated))
    quorum = members if cluster.spec.etcd.sidecar is not None else 0
    may_go = may_restart_running(cluster, observed, there, desired)
    for pod in sorted(outdated, key=lambda pod: pod.ordinal):
        if pod.is_ready or (pod.is_running and not (may_go and are_others_running(pod, there, pods))):
            continue
        if is_safe_to_restart(pod, observed, quorum):
            return RollingRestart(numbers, restart_action(pod, desired, annotations), reason="Rolling")
    if waits := roll_blocker(cluster, there, observed, pods):
        return RollingRestart(numbers, None, waits, waiting(there, observed, pods), 5.0)
    assert observed.reported is not None, "roll_blocker requires a broker report"
    controller = observed.reported.snapshot.controller_id
    chosen = min((pod for pod in outdated if pod.is_ready), key=lambda pod: (pod.ordinal == controller, pod.ordinal))
    if waits := restart_blocker(chosen, observed):
        return RollingRestart(numbers, None, waits, waiting(there, observed, pods), 5.0)
    return RollingRestart(numbers, restart_action(chosen, desired, annotations), reason="Rolling")


def await_last_restart(
    cluster: Cluster, observed: ObservedCluster, there: Sequence[ObservedPod], pods: int, desired: PodRevision
) -> RollingRestart:
    """Return the end of a roll: it is over when the pod that was restarted last serves and has its replicas in
    sync."""
    is_rolling = any(c.type == "Rolled" and c.status == "False" for c in cluster.status.conditions)
    ending = tuple(pod.ordinal for pod in there if pod.is_terminating and desired.mismatch(pod))
    if not is_rolling and not ending:
        return RollingRestart()
    by_ordinal = {pod.ordinal: pod for pod in there}
    away = [n for n in range(pods) if not (pod := by_ordinal.get(n)) or pod.is_terminating or not pod.is_ready]
    waits = roll_blocker(cluster, there, observed, pods)
    if not waits and observed.reported is not None:
        out_of_sync = observed.reported.partitions.out_of_sync
        away = sorted(number for number, count in out_of_sync.items() if count and number < pods)
        waits = f"replicas of broker {away[0]} are not in sync" if away else ""
    if not waits:
        return RollingRestart()
    numbers = tuple(away) or tuple(sorted(by_ordinal))
    return RollingRestart(numbers, None, waits, waiting(there, observed, pods), SETTLE_S, must_restart=False)


def settle_time_s(cluster: Cluster) -> float:
    """Return the time in seconds for which a pod must be ready before the next one stops: until clients reach it."""
    has_pod_names = any(advertises_pod(cluster, listener) for listener in client_listeners(cluster))
    return SETTLE_S + CACHED_NAME_S if has_pod_names else SETTLE_S


def may_evict(cluster: Cluster, observed: ObservedCluster, pods: int) -> bool:
    """Whether a node drain may evict a ready broker: all pods have been ready for `settle_time_s`, and all their
    replicas are in sync. Replicas of brokers without a pod and offline partitions do not block: waiting does not fix
    them. If brokers do not answer, readiness decides, so that node drains do not hang."""
    by_ordinal, settle_s = observed.by_ordinal, settle_time_s(cluster)
    for ordinal in range(pods):
        pod = by_ordinal.get(ordinal)
        if pod is None or not pod.is_ready or pod.is_terminating:
            return False
        since = seconds_between(pod.ready_since, observed.now)
        if since is not None and since < settle_s:
            return False
    out_of_sync = observed.reported.partitions.out_of_sync if observed.reported is not None else {}
    return not any(out_of_sync.get(ordinal) for ordinal in range(pods))


def waiting(there: Sequence[ObservedPod], observed: ObservedCluster, pods: int) -> str:
    """Return the reason of a waiting roll: Waiting between restarts, Blocked if it needs intervention."""
    if any(pod.problem for pod in there):
        return "Blocked"
    if len(there) < pods or any(pod.is_terminating for pod in there):
        return "Waiting"
    since = [seconds_between(pod.ready_since, observed.now) for pod in there]
    return "Waiting" if any(s is None or s < RESTART_S for s in since) else "Blocked"


def requested_restart(observed: ObservedCluster) -> str:
    """Return the last `kubectl rollout restart`, or "". It is in the pod template, and if that was recreated, in the
    pods that restarted since."""
    spec = ((observed.stateful_set or {}).get("spec") or {}).get("template") or {}
    recorded = ((spec.get("metadata") or {}).get("annotations") or {}).get(names.RESTARTED_AT)
    return str(recorded or "") or max((pod.restarted_at for pod in observed.pods), default="")


def requested_pods(cluster: Cluster) -> frozenset[str]:
    """Return the UIDs of the pods whose restart a user requested."""
    words = cluster.metadata.annotations.get(names.RESTART_PODS, "").split(",")
    return frozenset(word for word in map(str.strip, words) if word)


def restart_action(pod: ObservedPod, desired: PodRevision, annotations: ClusterAnnotations) -> RestartPod:
    """Return the action that restarts a pod."""
    return RestartPod(pod.name, pod.uid, pod.ordinal, restart_reason(pod, desired, annotations))


def restart_reason(pod: ObservedPod, desired: PodRevision, annotations: ClusterAnnotations) -> str:
    """Return why a pod must restart, or "": it has another revision or does not know its external address."""
    if why := desired.mismatch(pod):
        return why
    is_unaware = bool(pod.uid) and annotations.external_unknown_to.get(pod.ordinal) == pod.uid
    return "its external address changed" if is_unaware else ""


def may_restart_running(
    cluster: Cluster, observed: ObservedCluster, there: Sequence[ObservedPod], desired: PodRevision
) -> bool:
    """Whether running pods that are not ready may restart. Without a broker report: only if no cluster was formed yet,
    or if all pods are outdated, to test the new configuration with one of them."""
    if observed.reported is not None:
        return True
    if any(pod.is_ready for pod in observed.pods):
        return False
    return not is_founded(cluster, observed) or all(desired.mismatch(pod) for pod in there)


def are_others_running(pod: ObservedPod, there: Sequence[ObservedPod], pods: int) -> bool:
    """Whether all other pods run, because running pods restart one at a time."""
    others = [other for other in there if other.ordinal != pod.ordinal]
    return len(others) >= pods - 1 and all(other.is_running and not other.is_terminating for other in others)


def is_safe_to_restart(pod: ObservedPod, observed: ObservedCluster, members: int) -> bool:
    """Whether restarting an unready pod costs neither the etcd quorum nor an in-sync replica. `members` 0: no
    sidecar."""
    if pod.ordinal < members and pod.is_etcd_ready:
        left = sum(p.is_etcd_ready for p in observed.pods if p.ordinal < members and p.ordinal != pod.ordinal)
        if left < members // 2 + 1:
            return False
    if not pod.is_running or observed.reported is None:
        return True
    if all(broker.broker_id != pod.ordinal for broker in observed.reported.snapshot.brokers):
        return True
    return not observed.reported.partitions.in_sync.get(pod.ordinal)


def roll_blocker(cluster: Cluster, there: Sequence[ObservedPod], observed: ObservedCluster, pods: int) -> str:
    """Return why no serving pod may restart, or ""."""
    settle_s = settle_time_s(cluster)
    by_ordinal = {pod.ordinal: pod for pod in there}
    for ordinal in range(pods):
        pod = by_ordinal.get(ordinal)
        if pod is None:
            return f"broker {ordinal} has no pod yet" + (f": {observed.missing_pod}" if observed.missing_pod else "")
        if pod.is_terminating:
            return f"broker {ordinal} is terminating"
        if not pod.is_ready:
            return f"broker {ordinal} is not ready" + (f" ({pod.problem})" if pod.problem else "")
    if observed.reported is None:
        return f"the brokers do not answer: {observed.brokers_error}"
    registered = {broker.broker_id for broker in observed.reported.snapshot.brokers}
    for pod in there:
        if pod.ordinal not in registered:
            return f"broker {pod.ordinal} is not registered in the cluster"
        since = seconds_between(pod.ready_since, observed.now)
        if since is not None and since < settle_s:
            return f"broker {pod.ordinal} became ready less than {settle_s:.0f} s ago"
    return ""


def restart_blocker(pod: ObservedPod, observed: ObservedCluster) -> str:
    """Return why a serving pod may not restart although all others serve, or ""."""
    assert observed.reported is not None, "roll_blocker requires a broker report"
    if unknown_min_insync := observed.reported.unknown_min_insync:
        more = f" and {len(unknown_min_insync) - 1:,} more" if len(unknown_min_insync) > 1 else ""
        because = (
            f": {observed.reported.unknown_min_insync_reason}" if observed.reported.unknown_min_insync_reason else ""
        )
        return f"min.insync.replicas of topic {unknown_min_insync[0]}{more} is unknown{because}"
    partitions = observed.reported.partitions
    out_of_sync = {broker: count for broker, count in partitions.out_of_sync.items() if broker != pod.ordinal and count}
    if out_of_sync:
        broker, count = max(out_of_sync.items(), key=lambda item: item[1])
        return f"{count:,} replicas of broker {broker} are not in sync"
    if partitions.offline:
        return f"{partitions.offline:,} partitions have no leader"
    return ""
