"""Plans snapshots of etcd: condition Snapshots, and the pod that takes one when it is due.

The pod's termination message is the result. The status has the time of the last attempt, from which the next one is
due, so that another operator continues the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.snapshots import Snapshots, SnapshotsStatus
from penstock_operator.ports.kube import PODS, KubeEvent
from penstock_operator.reconcile.cluster.actions import ClusterAction, CreatePod, DeleteObject
from penstock_operator.reconcile.cluster.observed import ObservedCluster, seconds_between
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedTaskPod
from penstock_operator.specs import snapshots as specs

RETRY_S = 300.0
"""Time after a failed attempt at which the next one starts."""
WAIT_S = 30.0
"""Requeue interval while a snapshot is due and etcd has no quorum."""
PENDING_S = 600.0
"""Time that a pod may need to start."""
OVERDUE_INTERVALS = 2
"""Age of the last snapshot, in intervals, from which condition Snapshots is False."""
MAX_ERROR_CHARS = 500
MAX_STORED = 20
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """Condition Snapshots, the status, actions. `status` None: no snapshots are configured."""

    status: SnapshotsStatus | None = None
    is_current: bool | None = None
    reason: str = ""
    message: str = ""
    actions: tuple[ClusterAction, ...] = ()
    events: tuple[KubeEvent, ...] = ()
    requeue_after_s: float | None = None


class SnapshotResult(msgspec.Struct, frozen=True, rename="camel"):
    """The termination message of a pod, by `snapshots.tasks.TaskResult`. Its values are not trusted."""

    name: str = ""
    size_bytes: int = 0
    sha256: str = ""
    stored: tuple[str, ...] = ()
    error: str = ""


def plan_snapshots(cluster: Cluster, observed: ObservedCluster, image: str, *, waits: str = "") -> SnapshotPlan:
    """Plan the snapshots. `image` is that of the operator, `waits` why no snapshot may start now."""
    snapshots, store = cluster.spec.etcd.snapshots, observed.store
    pod = store.task(specs.pod_name(cluster.metadata.name)) if store is not None else None
    if snapshots is None or store is None:
        unwanted = () if pod is None else (DeleteObject(PODS, pod.name, pod.uid),)
        return SnapshotPlan(actions=unwanted)
    before = cluster.status.snapshots or SnapshotsStatus()
    status, ended = record_result(before, pod, observed.now)
    actions: list[ClusterAction] = []
    requeue_after_s: float | None = None
    if pod is not None:
        if ended:
            actions.append(DeleteObject(PODS, pod.name, pod.uid))
        elif not pod.is_running:
            requeue_after_s = PENDING_S
    else:
        waits = waits or start_blocker(store, image)
        due_s = seconds_until_due(snapshots, status, observed.now)
        if due_s > 0:
            requeue_after_s = due_s
        elif waits:
            requeue_after_s = WAIT_S
        else:
            body = specs.snapshot_pod(cluster, snapshots, image, observed.now)
            actions.append(CreatePod(body))
    is_current, reason, message = condition(snapshots, status, observed.now, waits)
    return SnapshotPlan(
        status, is_current, reason, message, tuple(actions), result_events(before, status), requeue_after_s
    )


def start_blocker(store: ObservedStore, image: str) -> str:
    """Return why no snapshot can be taken, or ""."""
    if not image:
        return "the operator does not know its image: set OPERATOR_IMAGE"
    if store.report is None:
        return store.error
    return "" if store.report.members is not None else f"etcd has no quorum: {store.report.members_error}"


def seconds_until_due(snapshots: Snapshots, status: SnapshotsStatus, now: str) -> float:
    """Return the time until the next attempt; 0 or less: it is due."""
    since = seconds_between(status.attempt_time, now) if status.attempt_time else None
    if since is None or since < 0:
        return 0.0
    interval_s = snapshots.interval_minutes * 60.0
    return (min(RETRY_S, interval_s) if status.error else interval_s) - since


def record_result(before: SnapshotsStatus, pod: ObservedTaskPod | None, now: str) -> tuple[SnapshotsStatus, bool]:
    """Return the status with the result of the pod, and whether the pod has ended or will not start."""
    if pod is None or pod.is_terminating:
        return before, False
    if not pod.has_ended:
        age = seconds_between(pod.started_at, now)
        if pod.is_running or (age is not None and age < PENDING_S):
            return before, False
        error = f"pod {pod.name} did not start in {PENDING_S / 60:.0f} minutes: {pod.message or 'no reason is known'}"
        return failed(before, error, now), True
    ended_at = pod.ended_at or now
    try:
        result = msgspec.json.decode(pod.message.encode(), type=SnapshotResult)
    except (msgspec.DecodeError, UnicodeError):
        return failed(before, f"pod {pod.name}: {pod.message or 'it ended without a result'}", ended_at), True
    taken = specs.time_of(result.name)
    if not pod.is_done or result.error or taken is None:
        return failed(before, result.error or "it ended without a result", ended_at), True
    return SnapshotsStatus(
        last_name=result.name,
        last_time=taken,
        last_size_bytes=max(result.size_bytes, 0),
        last_sha256=result.sha256[:64],
        stored=tuple(name for name in result.stored[:MAX_STORED] if specs.time_of(name) is not None),
        attempt_time=ended_at,
    ), True


def failed(before: SnapshotsStatus, error: str, at: str) -> SnapshotsStatus:
    """Return the status after a failed attempt."""
    text = "".join(c if c.isprintable() else " " for c in error)[:MAX_ERROR_CHARS]
    return msgspec.structs.replace(before, error=text, attempt_time=at)


def condition(snapshots: Snapshots, status: SnapshotsStatus, now: str, waits: str) -> tuple[bool | None, str, str]:
    """Return status, reason and message of condition Snapshots."""
    last = f"the last snapshot is {status.last_name}, {size_text(status.last_size_bytes)}" if status.last_name else ""
    because = f"; waiting: {waits}" if waits else ""
    if status.error:
        return False, "Failed", f"the last attempt failed: {status.error}; {last or 'there is no snapshot'}"
    if not status.last_name:
        return None, "Pending", f"no snapshot was taken yet{because}"
    age_s = seconds_between(status.last_time, now)
    if age_s is None or age_s > OVERDUE_INTERVALS * snapshots.interval_minutes * 60:
        return False, "Overdue", f"{last}, older than {OVERDUE_INTERVALS} intervals{because}"
    return True, "Stored", last


def result_events(before: SnapshotsStatus, status: SnapshotsStatus) -> tuple[KubeEvent, ...]:
    """Return the Event about the attempt that ended."""
    if status.attempt_time == before.attempt_time:
        return ()
    if status.error:
        return (KubeEvent("Warning", "SnapshotFailed", f"the snapshot of etcd failed: {status.error}"),)
    text = f"stored snapshot {status.last_name} of etcd, {size_text(status.last_size_bytes)}"
    return (KubeEvent("Normal", "SnapshotStored", f"{text}, SHA-256 {status.last_sha256}"),)


def size_text(size: int) -> str:
    """Return a size for messages."""
    return f"{-(-size // MIB):,} MiB"
