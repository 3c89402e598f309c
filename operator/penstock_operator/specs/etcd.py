"""etcd flags of the brokers, and the etcd sidecar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock_operator.model.cluster import Cluster, EtcdSidecar
from penstock_operator.ports.kube import Object
from penstock_operator.specs import names

PREPARE = "etcd_prepare.py"
FOUNDED = "etcd-founded"
"""ConfigMap key that exists once the brokers have formed a cluster. From then on a broker is removed only after it was
drained, and an etcd member without data has lost its data."""
MEMBERS = (1, names.MAX_ETCD_MEMBERS)
"""Supported numbers of sidecar etcd members."""


def members_for(replicas: int) -> int:
    """Return the number of sidecar etcd members of a new cluster."""
    return names.MAX_ETCD_MEMBERS if replicas >= names.MAX_ETCD_MEMBERS else 1


def member_hosts(cluster: Cluster, members: int) -> list[str]:
    """Return the DNS names of the members' pods."""
    return [names.pod_host(cluster, names.pod(cluster.metadata.name, n)) for n in range(members)]


def flags(cluster: Cluster, members: int) -> list[str]:
    """Return the etcd flags of `penstock up`: the pod's own etcd, and all members in case its container is down."""
    etcd = cluster.spec.etcd
    if etcd.sidecar is not None:
        hosts = ["127.0.0.1", *member_hosts(cluster, members)]
        return [flag for host in hosts for flag in ("--etcd", f"http://{host}:{names.ETCD_PORT}")]
    found = [flag for endpoint in etcd.endpoints for flag in ("--etcd", endpoint)]
    if etcd.client_secret is not None:
        found += ["--etcd-ca", f"{names.ETCD_TLS_DIR}/ca.crt"]
    return found


def config_data(cluster: Cluster, is_founded: bool) -> dict[str, str]:
    """Return the etcd entries of the ConfigMap."""
    founded = {FOUNDED: "true"} if is_founded else {}
    if cluster.spec.etcd.sidecar is None:
        return founded
    script = (Path(__file__).parent / "files" / PREPARE).read_text(encoding="utf-8")
    return {PREPARE: script} | founded


def init_containers(
    cluster: Cluster, sidecar: EtcdSidecar, members: int, broker_image: str, security: Object
) -> list[Object]:
    """Return the prepare container and etcd, which starts before the broker and stops after it (a native sidecar)."""
    cluster_name = cluster.metadata.name
    run: Object = {"name": "etcd-run", "mountPath": names.ETCD_RUN_DIR}
    data: Object = {"name": names.ETCD_CLAIM, "mountPath": names.ETCD_DATA_DIR}
    environment: list[Any] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
        {"name": "ETCD_HOSTS", "value": ",".join(member_hosts(cluster, members))},
        {"name": "ETCD_NAMES", "value": ",".join(names.pod(cluster_name, n) for n in range(members))},
        {"name": "ETCD_DATA_DIR", "value": f"{names.ETCD_DATA_DIR}/data"},
        {"name": "ETCD_RUN_DIR", "value": names.ETCD_RUN_DIR},
        {"name": "ETCD_FOUNDED", "value": f"{names.CONFIG_DIR}/{FOUNDED}"},
    ]
    small = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}}
    prepare: Object = {
        "name": "etcd-prepare",
        "image": broker_image,
        "command": ["python", f"{names.CONFIG_DIR}/{PREPARE}"],
        "env": environment,
        "resources": small,
        "securityContext": security,
        "volumeMounts": [run, data, {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True}],
    }
    directory = names.ETCD_RUN_DIR
    etcd: Object = {
        "name": "etcd",
        "image": sidecar.image,
        "restartPolicy": "Always",
        "command": [f"{directory}/ld.so", "--library-path", directory, f"{directory}/sh", f"{directory}/start"],
        "ports": [
            {"name": "etcd", "containerPort": names.ETCD_PORT, "protocol": "TCP"},
            {"name": "etcd-peer", "containerPort": names.ETCD_PEER_PORT, "protocol": "TCP"},
        ],
        "startupProbe": {
            # Until etcd has a leader, the kubelet does not start the broker, which would exit. The alarm NOSPACE must
            # not keep a broker from starting.
            "httpGet": {"path": "/health?exclude=NOSPACE", "port": "etcd", "scheme": "HTTP"},
            "periodSeconds": 1,
            "timeoutSeconds": 4,
            "failureThreshold": 600,
            "successThreshold": 1,
        },
        "readinessProbe": {
            # A serializable read, so that a lost quorum does not make brokers unready: they continue to serve requests
            # that need no etcd. A gateway forwards the probe.
            "httpGet": {"path": "/health?serializable=true", "port": "etcd", "scheme": "HTTP"},
            "periodSeconds": 5,
            "timeoutSeconds": 4,
            "failureThreshold": 3,
            "successThreshold": 1,
        },
        "resources": sidecar.resources,
        "securityContext": security,
        "volumeMounts": [{**run, "readOnly": True}, data],
    }
    return [prepare, etcd]


def volumes(cluster: Cluster) -> list[Object]:
    """Return the pod volumes for etcd."""
    etcd = cluster.spec.etcd
    if etcd.sidecar is not None:
        return [{"name": "etcd-run", "emptyDir": {"sizeLimit": "64Mi"}}]
    if etcd.client_secret is not None:
        return [{"name": "etcd-tls", "secret": {"secretName": etcd.client_secret, "defaultMode": 0o440}}]
    return []
