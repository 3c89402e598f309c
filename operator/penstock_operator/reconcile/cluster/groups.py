"""The groups of pods of a cluster that should run on different nodes, and why they may not stop now. Used by
`reconcile`."""

from __future__ import annotations

from penstock_operator.model.cluster import Cluster
from penstock_operator.reconcile.cluster.observed import ObservedCluster, ObservedPod, seconds_between
from penstock_operator.reconcile.cluster.roll import RollingRestart, restart_blocker, roll_blocker
from penstock_operator.reconcile.cluster.scale import ScalePlan
from penstock_operator.reconcile.cluster.spread import PlacedPod, PodGroup
from penstock_operator.reconcile.cluster.store_members import StorePlan
from penstock_operator.specs.cluster_annotations import BROKER_GROUP, ETCD_GROUP

SETTLE_S = 30.0
"""Time for which the members of etcd must be ready before one of them moves."""
MIN_MEMBERS = 3
"""Number of members from which etcd keeps its quorum while one moves."""


def spread_groups(
    cluster: Cluster,
    observed: ObservedCluster,
    scale: ScalePlan,
    roll: RollingRestart,
    store: StorePlan,
    *,
    is_changing: bool,
) -> list[PodGroup]:
    """Return the groups whose pods ask the scheduler to spread them: etcd first, because brokers need it.
    `is_changing`: whether another operation on the brokers is in progress."""
    brokers = broker_group(cluster, observed, scale, roll, store, is_changing=is_changing)
    etcd = etcd_group(cluster, observed, store, brokers_wait=not_serving(cluster, observed, scale.pods))
    groups = [group for group in (etcd, brokers) if group is not None and len(group.pods) > 1]
    return [group for group in groups if all(pod.requirements.prefers_apart for pod in group.pods)]


def etcd_group(cluster: Cluster, observed: ObservedCluster, store: StorePlan, *, brokers_wait: str) -> PodGroup | None:
    """Return the members of the companion etcd, or None."""
    if cluster.spec.etcd.stateful_set is None or observed.store is None or observed.store.report is None:
        return None
    statuses, pods = observed.store.report.statuses.values(), observed.store.pods
    leaders = {status.leader_id for status in statuses}
    size = len(cluster.spec.etcd.endpoints)
    blocker = brokers_wait
    if store.is_healthy is not True:
        blocker = "etcd is not healthy"
    elif len(pods) < max(size, MIN_MEMBERS):
        blocker = f"etcd has {len(pods)} members, and a move requires {max(size, MIN_MEMBERS)}"
    elif any(not pod.is_ready or pod.is_terminating for pod in pods):
        blocker = "a member of etcd is not ready"
    elif any((seconds_between(pod.ready_since, observed.now) or 0.0) < SETTLE_S for pod in pods):
        blocker = f"a member of etcd became ready less than {SETTLE_S:.0f} s ago"
    by_host = {url.partition("//")[2].partition(".")[0]: s for url, s in observed.store.report.statuses.items()}
    placed = tuple(
        PlacedPod(
            pod.name, pod.uid, pod.node, pod.requirements,
            rank=int((status := by_host.get(pod.name)) is not None and status.member_id in leaders),
        )
        for pod in pods
    )  # fmt: skip
    return PodGroup(ETCD_GROUP, "members of etcd", placed, size, blocker)


def broker_group(
    cluster: Cluster,
    observed: ObservedCluster,
    scale: ScalePlan,
    roll: RollingRestart,
    store: StorePlan,
    *,
    is_changing: bool,
) -> PodGroup:
    """Return the brokers. The controller moves last."""
    pods = [pod for pod in observed.pods if pod.ordinal < scale.pods]
    reported = observed.reported
    if is_changing or scale.leaving or not scale.ok or roll.outdated:
        blocker = "another change of the brokers is in progress"
    elif store.is_healthy is False:
        blocker = "etcd is not healthy"
    else:
        blocker = not_serving(cluster, observed, scale.pods)
    placed = tuple(
        PlacedPod(
            pod.name, pod.uid, pod.node, pod.requirements,
            rank=int(reported is not None and reported.snapshot.controller_id == pod.ordinal),
            blocker=move_blocker(pod, observed),
        )
        for pod in pods
    )  # fmt: skip
    return PodGroup(BROKER_GROUP, f"brokers of {cluster.metadata.name}", placed, scale.pods, blocker)


def not_serving(cluster: Cluster, observed: ObservedCluster, pods: int) -> str:
    """Return why not all brokers serve with all replicas in sync, or ""."""
    if waits := roll_blocker(cluster, [pod for pod in observed.pods if pod.ordinal < pods], observed, pods):
        return waits
    assert observed.reported is not None, "roll_blocker requires a broker report"
    out_of_sync = sorted(broker for broker, count in observed.reported.partitions.out_of_sync.items() if count)
    return f"replicas of broker {out_of_sync[0]} are not in sync" if out_of_sync else ""


def move_blocker(pod: ObservedPod, observed: ObservedCluster) -> str:
    """Return why a broker may not move although all brokers serve, or "". Unlike a roll, which has to happen, a move
    never makes a partition unavailable."""
    if observed.reported is None:
        return observed.brokers_error
    if waits := restart_blocker(pod, observed):
        return waits
    partitions = observed.reported.partitions
    if count := partitions.single_replica.get(pod.ordinal, 0):
        return f"{count:,} partitions of broker {pod.ordinal} have a single replica"
    if count := partitions.count_at_min_isr((pod.ordinal,)):
        return f"{count:,} partitions would reject writes without broker {pod.ordinal}"
    return ""
