"""Plans the restore of the companion etcd from a snapshot (`etcd.restore`), which is done once. Used by `reconcile`.

The record in the ConfigMap has the phase; each phase is decided from what is observed, so that another operator
continues it. Nothing is replaced before the snapshot was restored beside the data of all members: until then a failure
starts etcd again as it was. The brokers detect the restored etcd, freeze, and report what they know (decision 0021).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.snapshots import Restore, RestoreStatus
from penstock_operator.ports.kube import PODS, KubeEvent, Object
from penstock_operator.reconcile.cluster.actions import ClusterAction, CreateRestorePod, DeleteObject, ScaleStore
from penstock_operator.reconcile.cluster.hibernation import HibernationPlan, has_quorum, hibernation_blocker
from penstock_operator.reconcile.cluster.observed import ObservedCluster, seconds_between
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedTaskPod
from penstock_operator.reconcile.cluster.scale import ScalePlan, current_pods, join_numbers
from penstock_operator.specs import companion, names
from penstock_operator.specs import restore as specs
from penstock_operator.specs import snapshots as snapshot_specs
from penstock_operator.specs.cluster_annotations import (
    FINAL_PHASES,
    ClusterAnnotations,
    RestorePhase,
    RestoreRecord,
)

STEP_INTERVAL_S = 1.0
"""Requeue interval while etcd is restored."""
WAIT_INTERVAL_S = 5.0
"""Requeue interval while another operation must end first."""
START_TIMEOUT_S = 180.0
"""Time that a pod may need to start. The brokers are without etcd meanwhile."""
RETRY_S = 10.0
"""Minimum time between two attempts to recover."""
DETECTION_S = 60.0
"""Time after which brokers that are ready have compared etcd with what they know."""
MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True)
class RestoreImages:
    """Images of the pods."""

    operator: str
    broker: str


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The record of the restore, actions and Events. `record` None: there was no restore."""

    record: RestoreRecord | None = None
    actions: tuple[ClusterAction, ...] = ()
    events: tuple[KubeEvent, ...] = ()
    requeue_after_s: float | None = None

    @property
    def phase(self) -> str:
        """Phase, or ""."""
        return self.record.phase if self.record is not None else ""

    @property
    def is_active(self) -> bool:
        """Whether the restore has started and not ended: other operations wait."""
        return self.record is not None and self.record.phase not in (*FINAL_PHASES, "Waiting")

    @property
    def message(self) -> str:
        """Message of condition Restored, and of conditions that wait for the restore."""
        if self.record is None:
            return ""
        done = {"Completed": "was restored", "Failed": "was not restored", "Refused": "is not restored"}
        text = f"snapshot {self.record.snapshot} {done.get(self.record.phase, 'is being restored')}"
        return text + (f": {self.record.message}" if self.record.message else "")

    @property
    def status(self) -> RestoreStatus | None:
        """The status."""
        return RestoreStatus(**msgspec.structs.asdict(self.record)) if self.record is not None else None


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """The result of a phase: the next one, or the same with what it waits for."""

    phase: RestorePhase
    message: str = ""
    actions: tuple[ClusterAction, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoreInput:
    """What the phases decide from. `brokers`: number of brokers."""

    cluster: Cluster
    observed: ObservedCluster
    store: ObservedStore
    record: RestoreRecord
    endpoints: Mapping[int, str]
    brokers: int
    images: RestoreImages
    restore: Restore = field(init=False)

    def __post_init__(self) -> None:
        restore = Restore(snapshot=self.record.snapshot, request=self.record.request)
        object.__setattr__(self, "restore", restore)

    @property
    def set_name(self) -> str:
        """Name of etcd's StatefulSet."""
        assert self.cluster.spec.etcd.stateful_set is not None, "member_endpoints requires a StatefulSet"
        return self.cluster.spec.etcd.stateful_set

    def scaled_to(self, replicas: int) -> tuple[ScaleStore, ...]:
        """Return the action that scales etcd, if it is necessary."""
        return () if self.store.replicas == replicas else (ScaleStore(self.set_name, replicas),)


def plan_restore(
    cluster: Cluster,
    observed: ObservedCluster,
    recorded: ClusterAnnotations,
    hibernation: HibernationPlan,
    scale: ScalePlan,
    images: RestoreImages,
) -> RestorePlan:
    """Plan the next step."""
    before = recorded.restore or record_of(cluster.status.restore)
    record, wish = before, cluster.spec.etcd.restore
    may_change = record is None or record.phase in (*FINAL_PHASES, "Waiting", "Verifying")
    if wish is not None and may_change and not is_request(record, wish):
        record = RestoreRecord(
            snapshot=wish.snapshot, request=wish.request, phase="Waiting", start_time=observed.now
        )  # fmt: skip
    if record is None:
        return RestorePlan()
    store, endpoints = observed.store, companion.member_endpoints(cluster)
    if wish is None and record.phase in ("Waiting", "Verifying", "Failed", "Refused"):
        return RestorePlan(None, delete_tasks(cluster, store))
    if record.phase in FINAL_PHASES:
        return RestorePlan(record, delete_tasks(cluster, store))
    brokers = current_pods(cluster, observed) or scale.pods
    if cluster.spec.paused:
        step = RestoreStep(record.phase, "spec.paused is true")
    elif endpoints is None:
        step = misplaced(record)
    elif store is None or store.replicas is None:
        why = f'StatefulSet "{cluster.spec.etcd.stateful_set}" was not read, or its pods lack label'
        step = RestoreStep(record.phase, f"{why} {names.CLUSTER_LABEL}: {cluster.metadata.name}")
    else:
        given = RestoreInput(cluster, observed, store, record, endpoints, brokers, images)
        if record.phase == "Waiting":
            step = start(given, start_blocker(given, recorded, hibernation, scale))
        else:
            step = PHASES[record.phase](given)
    return planned(before, record, step, observed.now)


def planned(before: RestoreRecord | None, record: RestoreRecord, step: RestoreStep, now: str) -> RestorePlan:
    """Return the plan with the new phase, and the Event about it."""
    message = "".join(c if c.isprintable() else " " for c in step.message)[:MAX_MESSAGE_CHARS]
    is_final = step.phase in FINAL_PHASES
    after = msgspec.structs.replace(record, phase=step.phase, message=message, end_time=now if is_final else "")
    plan = RestorePlan(after, step.actions, requeue_after_s=STEP_INTERVAL_S)
    events: tuple[KubeEvent, ...] = ()
    if before is None or place_of(before) != place_of(after):
        is_error = step.phase in ("Failed", "Refused", "Reverting")
        events = (KubeEvent("Warning" if is_error else "Normal", f"Restore{step.phase}", plan.message),)
    interval = None if is_final else WAIT_INTERVAL_S if step.phase == "Waiting" else STEP_INTERVAL_S
    return RestorePlan(after, step.actions, events, interval)


def place_of(record: RestoreRecord) -> tuple[str, str, str]:
    """Return snapshot, request and phase."""
    return record.snapshot, record.request, record.phase


def record_of(status: RestoreStatus | None) -> RestoreRecord | None:
    """Return the record in the status, for a ConfigMap that was deleted."""
    if status is None:
        return None
    try:
        return msgspec.convert(msgspec.structs.asdict(status), RestoreRecord)
    except msgspec.ValidationError:
        return None


def is_request(record: RestoreRecord | None, wish: Restore) -> bool:
    """Whether the record is about this request."""
    return record is not None and (record.snapshot, record.request) == (wish.snapshot, wish.request)


def misplaced(record: RestoreRecord) -> RestoreStep:
    """Return the step for an etcd whose members are not pods of the StatefulSet."""
    why = "etcd.endpoints are not the addresses of the pods of etcd.statefulSet"
    return RestoreStep("Refused", again(why)) if record.phase == "Waiting" else RestoreStep(record.phase, why)


def again(why: str) -> str:
    """Return the message of a request that ended without a restore."""
    return f"{why}; nothing has changed; to try again, set etcd.restore.request to another text, or remove etcd.restore"


def start(given: RestoreInput, blocker: str) -> RestoreStep:
    """Start the restore if it is safe, and if nothing has to end first."""
    if why := refusal(given):
        return RestoreStep("Refused", again(why))
    if left := delete_tasks(given.cluster, given.store):
        return RestoreStep("Waiting", "waiting: pods of another request are deleted", left)
    if blocker:
        return RestoreStep("Waiting", f"waiting: {blocker}")
    return RestoreStep("Verifying")


def refusal(given: RestoreInput) -> str:
    """Return why a restore would be unsafe, or ""."""
    if given.cluster.status.cluster_id is None:
        return "the Cluster has not been Ready yet, so its brokers cannot tell what the snapshot lacks"
    claims = {claim.ordinal: claim for claim in given.observed.claims if claim.template == names.DATA_CLAIM}
    bound = {n for n, claim in claims.items() if claim.phase == "Bound" and not claim.is_terminating}
    if lost := sorted(set(range(given.brokers)) - bound):
        return (
            f"broker {join_numbers(lost)} has no data volume, so records that only it has would be lost; restore its"
            f" claim {names.claim(names.DATA_CLAIM, given.cluster.metadata.name, lost[0])} first"
        )
    return ""


def start_blocker(
    given: RestoreInput, recorded: ClusterAnnotations, hibernation: HibernationPlan, scale: ScalePlan
) -> str:
    """Return what must end before etcd stops, or "". Without a quorum, no operation continues, so none is awaited."""
    cluster, store = given.cluster, given.store
    if hibernation.is_active or hibernation.phase == "Postponed":
        return "the cluster hibernates"
    if not given.images.operator:
        return "the operator does not know its image: set OPERATOR_IMAGE"
    if store.task(snapshot_specs.pod_name(cluster.metadata.name)) is not None:
        return "a snapshot is being taken"
    if store.report is None or store.report.members is None:
        return ""
    if store.replicas and store.replicas != len(cluster.spec.etcd.endpoints):
        return "the number of members of etcd is being changed"
    if why := hibernation_blocker(cluster, given.observed, recorded, scale):
        return why
    rolled = next((each for each in cluster.status.conditions if each.type == "Rolled"), None)
    return rolled.message if rolled is not None and rolled.status == "False" else ""


def verify(given: RestoreInput) -> RestoreStep:
    """Read the snapshot before etcd stops."""
    name = specs.verify_name(given.cluster.metadata.name)
    if given.cluster.spec.etcd.snapshots is None:
        return RestoreStep("Failed", again("etcd.snapshots was removed"))
    task = given.store.task(name)
    if task is None:
        body = specs.verify_pod(
            given.cluster, given.restore, given.images.operator, given.store.pod_spec, given.observed.now
        )
        return RestoreStep("Verifying", "", (CreateRestorePod(body),))
    if problem := failure_of(task, given.observed.now):
        return RestoreStep("Failed", again(problem))
    if not task.has_ended:
        return RestoreStep("Verifying", task.message)
    return RestoreStep("Stopping", "", given.scaled_to(0))


def stop(given: RestoreInput) -> RestoreStep:
    """Stop etcd."""
    if running := is_running(given):
        return RestoreStep("Stopping", *running)
    return prepare(given)


def is_running(given: RestoreInput) -> tuple[str, tuple[ClusterAction, ...]] | None:
    """Return message and actions if etcd runs, also if another client has started it again; else None."""
    if given.store.replicas or given.store.pods:
        return f"{len(given.store.pods)} members of etcd are stopping", given.scaled_to(0)
    return None


def prepare(given: RestoreInput) -> RestoreStep:
    """Restore the snapshot beside the data of each member. A volume of snapshots may be mountable by one pod only."""
    if running := is_running(given):
        return RestoreStep("Preparing", *running)
    snapshots = given.cluster.spec.etcd.snapshots
    if snapshots is None:
        return revert(given, "etcd.snapshots was removed")

    def body(ordinal: int) -> Object:
        return specs.prepare_pod(
            given.cluster, given.restore, given.images.operator, given.store.pod_spec, given.endpoints, ordinal,
            given.observed.now,
        )  # fmt: skip

    tasks = {n: given.store.task(specs.prepare_name(given.cluster.metadata.name, n)) for n in given.endpoints}
    for ordinal, task in tasks.items():
        if task is not None and (problem := failure_of(task, given.observed.now)):
            return revert(given, f"member {ordinal}: {problem}")
    left = [n for n, task in tasks.items() if task is None or not task.has_ended]
    if not left:
        return install(given)
    missing = [n for n in left[: 1 if snapshots.volume is not None else None] if tasks[n] is None]
    message = f"{len(tasks) - len(left)} of {len(tasks)} members have the snapshot beside their data"
    return RestoreStep("Preparing", message, tuple(CreateRestorePod(body(n)) for n in missing))


def install(given: RestoreInput) -> RestoreStep:
    """Replace the data of all members. It is a rename, so what fails is repeated."""
    if running := is_running(given):
        return RestoreStep("Installing", *running)
    cluster, actions, problem, done = given.cluster, list[ClusterAction](), "", 0
    for ordinal in given.endpoints:
        task = given.store.task(specs.install_name(cluster.metadata.name, ordinal))
        if task is None:
            body = specs.install_pod(
                cluster, given.restore, given.images.operator, given.store.pod_spec, ordinal, given.observed.now
            )
            actions.append(CreateRestorePod(body))
        elif why := failure_of(task, given.observed.now):
            problem = f"; member {ordinal}: {why}"
            actions += deletion(task)
        else:
            done += task.has_ended
    if done == len(given.endpoints):
        return RestoreStep("Starting", "", given.scaled_to(len(given.endpoints)))
    message = f"{done} of {len(given.endpoints)} members have the data of the snapshot{problem}"
    return RestoreStep("Installing", message, tuple(actions))


def wait_for_store(given: RestoreInput) -> RestoreStep:
    """Start etcd with the restored data."""
    members, names_left = len(given.endpoints), member_tasks(given)
    used = [task for task in given.store.tasks if task.name in names_left and task.has_ended]
    actions: tuple[ClusterAction, ...] = given.scaled_to(members)
    actions += tuple(action for task in used for action in deletion(task))
    if given.store.replicas == members and has_quorum(given.store, members):
        return RestoreStep("Recovering", "", actions)
    ready = sum(pod.is_ready for pod in given.store.pods)
    problems = [f"; {pod.name}: {pod.problem}" for pod in given.store.pods if pod.problem]
    return RestoreStep("Starting", f"{ready} of {members} members are ready{''.join(problems[:1])}", actions)


def member_tasks(given: RestoreInput) -> set[str]:
    """Return the names of the pods that mount volumes of members."""
    cluster = given.cluster.metadata.name
    return {name(cluster, n) for n in given.endpoints for name in (specs.prepare_name, specs.install_name)}


def recover(given: RestoreInput) -> RestoreStep:
    """Let the brokers continue as soon as all have reported. A recovery that was completed cannot be repeated: then
    the brokers are ready."""
    task = given.store.task(specs.recover_name(given.cluster.metadata.name))
    if task is None:
        body = specs.recover_pod(given.cluster, given.images.broker, range(given.brokers), given.observed.now)
        return RestoreStep("Recovering", "waiting for the reports of the brokers", (CreateRestorePod(body),))
    if task.is_done:
        return RestoreStep("Completed")
    problem, age = failure_of(task, given.observed.now), seconds_between(task.started_at, given.observed.now)
    if not problem:
        return RestoreStep("Recovering", task.message or given.record.message)
    is_late = age is None or age >= DETECTION_S
    if is_late and given.observed.reported is not None and serves(given):
        return RestoreStep("Completed")
    actions = deletion(task) if age is None or age >= RETRY_S else ()
    return RestoreStep("Recovering", f"the recovery is repeated: {problem}", actions)


def serves(given: RestoreInput) -> bool:
    """Whether all brokers are ready. A frozen broker is not."""
    ready = {pod.ordinal for pod in given.observed.pods if pod.is_ready}
    return ready >= set(range(given.brokers))


def revert(given: RestoreInput, why: str) -> RestoreStep:
    """Start etcd with the data before the restore."""
    members = len(given.endpoints)
    if given.store.replicas != members:
        return RestoreStep("Reverting", why, given.scaled_to(members))
    return RestoreStep("Failed", again(why))


def failure_of(task: ObservedTaskPod, now: str) -> str:
    """Return why a pod failed or does not start, or ""."""
    if task.is_terminating or task.is_done:
        return ""
    if not task.has_ended:
        age = seconds_between(task.started_at, now)
        if task.is_running or (age is not None and age < START_TIMEOUT_S):
            return ""
        minutes = START_TIMEOUT_S / 60
        return f"pod {task.name} did not start in {minutes:.0f} minutes: {task.message or 'no reason is known'}"
    try:
        error = msgspec.json.decode(task.message.encode(), type=TaskError).error
    except (msgspec.DecodeError, UnicodeError):
        error = task.message.strip()[-300:]
    return f"pod {task.name} failed: {error or 'it ended without a result'}"


class TaskError(msgspec.Struct, frozen=True):
    """The error in the termination message of a pod, by `snapshots.tasks.TaskResult`."""

    error: str = ""


def deletion(task: ObservedTaskPod) -> tuple[DeleteObject, ...]:
    """Return the action that deletes a pod."""
    return () if task.is_terminating else (DeleteObject(PODS, task.name, task.uid),)


def delete_tasks(cluster: Cluster, store: ObservedStore | None) -> tuple[DeleteObject, ...]:
    """Return the actions that delete the pods of a restore that has ended."""
    taking = snapshot_specs.pod_name(cluster.metadata.name)
    tasks = store.tasks if store is not None else ()
    return tuple(action for task in tasks if task.name != taking for action in deletion(task))


PHASES: Mapping[str, Callable[[RestoreInput], RestoreStep]] = {
    "Verifying": verify,
    "Stopping": stop,
    "Preparing": prepare,
    "Installing": install,
    "Starting": wait_for_store,
    "Recovering": recover,
    "Reverting": lambda given: revert(given, given.record.message),
}
