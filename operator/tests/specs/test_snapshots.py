"""The pod that takes a snapshot."""

from __future__ import annotations

from typing import Any

import msgspec
from reconcile.cluster_tables import NOW, cluster

from penstock_operator.ports.kube import Object
from penstock_operator.snapshots.object_store import ObjectStoreAddress
from penstock_operator.snapshots.tasks import SnapshotTask
from penstock_operator.specs.snapshots import snapshot_pod, time_of

BUCKET = {"endpoint": "https://s3.example.com/", "bucket": "backups", "prefix": "a", "secretName": "s3"}


def rendered(**etcd: Any) -> Object:
    made = cluster(etcd={"endpoints": ["https://e:2379"], **etcd})
    assert made.spec.etcd.snapshots is not None
    return snapshot_pod(made, made.spec.etcd.snapshots, "operator:1", NOW)


def task_of(body: Object) -> SnapshotTask:
    environment = {entry["name"]: entry for entry in body["spec"]["containers"][0]["env"]}
    return msgspec.json.decode(environment["SNAPSHOT_TASK"]["value"], type=SnapshotTask)


def mounts(body: Object) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in body["spec"]["containers"][0]["volumeMounts"]}


def test_a_snapshot_to_a_volume_mounts_its_claim_and_the_certificate_for_etcd() -> None:
    body = rendered(snapshots={"volume": {"claimName": "there"}, "keepCount": 3}, tlsSecret="etcd-client")
    assert task_of(body) == SnapshotTask(
        namespace="ns",
        cluster="c",
        endpoints=("https://e:2379",),
        count=3,
        days=14,
        directory="/var/lib/snapshots",
        cluster_id="id",
    )
    assert mounts(body) == {"snapshots": "/var/lib/snapshots", "etcd-tls": "/etc/penstock-etcd-tls"}
    volumes = {volume["name"]: volume for volume in body["spec"]["volumes"]}
    assert volumes["snapshots"]["persistentVolumeClaim"] == {"claimName": "there"}
    assert volumes["etcd-tls"]["secret"]["secretName"] == "etcd-client"


def test_a_snapshot_to_a_bucket_has_its_keys_from_the_secret_only() -> None:
    body = rendered(snapshots={"objectStore": BUCKET})
    assert task_of(body).object_store == ObjectStoreAddress(
        endpoint="https://s3.example.com", bucket="backups", prefix="a", ca_file="/etc/penstock-object-store/ca.crt"
    )
    keys = [entry for entry in body["spec"]["containers"][0]["env"] if entry["name"].startswith("AWS")]
    assert [entry["valueFrom"]["secretKeyRef"]["name"] for entry in keys] == ["s3", "s3"]
    assert not any("value" in entry for entry in keys)
    (volume,) = body["spec"]["volumes"]
    assert volume["secret"]["optional"], "a public CA needs no ca.crt"


def test_the_pod_runs_once_and_complies_with_the_restricted_profile() -> None:
    spec = rendered(snapshots={"objectStore": BUCKET})["spec"]
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", 3600)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


def test_the_name_of_a_snapshot_has_its_time() -> None:
    assert time_of("etcd-20260310T120000Z") == "2026-03-10T12:00:00Z"
    assert time_of("etcd-20261310T120000Z") is None
    assert time_of("x") is None
