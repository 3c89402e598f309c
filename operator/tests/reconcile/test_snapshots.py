"""Snapshots of etcd: when a pod is created, what its end means, what condition Snapshots says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from reconcile.cluster_tables import NOW, cluster, observed

from penstock_operator.model.snapshots import SnapshotsStatus
from penstock_operator.ports.kube import PODS
from penstock_operator.ports.state_store import StateStoreMember, StateStoreReport
from penstock_operator.reconcile.cluster.actions import CreatePod, DeleteObject
from penstock_operator.reconcile.cluster.observed_store import ObservedStore, ObservedTaskPod, read_task_pod
from penstock_operator.reconcile.cluster.snapshots import SnapshotPlan, plan_snapshots

NAME = "c-etcd-snapshot"
VOLUME = {"volume": {"claimName": "snapshots"}}
QUORUM = StateStoreReport(members=(StateStoreMember(1, "e", ("http://e:2380",)),))
LAST = {"lastName": "etcd-20260301T113000Z", "lastTime": "2026-03-01T11:30:00Z", "lastSizeBytes": 5 << 20,
        "attemptTime": "2026-03-01T11:30:01Z", "stored": ["etcd-20260301T113000Z"]}  # fmt: skip
RESULT = {"name": "etcd-20260301T115900Z", "sizeBytes": 3 << 20, "sha256": "ab" * 32,
          "stored": ["etcd-20260301T115900Z", "etcd-20260301T113000Z"]}  # fmt: skip
POD = ObservedTaskPod(NAME, "uid", started_at="2026-03-01T11:59:00Z", is_running=True)
ENDED = replace(POD, is_running=False, has_ended=True, is_done=True, ended_at="2026-03-01T11:59:30Z",
                message=json.dumps(RESULT))  # fmt: skip


def plan(
    pod: ObservedTaskPod | None = None, *, status: Any = None, image: str = "operator:1",
    report: StateStoreReport | None = QUORUM, **snapshots: Any,
) -> SnapshotPlan:  # fmt: skip
    wanted = cluster(
        etcd={"endpoints": ["http://e:2379"], "snapshots": {**VOLUME, **snapshots}},
        status={"snapshots": status} if status else {},
    )
    store = ObservedStore(report, "no Secret", tasks=() if pod is None else (pod,))
    return plan_snapshots(wanted, observed(store=store), image)


def state(found: SnapshotPlan) -> tuple[bool | None, str]:
    return found.is_current, found.reason


def test_without_the_field_nothing_happens_and_a_pod_of_before_is_deleted() -> None:
    wanted = cluster()
    assert plan_snapshots(wanted, observed(), "i") == SnapshotPlan()
    left = plan_snapshots(wanted, observed(store=ObservedStore(QUORUM, tasks=(POD,))), "i")
    assert (left.reason, left.status, left.actions) == ("", None, (DeleteObject(PODS, NAME, "uid"),))


def test_the_first_snapshot_is_due_at_once() -> None:
    found = plan()
    assert state(found) == (None, "Pending")
    (action,) = found.actions
    assert isinstance(action, CreatePod)
    assert action.body["metadata"]["name"] == NAME
    assert action.body["spec"]["containers"][0]["image"] == "operator:1"


@pytest.mark.parametrize(
    ("status", "minutes", "due_s"),
    [
        (LAST, 60, 1801.0),
        (LAST, 30, 1.0),
        ({**LAST, "error": "x", "attemptTime": "2026-03-01T11:58:00Z"}, 60, 180.0),
        ({**LAST, "error": "x", "attemptTime": "2026-03-01T11:55:00Z"}, 60, 0),
        ({**LAST, "attemptTime": "2026-03-01T11:00:00Z"}, 60, 0),
        ({**LAST, "attemptTime": "2026-03-01T13:00:00Z"}, 60, 0),
        ({**LAST, "attemptTime": "soon"}, 60, 0),
    ],
)
def test_the_next_snapshot_is_due_an_interval_after_the_last_and_earlier_after_a_failure(
    status: Any, minutes: int, due_s: float
) -> None:
    found = plan(status=status, intervalMinutes=minutes)
    assert [type(action) for action in found.actions] == ([] if due_s else [CreatePod])
    assert found.requeue_after_s == (due_s or None)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"image": ""}, "set OPERATOR_IMAGE"),
        ({"report": None}, "no Secret"),
        ({"report": StateStoreReport(members_error="timed out")}, "etcd has no quorum: timed out"),
    ],
)
def test_a_snapshot_that_cannot_be_taken_now_waits_and_says_why(more: Any, words: str) -> None:
    found = plan(**more)
    assert state(found) == (None, "Pending")
    assert words in found.message
    assert (found.actions, found.requeue_after_s) == ((), 30.0)


def test_a_stored_snapshot_is_in_status_and_event_and_its_pod_is_deleted() -> None:
    found = plan(ENDED, status={**LAST, "error": "the disk was full"})
    assert found.actions == (DeleteObject(PODS, NAME, "uid"),)
    assert found.status == SnapshotsStatus(
        last_name="etcd-20260301T115900Z", last_time="2026-03-01T11:59:00Z", last_size_bytes=3 << 20,
        last_sha256="ab" * 32, stored=("etcd-20260301T115900Z", "etcd-20260301T113000Z"),
        attempt_time="2026-03-01T11:59:30Z",
    )  # fmt: skip
    assert state(found) == (True, "Stored")
    assert found.message == "the last snapshot is etcd-20260301T115900Z, 3 MiB"
    (event,) = found.events
    assert (event.type, event.reason) == ("Normal", "SnapshotStored")
    again = plan(ENDED, status={**RESULT_STATUS})
    assert again.events == (), "the cache is late: the same end is no news"


RESULT_STATUS = {"lastName": RESULT["name"], "lastTime": "2026-03-01T11:59:00Z", "attemptTime": "2026-03-01T11:59:30Z"}


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (replace(ENDED, is_done=False, message='{"error":"AccessDenied\\u0007"}'), "AccessDenied"),
        (replace(ENDED, is_done=False, message="Evicted"), "pod c-etcd-snapshot: Evicted"),
        (replace(ENDED, is_done=False, message=""), "it ended without a result"),
        (replace(ENDED, message='{"name":"../../x"}'), "it ended without a result"),
        (replace(ENDED, message="[1]"), "c-etcd-snapshot: [1]"),
        (replace(ENDED, message='{"name":"etcd-20261301T115900Z"}'), "it ended without a result"),
        (
            replace(POD, is_running=False, started_at="2026-03-01T11:50:00Z", message="not scheduled: no claim"),
            "did not start in 10 minutes: not scheduled: no claim",
        ),
    ],
)
def test_a_failed_attempt_keeps_the_last_snapshot_and_says_why(pod: ObservedTaskPod, words: str) -> None:
    found = plan(pod, status=LAST)
    assert found.actions == (DeleteObject(PODS, NAME, "uid"),)
    assert state(found) == (False, "Failed")
    assert words in found.message
    assert "the last snapshot is etcd-20260301T113000Z" in found.message
    assert found.status is not None
    assert found.status.last_name == "etcd-20260301T113000Z"
    assert found.message.isprintable()
    assert [event.reason for event in found.events] == ["SnapshotFailed"]


def test_an_end_without_a_time_counts_from_now() -> None:
    found = plan(replace(ENDED, is_done=False, message="Evicted", ended_at=""))
    assert found.status is not None
    assert found.status.attempt_time == NOW


@pytest.mark.parametrize(
    "pod",
    [
        POD,
        replace(POD, started_at="2026-03-01T10:00:00Z"),
        replace(POD, is_running=False),
        replace(ENDED, is_terminating=True),
    ],
    ids=["runs", "runs-long", "starts", "is-deleted"],
)
def test_a_pod_that_is_at_work_is_left_alone_and_no_second_one_is_created(pod: ObservedTaskPod) -> None:
    found = plan(pod, status={**LAST, "attemptTime": "2026-03-01T09:00:00Z"})
    assert not [action for action in found.actions if isinstance(action, CreatePod)]
    assert (found.actions, found.events) == ((), ())


def test_a_snapshot_older_than_two_intervals_is_overdue() -> None:
    assert state(plan(POD, status=LAST, intervalMinutes=15)) == (True, "Stored")
    found = plan(POD, status=LAST, intervalMinutes=14)
    assert state(found) == (False, "Overdue")
    assert "older than 2 intervals" in found.message


def pod_body(**status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": "etcd-snapshot"}
    meta = {"name": NAME, "uid": "uid", "labels": labels, "ownerReferences": [{"uid": "u"}],
            "annotations": {"penstock.io/started-at": NOW}}  # fmt: skip
    return {"metadata": meta, "status": status}


def test_the_state_of_a_pod_is_read_from_its_containers() -> None:
    ended = {"terminated": {"exitCode": 0, "message": "{}", "finishedAt": "t"}}
    found = read_task_pod("u", pod_body(phase="Succeeded", containerStatuses=[{"name": "take", "state": ended}]))
    assert found == ObservedTaskPod(NAME, "uid", NOW, has_ended=True, ended_at="t", is_done=True, message="{}")
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    found = read_task_pod("u", pod_body(phase="Pending", containerStatuses=[{"name": "take", "state": waiting}]))
    assert found == ObservedTaskPod(NAME, "uid", NOW, message="ImagePullBackOff")
    late = read_task_pod("u", pod_body(phase="Failed", reason="DeadlineExceeded"))
    assert late == ObservedTaskPod(NAME, "uid", NOW, has_ended=True, message="DeadlineExceeded")
    failed = {"terminated": {"exitCode": 1, "message": "first", "finishedAt": "t"}}
    statuses = [{"name": "fetch", "state": failed}]
    found = read_task_pod("u", pod_body(phase="Failed", initContainerStatuses=statuses, containerStatuses=[{}]))
    assert found is not None
    assert (found.message, found.is_done) == ("first", False)


def test_pods_of_others_are_ignored() -> None:
    assert read_task_pod("other", pod_body()) is None
    body = pod_body()
    body["metadata"]["labels"] = {}
    assert read_task_pod("u", body) is None
