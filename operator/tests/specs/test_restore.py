"""The pods that restore etcd."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from reconcile.cluster_tables import NOW, cluster
from snapshots.snapshot_kit import PROGRAMS

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.snapshots import Restore
from penstock_operator.ports.kube import Object
from penstock_operator.snapshots.tasks import SnapshotTask
from penstock_operator.specs import restore as specs

SNAPSHOT = "etcd-20260310T120000Z"
RESTORE = Restore(snapshot=SNAPSHOT)
ENDPOINTS = {n: f"https://e-{n}.ns.svc:2379" for n in range(3)}
POD_SPEC: Object = {
    "containers": [{"name": "etcd", "image": "etcd:v3.5.21", "imagePullPolicy": "Never"}],
    "tolerations": [{"key": "etcd", "operator": "Exists"}],
    "nodeSelector": {"disk": "fast"},
    "imagePullSecrets": [{"name": "registry"}],
}


def with_etcd(**etcd: Any) -> Cluster:
    where = {"snapshots": {"volume": {"claimName": "there"}}, "statefulSet": "e", "managed": True}
    return cluster(etcd={"endpoints": list(ENDPOINTS.values()), **where, **etcd}, status={"clusterId": "kafka-id"})


def containers(body: Object) -> list[Object]:
    return [*body["spec"].get("initContainers", ()), *body["spec"]["containers"]]


def task_of(container: Object) -> SnapshotTask:
    environment = {entry["name"]: entry for entry in container["env"]}
    return msgspec.json.decode(environment["SNAPSHOT_TASK"]["value"], type=SnapshotTask)


def rendered() -> list[Object]:
    made = with_etcd(tlsSecret="etcd-client")
    return [
        specs.verify_pod(made, RESTORE, "operator:1", POD_SPEC, NOW),
        specs.prepare_pod(made, RESTORE, "operator:1", POD_SPEC, ENDPOINTS, 1, NOW),
        specs.install_pod(made, RESTORE, "operator:1", POD_SPEC, 1, NOW),
        specs.recover_pod(made, "penstock:1", range(3), NOW),
    ]


def test_the_pods_run_once_belong_to_the_cluster_and_comply_with_the_restricted_profile() -> None:
    assert [body["metadata"]["name"] for body in rendered()] == [
        "c-etcd-verify", "c-etcd-prepare-1", "c-etcd-install-1", "c-etcd-recover",
    ]  # fmt: skip
    for body in rendered():
        spec = body["spec"]
        assert body["metadata"]["ownerReferences"][0]["uid"] == "u"
        assert body["metadata"]["labels"]["app.kubernetes.io/component"] == "etcd-snapshot", "for the NetworkPolicy"
        assert spec["restartPolicy"] == "Never"
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["automountServiceAccountToken"] is False
        for container in containers(body):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
            assert {mount["name"] for mount in container["volumeMounts"]} <= {each["name"] for each in spec["volumes"]}


def test_the_snapshot_is_verified_without_a_volume_of_a_member_and_etcdutl_is_tried() -> None:
    (verify, *_) = rendered()
    etcdutl, fetch = containers(verify)
    assert (etcdutl["image"], etcdutl["imagePullPolicy"]) == ("etcd:v3.5.21", "Never")
    assert etcdutl["command"] == ["/usr/local/bin/etcdutl", "version"]
    assert fetch["command"][-1] == "fetch"
    assert task_of(fetch) == SnapshotTask(
        namespace="ns", cluster="c", count=48, days=14, directory="/var/lib/snapshots", snapshot=SNAPSHOT,
        cluster_id="kafka-id",
    )  # fmt: skip


def test_a_member_is_restored_beside_its_data_where_the_member_can_run() -> None:
    _, prepare, install, _ = rendered()
    fetch, etcdutl = containers(prepare)
    key = specs.key_of(with_etcd(), RESTORE)
    assert (task_of(fetch).target, task_of(fetch).restore) == ("/var/lib/etcd", key)
    assert f"--data-dir=/var/lib/etcd/restored-{key}" in etcdutl["command"]
    for body in (prepare, install):
        (member,) = (volume for volume in body["spec"]["volumes"] if volume["name"] == "member")
        assert member["persistentVolumeClaim"] == {"claimName": "data-e-1"}
        assert body["spec"]["tolerations"] == POD_SPEC["tolerations"]
        assert body["spec"]["nodeSelector"] == POD_SPEC["nodeSelector"]
        assert body["spec"]["imagePullSecrets"] == POD_SPEC["imagePullSecrets"]
    (run,) = containers(install)
    assert (run["command"][-1], task_of(run).restore, task_of(run).target) == ("install", key, "/var/lib/etcd")


def test_etcdutl_gets_the_addresses_of_all_members_and_another_token() -> None:
    command = containers(rendered()[1])[1]["command"]
    assert command[1:4] == ["snapshot", "restore", f"/var/lib/etcd/restore-{specs.key_of(with_etcd(), RESTORE)}.db"]
    assert "--name=e-1" in command
    assert (
        "--initial-cluster=e-0=https://e-0.ns.svc:2380,e-1=https://e-1.ns.svc:2380,e-2=https://e-2.ns.svc:2380"
        in command
    )
    assert "--initial-advertise-peer-urls=https://e-1.ns.svc:2380" in command
    assert f"--initial-cluster-token=ns-e-{specs.key_of(with_etcd(), RESTORE)}" in command
    assert command[-2:] == ["--bump-revision=1000000000", "--mark-compacted"]


def test_another_request_and_another_cluster_have_other_files() -> None:
    made = with_etcd()
    other = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, uid="other"))
    again = Restore(snapshot=SNAPSHOT, request="2")
    keys = {specs.key_of(made, RESTORE), specs.key_of(made, again), specs.key_of(other, RESTORE)}
    assert len(keys) == 3
    assert specs.key_of(made, RESTORE) == specs.key_of(made, RESTORE)


@pytest.mark.parametrize(
    ("image", "is_bumped"),
    [
        ("gcr.io/etcd-development/etcd:v3.5.21", True),
        ("localhost:5000/etcd:3.5.10", True),
        ("etcd:v3.6.0-debian", True),
        ("etcd:v3.5.21@sha256:0123", True),
        ("etcd:v3.5.9", False),
        ("etcd:v3.4.30", False),
        ("etcd:latest", False),
        ("etcd@sha256:0123", False),
        ("", False),
    ],
)
def test_no_revision_is_used_twice_where_etcdutl_can_do_that(image: str, is_bumped: bool) -> None:
    assert bool(specs.bump_flags(image)) == is_bumped


def test_the_recovery_requires_the_reports_of_all_brokers() -> None:
    body = specs.recover_pod(with_etcd(), "penstock:1", range(2), NOW)
    (run,) = containers(body)
    assert run["image"] == "penstock:1"
    assert run["command"] == [
        "penstock", "cluster", "recover", "--yes", "--wait", "300", "--require", "0", "--require", "1",
        *(word for url in ENDPOINTS.values() for word in ("--etcd", url)),
    ]  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("has_certificate", [True, False])
def test_the_recovery_has_the_client_certificate_if_the_secret_has_one(tmp_path: Path, has_certificate: bool) -> None:
    body = specs.recover_pod(with_etcd(tlsSecret="etcd-client"), "penstock:1", [0], NOW)
    (run,) = containers(body)
    assert {"name": "etcd-tls", "mountPath": "/etc/penstock-etcd-tls", "readOnly": True} in run["volumeMounts"]
    if has_certificate:
        (tmp_path / "tls.crt").write_text("certificate")
    shell, flag, script, *words = run["command"]
    program = tmp_path / "penstock"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    script = script.replace("/etc/penstock-etcd-tls", str(tmp_path))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    printed = subprocess.run([shell, flag, script, *words], env=environment, check=True, capture_output=True, text=True)
    found = printed.stdout.split("\n")[:-1]
    assert found[:3] == ["cluster", "recover", "--yes"]
    assert "--etcd-ca" in found
    assert ("--etcd-cert" in found, "--etcd-key" in found) == (has_certificate, has_certificate)


@pytest.mark.integration
def test_etcdutl_accepts_the_command(tmp_path: Path) -> None:
    """The file of the snapshot is missing, and that is all that etcdutl complains about. It resolves the addresses."""
    pod_spec = {"containers": [{"name": "etcd", "image": "etcd:v3.5.1"}]}
    endpoints = {n: f"http://127.0.0.{n + 1}:2379" for n in range(3)}
    body = specs.prepare_pod(with_etcd(), RESTORE, "operator:1", pod_spec, endpoints, 1, NOW)
    command = [word.replace("/var/lib/etcd", str(tmp_path)) for word in containers(body)[1]["command"]]
    done = subprocess.run([PROGRAMS / "etcdutl", *command[1:]], capture_output=True, text=True)
    assert done.returncode != 0
    assert "no such file or directory" in done.stderr
