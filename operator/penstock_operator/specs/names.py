"""Names, labels and addresses of a cluster's objects. Used by `specs`, `reconcile` and `clusters`."""

from __future__ import annotations

from penstock_operator.model.cluster import MAX_BROKERS, Cluster
from penstock_operator.model.common import API_VERSION
from penstock_operator.ports.kube import Object

HTTP_PORT = 8080
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
DATA_DIR = "/var/lib/penstock"
CONFIG_DIR = "/etc/penstock"
ETCD_DATA_DIR = "/var/lib/etcd"
ETCD_RUN_DIR = "/run/penstock-etcd"
ETCD_TLS_DIR = "/etc/penstock-etcd-tls"
DATA_CLAIM = "data"
ETCD_CLAIM = "etcd"
MAX_ETCD_MEMBERS = 3

CLUSTER_LABEL = "penstock.io/cluster"
ORDINAL_LABEL = "penstock.io/broker"
"""Label of a broker's own Service: the ordinal."""
INDEX_LABEL = "apps.kubernetes.io/pod-index"
RENDERED = "penstock.io/rendered"
"""Annotation of applied objects: the hash of the rendered object, which reveals removed fields."""
RESTART = "penstock.io/restart"
"""Annotation of a pod: the hash of its configuration. On a `Cluster`: any text; changing it restarts all brokers."""


def stateful_set(cluster: str) -> str:
    """Return the name of the StatefulSet, ConfigMap and PodDisruptionBudget."""
    return f"{cluster}-broker"


config_map = budget = stateful_set


def headless(cluster: str) -> str:
    """Return the name of the headless Service."""
    return f"{cluster}-brokers"


def external_service(cluster: str, ordinal: int) -> str:
    """Return the name of a broker's external Service."""
    return f"{cluster}-broker-{ordinal}-external"


def pod(cluster: str, ordinal: int) -> str:
    """Return the name of a broker's pod."""
    return f"{cluster}-broker-{ordinal}"


def claim(template: str, cluster: str, ordinal: int) -> str:
    """Return the name of a broker's PersistentVolumeClaim."""
    return f"{template}-{pod(cluster, ordinal)}"


def ordinal_of(cluster: str, pod_name: str) -> int | None:
    """Return the ordinal in a pod name; None if the pod does not belong to the cluster."""
    prefix, _, number = pod_name.rpartition("-")
    is_number = number.isdecimal() and len(number) <= len(str(MAX_BROKERS)) and number == str(int(number))
    return int(number) if prefix == stateful_set(cluster) and is_number else None


def pod_host(cluster: Cluster, pod_name: str) -> str:
    """Return the DNS name of a pod, which resolves also if the pod is not ready."""
    meta = cluster.metadata
    return f"{pod_name}.{headless(meta.name)}.{meta.namespace}.svc"


def bootstrap(cluster: Cluster) -> str:
    """Return the bootstrap address for clients inside the Kubernetes cluster."""
    return f"{cluster.metadata.name}.{cluster.metadata.namespace}.svc:{cluster.spec.port}"


def selector(cluster: str) -> dict[str, str]:
    """Return the selector of the broker pods, which is immutable in a StatefulSet."""
    return {"app.kubernetes.io/instance": cluster, "app.kubernetes.io/component": "broker", CLUSTER_LABEL: cluster}


def labels(cluster: str) -> dict[str, str]:
    """Return the labels of all objects of a cluster."""
    return {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/managed-by": "penstock-operator",
        **selector(cluster),
    }


def selector_text(cluster: str) -> str:
    """Return the selector as text, for the scale subresource."""
    return ",".join(f"{name}={value}" for name, value in sorted(selector(cluster).items()))


def owned(cluster: Cluster, api_version: str, kind: str, name: str) -> Object:
    """Return the skeleton of an object that the Cluster owns, so that it is deleted with it."""
    meta = cluster.metadata
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": labels(meta.name),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "Cluster",
                    "name": meta.name,
                    "uid": meta.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
    }
