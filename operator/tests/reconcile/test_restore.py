"""A restore of etcd: when it starts, what each phase decides from, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reconcile.cluster_tables import NOW, cluster, observed, pod, reported

from penstock_operator.model.cluster import Cluster
from penstock_operator.ports.kube import PODS
from penstock_operator.ports.state_store import StateStoreMember, StateStoreReport
from penstock_operator.reconcile.cluster.actions import CreateRestorePod, DeleteObject, ScaleStore
from penstock_operator.reconcile.cluster.hibernation import HibernationPlan
from penstock_operator.reconcile.cluster.observed import ObservedClaim, ObservedCluster
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedStorePod, ObservedTaskPod
from penstock_operator.reconcile.cluster.restore import RestoreImages, RestorePlan, plan_restore
from penstock_operator.reconcile.cluster.scale import ScalePlan
from penstock_operator.specs.cluster_annotations import ClusterAnnotations, RestoreRecord, read, written

SNAPSHOT = "etcd-20260301T000000Z"
URLS = [f"http://e-{n}.ns.svc:2379" for n in range(3)]
LISTED = tuple(StateStoreMember(n + 1, f"e-{n}", (f"http://e-{n}.ns.svc:2380",)) for n in range(3))
QUORUM = StateStoreReport(members=LISTED)
CLAIMS = tuple(ObservedClaim(f"data-c-broker-{n}", "data", n, "Bound", "1Gi") for n in range(3))
MEMBERS = tuple(ObservedStorePod(n, f"e-{n}", f"uid-{n}", is_ready=True) for n in range(3))
RUNNING = ObservedStore(QUORUM, pods=MEMBERS, replicas=3)
STOPPED = ObservedStore(None, "no answer", replicas=0)
IMAGES = RestoreImages("operator:1", "penstock:1")
AWAKE, NOTHING = HibernationPlan(), ClusterAnnotations()


def wished(**more: Any) -> Cluster:
    spec = {"snapshots": {"volume": {"claimName": "s"}}, "statefulSet": "e", "managed": True}
    status = more.pop("status", {})
    etcd = {"endpoints": URLS, **spec, "restore": {"snapshot": SNAPSHOT}, **more.pop("etcd", {})}
    return cluster(etcd=etcd, status=status, **more)


def record(phase: Any, **more: Any) -> RestoreRecord:
    return RestoreRecord(snapshot=SNAPSHOT, request="1", phase=phase, start_time=NOW, **more)


def task(name: str, *, done: bool | None = None, **more: Any) -> ObservedTaskPod:
    """Return a pod; `done` None: it runs."""
    made = ObservedTaskPod(f"c-etcd-{name}", "uid", started_at="2026-03-01T11:59:00Z", is_running=done is None)
    return replace(made, has_ended=done is not None, is_done=bool(done), **more)


def seen(store: ObservedStore | None = RUNNING, *tasks: ObservedTaskPod, **more: Any) -> ObservedCluster:
    if store is not None:
        store = replace(store, tasks=tasks)
    made = {"pods": [pod(n) for n in range(3)], "reported": reported(range(3)), "claims": CLAIMS, "replicas": 3}
    return observed(store=store, **{**made, **more})


def plan(
    there: ObservedCluster, before: RestoreRecord | None = None, *, wish: Cluster | None = None,
    hibernation: HibernationPlan = AWAKE, images: RestoreImages = IMAGES,
    recorded: ClusterAnnotations = NOTHING,
) -> RestorePlan:  # fmt: skip
    notes = replace(recorded, restore=before)
    return plan_restore(wished() if wish is None else wish, there, notes, hibernation, ScalePlan(3), images)


def created(found: RestorePlan) -> list[str]:
    return [a.body["metadata"]["name"] for a in found.actions if isinstance(a, CreateRestorePod)]


def test_without_the_field_nothing_happens() -> None:
    assert plan(seen(), wish=cluster()) == RestorePlan()
    assert plan(seen(None), wish=cluster()).status is None


def test_a_request_starts_if_nothing_else_is_in_progress() -> None:
    found = plan(seen())
    assert (found.phase, found.is_active) == ("Verifying", True)
    assert [event.reason for event in found.events] == ["RestoreVerifying"]
    assert created(plan(seen(), record("Verifying"))) == ["c-etcd-verify"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"there": seen(replace(RUNNING, replicas=None))}, "penstock.io/cluster: c"),
        ({"there": seen(None)}, 'StatefulSet "e" was not read'),
        ({"wish": wished(paused=True)}, "spec.paused is true"),
        ({"hibernation": HibernationPlan("Hibernated")}, "the cluster hibernates"),
        ({"hibernation": HibernationPlan("Postponed")}, "the cluster hibernates"),
        ({"images": RestoreImages("", "penstock:1")}, "set OPERATOR_IMAGE"),
        ({"there": seen(RUNNING, task("snapshot"))}, "a snapshot is being taken"),
        ({"there": seen(RUNNING, task("verify"))}, "pods of another request are deleted"),
        ({"recorded": ClusterAnnotations(moving="broker 3 is new")}, "replicas move (broker 3 is new)"),
        ({"there": seen(reported=reported(range(3), draining=[1]))}, "broker 1 is being drained"),
        ({"there": seen(replace(RUNNING, replicas=2))}, "the number of members of etcd is being changed"),
    ],
)
def test_a_request_waits_for_what_has_to_end_first(more: dict[str, Any], words: str) -> None:
    found = plan(more.pop("there", seen()), **more)
    assert (found.phase, found.is_active) == ("Waiting", False)
    assert words in found.message
    assert not created(found)


def test_a_request_waits_for_a_rolling_restart_but_not_without_a_quorum() -> None:
    rolling = {"type": "Rolled", "status": "False", "reason": "Rolling", "message": "broker 1 must be restarted"}
    wish = wished(status={"conditions": [rolling]})
    found = plan(seen(), wish=wish)
    assert (found.phase, found.requeue_after_s) == ("Waiting", 5.0)
    assert "waiting: broker 1 must be restarted" in found.message
    lost = StateStoreReport(members_error="timed out")
    assert plan(seen(replace(RUNNING, report=lost)), wish=wish).phase == "Verifying"
    assert plan(seen(replace(RUNNING, report=None)), wish=wish).phase == "Verifying"


@pytest.mark.parametrize(
    ("there", "wish", "words"),
    [
        (seen(claims=CLAIMS[:2]), wished(), "broker 2 has no data volume"),
        (seen(claims=(*CLAIMS[1:], replace(CLAIMS[0], phase="Lost"))), wished(), "data-c-broker-0 first"),
        (seen(claims=(*CLAIMS[1:], replace(CLAIMS[0], is_terminating=True))), wished(), "broker 0 has no data"),
        (seen(), wished(status={"clusterId": None}), "has not been Ready yet"),
        (seen(), wished(etcd={"endpoints": ["http://other:2379"]}), "are not the addresses of the pods"),
    ],
)
def test_a_request_that_is_not_safe_is_refused_for_good(there: ObservedCluster, wish: Cluster, words: str) -> None:
    found = plan(there, wish=wish)
    assert (found.phase, found.is_active, found.actions) == ("Refused", False, ())
    assert words in found.message
    assert [(event.type, event.reason) for event in found.events] == [("Warning", "RestoreRefused")]
    assert found.record is not None
    assert found.record.end_time == NOW
    again = plan(seen(), found.record)
    assert (again.phase, again.events, again.requeue_after_s) == ("Refused", (), None)


@pytest.mark.parametrize("phase", ["Completed", "Failed", "Refused"])
def test_a_request_that_has_ended_deletes_its_pods_and_leaves_others(phase: str) -> None:
    ended = record(phase, end_time="2026-03-01T10:00:00Z", message="x")
    found = plan(seen(RUNNING, task("recover", done=True), task("snapshot")), ended)
    assert found == RestorePlan(ended, (DeleteObject(PODS, "c-etcd-recover", "uid"),))
    is_kept = phase == "Completed"
    assert plan(seen(), ended, wish=cluster()).record == (ended if is_kept else None), "nothing changed: no trace"


def test_another_snapshot_or_request_is_another_restore() -> None:
    for more in ({"snapshot": "etcd-20260228T000000Z"}, {"snapshot": SNAPSHOT, "request": "2"}):
        found = plan(seen(), record("Completed"), wish=wished(etcd={"restore": more}))
        assert found.phase == "Verifying"
        assert found.record is not None
        assert found.record.start_time == NOW
        kept = plan(seen(STOPPED), record("Stopping"), wish=wished(etcd={"restore": more}))
        assert kept.record is not None
        assert (kept.record.snapshot, kept.record.request) == (SNAPSHOT, "1"), "one that runs comes to its end"


def test_a_lost_annotation_is_replaced_by_the_status() -> None:
    status = {"restore": {"snapshot": SNAPSHOT, "request": "1", "phase": "Completed", "startTime": NOW}}
    assert plan(seen(), wish=wished(status=status)).record == record("Completed")
    broken = {"restore": {"snapshot": SNAPSHOT, "request": "1", "phase": "Dancing", "startTime": NOW}}
    assert plan(seen(), wish=wished(status=broken)).phase == "Verifying"


def test_etcd_stops_only_after_the_verification() -> None:
    assert plan(seen(RUNNING, task("verify")), record("Verifying")).actions == ()
    found = plan(seen(RUNNING, task("verify", done=True, message="{}")), record("Verifying"))
    assert (found.phase, found.actions) == ("Stopping", (ScaleStore("e", 0),))
    failed = plan(seen(RUNNING, task("verify", done=False, message='{"error":"it is damaged"}')), record("Verifying"))
    assert (failed.phase, failed.actions) == ("Failed", ())
    assert "it is damaged; nothing has changed" in failed.message


def test_no_volume_is_touched_while_a_member_runs() -> None:
    for phase in ("Stopping", "Preparing", "Installing"):
        ending = replace(STOPPED, pods=MEMBERS[:1])
        found = plan(seen(ending), record(phase))
        assert (found.phase, found.actions) == (phase, ())
        assert "1 members of etcd are stopping" in found.message
        restarted = plan(seen(RUNNING), record(phase))
        assert (restarted.phase, restarted.actions) == (phase, (ScaleStore("e", 0),))


def test_members_are_prepared_one_at_a_time_from_a_volume_and_at_once_from_a_bucket() -> None:
    assert created(plan(seen(STOPPED), record("Stopping"))) == ["c-etcd-prepare-0"]
    first = task("prepare-0", done=True)
    assert created(plan(seen(STOPPED, first), record("Preparing"))) == ["c-etcd-prepare-1"]
    assert created(plan(seen(STOPPED, first, task("prepare-1")), record("Preparing"))) == []
    bucket = {"objectStore": {"endpoint": "http://s3", "bucket": "backups", "secretName": "keys"}}
    found = plan(seen(STOPPED), record("Preparing"), wish=wished(etcd={"snapshots": bucket}))
    assert created(found) == [f"c-etcd-prepare-{n}" for n in range(3)]


def test_nothing_is_installed_before_all_members_are_prepared() -> None:
    tasks = [task(f"prepare-{n}", done=True) for n in range(3)]
    assert plan(seen(STOPPED, *tasks[:2]), record("Preparing")).phase == "Preparing"
    found = plan(seen(STOPPED, *tasks), record("Preparing"))
    assert (found.phase, created(found)) == ("Installing", [f"c-etcd-install-{n}" for n in range(3)])


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        (task("prepare-1", done=False, message="Error: open: permission denied\n"), "failed: Error: open: permission"),
        (task("prepare-1", done=False, message=""), "it ended without a result"),
        (
            replace(task("prepare-1"), is_running=False, started_at="2026-03-01T11:50:00Z", message="not scheduled: x"),
            "did not start in 3 minutes: not scheduled: x",
        ),
    ],
)
def test_a_failed_preparation_starts_etcd_as_it_was(failed: ObservedTaskPod, words: str) -> None:
    found = plan(seen(STOPPED, task("prepare-0", done=True), failed), record("Preparing"))
    assert (found.phase, found.actions) == ("Reverting", (ScaleStore("e", 3),))
    assert "member 1: pod c-etcd-prepare-1" in found.message
    assert words in found.message
    assert plan(seen(STOPPED), found.record).actions == (ScaleStore("e", 3),), "until it is scaled"
    ended = plan(seen(RUNNING), found.record)
    assert ended.phase == "Failed"
    assert words in ended.message


def test_snapshots_that_are_no_longer_configured_end_the_restore() -> None:
    wish = cluster(etcd={"endpoints": URLS, "statefulSet": "e", "managed": True})
    assert plan(seen(STOPPED), record("Preparing"), wish=wish).phase == "Reverting"
    assert plan(seen(), record("Verifying"), wish=wish).record is None


def test_a_failed_installation_is_repeated() -> None:
    tasks = [task("install-0", done=True), task("install-1", done=False, message="I/O"), task("install-2")]
    found = plan(seen(STOPPED, *tasks), record("Installing"))
    assert (found.phase, found.actions) == ("Installing", (DeleteObject(PODS, "c-etcd-install-1", "uid"),))
    assert "1 of 3 members have the data of the snapshot; member 1" in found.message
    assert created(plan(seen(STOPPED, tasks[0], tasks[2]), record("Installing"))) == ["c-etcd-install-1"]


def test_etcd_starts_when_all_members_have_the_data() -> None:
    done = [task(f"{kind}-{n}", done=True) for kind in ("prepare", "install") for n in range(3)]
    found = plan(seen(STOPPED, *done), record("Installing"))
    assert (found.phase, found.actions) == ("Starting", (ScaleStore("e", 3),))
    starting = ObservedStore(StateStoreReport(members_error="x"), pods=MEMBERS[:1], replicas=3)
    found = plan(seen(starting, *done, task("verify", done=True)), record("Starting"))
    assert found.phase == "Starting"
    assert {a.name for a in found.actions if isinstance(a, DeleteObject)} == {t.name for t in done}
    assert plan(seen(RUNNING), record("Starting")).phase == "Recovering"


def test_brokers_continue_after_the_recovery() -> None:
    assert created(plan(seen(), record("Recovering"))) == ["c-etcd-recover"]
    assert plan(seen(RUNNING, task("recover")), record("Recovering")).actions == ()
    found = plan(seen(RUNNING, task("recover", done=True)), record("Recovering"))
    assert (found.phase, found.requeue_after_s) == ("Completed", None)
    assert found.status is not None
    assert found.status.end_time == NOW


@pytest.mark.parametrize(
    ("started_at", "ready", "phase", "is_deleted"),
    [
        ("2026-03-01T11:58:00Z", 3, "Completed", False),
        ("2026-03-01T11:58:00Z", 2, "Recovering", True),
        ("2026-03-01T11:59:30Z", 3, "Recovering", True),
        ("2026-03-01T11:59:55Z", 3, "Recovering", False),
    ],
)
def test_a_failed_recovery_is_repeated_unless_all_brokers_serve_after_their_check(
    started_at: str, ready: int, phase: str, is_deleted: bool
) -> None:
    failed = task("recover", done=False, message="nothing to recover")
    pods = [pod(n, is_ready=n < ready) for n in range(3)]
    found = plan(seen(RUNNING, replace(failed, started_at=started_at), pods=pods), record("Recovering"))
    assert found.phase == phase
    assert bool(found.actions) == is_deleted


def test_a_message_has_a_limit_and_no_control_characters() -> None:
    failed = task("verify", done=False, message="\x1b[31m" + "x" * 5000)
    found = plan(seen(RUNNING, failed), record("Verifying"))
    assert found.record is not None
    assert found.record.message.isprintable()
    assert len(found.record.message) <= 500


def test_the_record_is_kept_in_an_annotation_and_an_invalid_one_is_ignored() -> None:
    notes = ClusterAnnotations(restore=record("Installing", message='"quoted"'))
    assert read(written(notes)) == notes
    for text in ("x", "{}", '{"snapshot":"a","request":"b","phase":"Dancing","start_time":""}'):
        assert read({"penstock.io/restore": text}).restore is None
