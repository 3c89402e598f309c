"""Renders the pods that restore etcd: they verify the snapshot, restore it into the members' volumes, and let the
brokers continue.

etcd's image has no shell, so etcdutl is the command of a container, between those of the operator's image.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.snapshots import Restore, Snapshots
from penstock_operator.ports.kube import Object
from penstock_operator.specs import companion, names, pod, snapshots

MEMBER_DIR = "/var/lib/etcd"
"""Mount path of a member's volume, as in the chart."""
ETCDUTL = "/usr/local/bin/etcdutl"
ETCD_CONTAINER, DATA_VOLUME = "etcd", "data"
RECOVERY_WAIT_S = 300
"""Time that brokers may need to report."""
BUMPED_REVISIONS = 1_000_000_000
RESOURCES: Object = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


def key_of(cluster: Cluster, restore: Restore) -> str:
    """Return the key of a restore, in the names of its files. Another request or another Cluster has another one."""
    digest = hashlib.sha256(f"{cluster.metadata.uid}/{restore.request}".encode()).hexdigest()
    return f"{restore.snapshot.removeprefix('etcd-')}-{digest[:8]}"


def verify_name(cluster: str) -> str:
    """Return the name of the pod that verifies the snapshot."""
    return f"{cluster}-etcd-verify"


def prepare_name(cluster: str, ordinal: int) -> str:
    """Return the name of the pod that restores the snapshot beside the data of a member."""
    return f"{cluster}-etcd-prepare-{ordinal}"


def install_name(cluster: str, ordinal: int) -> str:
    """Return the name of the pod that replaces the data of a member."""
    return f"{cluster}-etcd-install-{ordinal}"


def recover_name(cluster: str) -> str:
    """Return the name of the pod that lets the brokers continue."""
    return f"{cluster}-etcd-recover"


def etcd_image(pod_spec: Mapping[str, Any]) -> str:
    """Return the image of the members, or ""."""
    return str(etcd_container(pod_spec).get("image") or "")


def etcd_container(pod_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container of etcd in the pod template of its StatefulSet."""
    containers = pod_spec.get("containers") or ()
    return next((each for each in containers if each.get("name") == ETCD_CONTAINER), {})


def verify_pod(cluster: Cluster, restore: Restore, image: str, pod_spec: Mapping[str, Any], now: str) -> Object:
    """Render the pod that verifies that the snapshot can be restored, and that etcd's image has etcdutl."""
    wanted = snapshots_of(cluster)
    fetch = snapshots.container(
        cluster, wanted, image, "fetch", snapshot=restore.snapshot, **snapshots.cluster_id(cluster)
    )
    containers = {"initContainers": [etcdutl(pod_spec, "version")], "containers": [fetch]}
    return task_pod(
        cluster, verify_name(cluster.metadata.name), now, containers, snapshots.destination_volumes(wanted), {}
    )


def prepare_pod(
    cluster: Cluster,
    restore: Restore,
    image: str,
    pod_spec: Mapping[str, Any],
    endpoints: Mapping[int, str],
    ordinal: int,
    now: str,
) -> Object:
    """Render the pod that restores the snapshot beside the data of a member."""
    wanted, key, stateful_set = snapshots_of(cluster), key_of(cluster, restore), cluster.spec.etcd.stateful_set
    fetch = snapshots.container(
        cluster, wanted, image, "fetch", snapshot=restore.snapshot, restore=key, target=MEMBER_DIR,
        **snapshots.cluster_id(cluster),
    )  # fmt: skip
    run = etcdutl(
        pod_spec,
        "snapshot",
        "restore",
        f"{MEMBER_DIR}/restore-{key}.db",
        f"--data-dir={MEMBER_DIR}/restored-{key}",
        f"--name={stateful_set}-{ordinal}",
        "--initial-cluster=" + ",".join(
            f"{stateful_set}-{n}={companion.peer_url(endpoint)}" for n, endpoint in sorted(endpoints.items())
        ),
        f"--initial-advertise-peer-urls={companion.peer_url(endpoints[ordinal])}",
        # Another token gives the etcd another cluster id, by which brokers always detect the restore.
        f"--initial-cluster-token={cluster.metadata.namespace}-{stateful_set}-{key}",
        *bump_flags(etcd_image(pod_spec)),
    )  # fmt: skip
    for container in (fetch, run):
        container["volumeMounts"].append({"name": "member", "mountPath": MEMBER_DIR})
    volumes = [*snapshots.destination_volumes(wanted), member_volume(cluster, ordinal)]
    containers = {"initContainers": [fetch], "containers": [run]}
    return task_pod(cluster, prepare_name(cluster.metadata.name, ordinal), now, containers, volumes, pod_spec)


def install_pod(
    cluster: Cluster, restore: Restore, image: str, pod_spec: Mapping[str, Any], ordinal: int, now: str
) -> Object:
    """Render the pod that replaces the data of a member."""
    task = {
        "namespace": cluster.metadata.namespace, "cluster": cluster.metadata.name, "snapshot": restore.snapshot,
        "restore": key_of(cluster, restore), "target": MEMBER_DIR,
    }  # fmt: skip
    install = {
        "name": "install",
        "image": image,
        "command": ["python", "-m", "penstock_operator.snapshots", "install"],
        "env": [{"name": "SNAPSHOT_TASK", "value": json.dumps(task, sort_keys=True)}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": snapshots.RESOURCES,
        "securityContext": pod.SECURITY,
        "volumeMounts": [{"name": "member", "mountPath": MEMBER_DIR}],
    }
    volumes = [member_volume(cluster, ordinal)]
    name = install_name(cluster.metadata.name, ordinal)
    return task_pod(cluster, name, now, {"containers": [install]}, volumes, pod_spec)


def recover_pod(cluster: Cluster, image: str, brokers: Iterable[int], now: str) -> Object:
    """Render the pod that recovers the restored etcd when all brokers have reported. `image`: that of the brokers."""
    etcd = cluster.spec.etcd
    command = ["penstock", "cluster", "recover", "--yes", "--wait", str(RECOVERY_WAIT_S)]
    command += [word for broker in brokers for word in ("--require", str(broker))]
    command += [word for endpoint in etcd.endpoints for word in ("--etcd", endpoint)]
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - the pod's own
    if etcd.client_secret is not None:
        command += ["--etcd-ca", f"{names.ETCD_TLS_DIR}/ca.crt"]
        command = ["sh", "-c", pod.TLS_START + 'exec "$@"', *command[:1], *command]
        volumes.append({"name": "etcd-tls", "secret": {"secretName": etcd.client_secret, "defaultMode": 0o440}})
        mounts.append({"name": "etcd-tls", "mountPath": names.ETCD_TLS_DIR, "readOnly": True})
    run = {
        "name": "recover",
        "image": image,
        "command": command,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": RESOURCES,
        "securityContext": pod.SECURITY,
        "volumeMounts": mounts,
    }
    return task_pod(cluster, recover_name(cluster.metadata.name), now, {"containers": [run]}, volumes, {})


def task_pod(
    cluster: Cluster, name: str, now: str, containers: Object, volumes: list[Object], pod_spec: Mapping[str, Any]
) -> Object:
    """Render a pod that runs once. One that mounts a member's volume tolerates and selects what the member does."""
    made = snapshots.task_pod(cluster, name, now, containers, volumes)
    for field in ("nodeSelector", "tolerations", "imagePullSecrets"):
        if pod_spec.get(field):
            made["spec"][field] = pod_spec[field]
    return made


def etcdutl(pod_spec: Mapping[str, Any], *arguments: str) -> Object:
    """Render a container that runs etcdutl of the members' image."""
    made: Object = {
        "name": "etcdutl",
        "image": etcd_image(pod_spec),
        "command": [ETCDUTL, *arguments],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": RESOURCES,
        "securityContext": pod.SECURITY,
        "volumeMounts": [],
    }
    if policy := etcd_container(pod_spec).get("imagePullPolicy"):
        made["imagePullPolicy"] = policy
    return made


def member_volume(cluster: Cluster, ordinal: int) -> Object:
    """Return the pod volume of a member's claim."""
    claim = f"{DATA_VOLUME}-{cluster.spec.etcd.stateful_set}-{ordinal}"
    return {"name": "member", "persistentVolumeClaim": {"claimName": claim}}


def bump_flags(image: str) -> list[str]:
    """Return the flags with which no revision is used twice, which etcdutl has since 3.5.10. An image whose tag is no
    version restores without them: the cluster id suffices for detection."""
    found = re.search(r":v?(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?:$|[-@])", image)
    if found is None or tuple(map(int, found.groups())) < (3, 5, 10):
        return []
    return [f"--bump-revision={BUMPED_REVISIONS}", "--mark-compacted"]


def snapshots_of(cluster: Cluster) -> Snapshots:
    """Return where the snapshots are."""
    assert cluster.spec.etcd.snapshots is not None, "a schema rule requires it"
    return cluster.spec.etcd.snapshots
