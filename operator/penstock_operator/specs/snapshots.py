"""Renders the pod that takes a snapshot of etcd: `python -m penstock_operator.snapshots` in the operator's image."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.snapshots import SNAPSHOT_NAME, Snapshots
from penstock_operator.ports.kube import Object
from penstock_operator.specs import names, pod

COMPONENT = "etcd-snapshot"
STARTED_AT = "penstock.io/started-at"
"""Annotation of a pod: the time at which the operator created it, in RFC 3339. The API server has another clock."""
DEADLINE_S = 3600
VOLUME_DIR, TLS_DIR, CA_DIR = "/var/lib/snapshots", "/etc/penstock-etcd-tls", "/etc/penstock-object-store"
ACCESS_KEY, SECRET_KEY, CA = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "ca.crt"
RESOURCES: Object = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}


def pod_name(cluster: str) -> str:
    """Return the name of the pod that takes snapshots: one at a time."""
    return f"{cluster}-etcd-snapshot"


def task(cluster: Cluster, snapshots: Snapshots, more: Mapping[str, Any]) -> str:
    """Return a task as JSON: see `snapshots.tasks.SnapshotTask`."""
    made: Object = {
        "namespace": cluster.metadata.namespace,
        "cluster": cluster.metadata.name,
        "count": snapshots.keep_count,
        "days": snapshots.keep_days,
        **more,
    }
    if snapshots.volume is not None:
        made["directory"] = VOLUME_DIR
    if (store := snapshots.object_store) is not None:
        made["objectStore"] = {
            "endpoint": store.endpoint.rstrip("/"),
            "bucket": store.bucket,
            "prefix": store.prefix,
            "region": store.region,
            "caFile": f"{CA_DIR}/{CA}",
        }
    return json.dumps(made, sort_keys=True)


def container(cluster: Cluster, snapshots: Snapshots, image: str, command: str, **more: Any) -> Object:
    """Render a container that runs a task with access to the destination."""
    environment: list[Object] = [{"name": "SNAPSHOT_TASK", "value": task(cluster, snapshots, more)}]
    mounts: list[Object] = []
    if snapshots.volume is not None:
        mounts.append({"name": "snapshots", "mountPath": VOLUME_DIR})
    if (store := snapshots.object_store) is not None:
        environment += [
            {"name": key, "valueFrom": {"secretKeyRef": {"name": store.secret_name, "key": key}}}
            for key in (ACCESS_KEY, SECRET_KEY)
        ]
        mounts.append({"name": "object-store-ca", "mountPath": CA_DIR, "readOnly": True})
    return {
        "name": command,
        "image": image,
        "command": ["python", "-m", "penstock_operator.snapshots", command],
        "env": environment,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": RESOURCES,
        "securityContext": pod.SECURITY,
        "volumeMounts": mounts,
    }


def destination_volumes(snapshots: Snapshots) -> list[Object]:
    """Return the pod volumes of the destination."""
    if snapshots.volume is not None:
        return [{"name": "snapshots", "persistentVolumeClaim": {"claimName": snapshots.volume.claim_name}}]
    assert snapshots.object_store is not None, "a schema rule requires one of both"
    items = [{"key": CA, "path": CA}]
    secret = {"secretName": snapshots.object_store.secret_name, "items": items, "optional": True}
    return [{"name": "object-store-ca", "secret": {**secret, "defaultMode": 0o440}}]


def task_pod(cluster: Cluster, name: str, now: str, containers: Object, volumes: list[Object]) -> Object:
    """Render a pod that runs once."""
    made = names.owned(cluster, "v1", "Pod", name)
    made["metadata"]["labels"] |= {"app.kubernetes.io/component": COMPONENT}
    made["metadata"]["annotations"] = {STARTED_AT: now}
    pull_secrets = list(cluster.spec.brokers.image_pull_secrets)
    made["spec"] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": pod.USER,
            "runAsGroup": pod.USER,
            "fsGroup": pod.USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": list(cluster.spec.brokers.tolerations),
        **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
        **containers,
        "volumes": volumes,
    }
    return made


def snapshot_pod(cluster: Cluster, snapshots: Snapshots, image: str, now: str) -> Object:
    """Render the pod that takes a snapshot."""
    volumes = destination_volumes(snapshots)
    etcd = cluster.spec.etcd
    take = container(cluster, snapshots, image, "take", endpoints=list(etcd.endpoints), **cluster_id(cluster))
    if etcd.client_secret is not None:
        volumes.append({"name": "etcd-tls", "secret": {"secretName": etcd.client_secret, "defaultMode": 0o440}})
        take["volumeMounts"].append({"name": "etcd-tls", "mountPath": TLS_DIR, "readOnly": True})
    return task_pod(cluster, pod_name(cluster.metadata.name), now, {"containers": [take]}, volumes)


def cluster_id(cluster: Cluster) -> dict[str, str]:
    """Return the field of a task with the cluster id, if it is known."""
    return {"clusterId": cluster.status.cluster_id} if cluster.status.cluster_id else {}


def time_of(name: str) -> str | None:
    """Return the time in the name of a snapshot, in RFC 3339; None if it is not such a name."""
    if not re.fullmatch(SNAPSHOT_NAME, name):
        return None
    try:
        return datetime.strptime(name, "etcd-%Y%m%dT%H%M%SZ").strftime("%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
