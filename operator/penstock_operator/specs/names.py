"""What the objects of a cluster are called, labelled and reached by. Used by `specs`, `reconcile` and `clusters`."""

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
"""On the Service of one broker."""
INDEX_LABEL = "apps.kubernetes.io/pod-index"
RENDERED = "penstock.io/rendered"
"""Annotation on whatever is applied: the hash of what was, so that a field that is no longer wanted is noticed."""
RESTART = "penstock.io/restart"
"""Annotation of a pod: the hash of all that it was started with. On a `Cluster`: any text; another one rolls all."""


def stateful_set(cluster: str) -> str:
    return f"{cluster}-broker"


config_map = budget = stateful_set


def headless(cluster: str) -> str:
    return f"{cluster}-brokers"


def external_service(cluster: str, ordinal: int) -> str:
    return f"{cluster}-broker-{ordinal}-external"


def pod(cluster: str, ordinal: int) -> str:
    return f"{cluster}-broker-{ordinal}"


def claim(template: str, cluster: str, ordinal: int) -> str:
    return f"{template}-{pod(cluster, ordinal)}"


def ordinal_of(cluster: str, pod_name: str) -> int | None:
    """Which broker a pod, or the end of a claim's name, is; None where it is none of this cluster's."""
    prefix, _, number = pod_name.rpartition("-")
    is_number = number.isdecimal() and len(number) <= len(str(MAX_BROKERS)) and number == str(int(number))
    return int(number) if prefix == stateful_set(cluster) and is_number else None


def pod_host(cluster: Cluster, pod_name: str) -> str:
    """By which other pods reach one, whether it is ready or not."""
    meta = cluster.metadata
    return f"{pod_name}.{headless(meta.name)}.{meta.namespace}.svc"


def bootstrap(cluster: Cluster) -> str:
    return f"{cluster.metadata.name}.{cluster.metadata.namespace}.svc:{cluster.spec.port}"


def selector(cluster: str) -> dict[str, str]:
    """The labels by which the broker pods are found; of a StatefulSet they can never change."""
    return {"app.kubernetes.io/instance": cluster, "app.kubernetes.io/component": "broker", CLUSTER_LABEL: cluster}


def labels(cluster: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/managed-by": "penstock-operator",
        **selector(cluster),
    }


def selector_text(cluster: str) -> str:
    """As the scale subresource wants it."""
    return ",".join(f"{name}={value}" for name, value in sorted(selector(cluster).items()))


def owned(cluster: Cluster, api_version: str, kind: str, name: str) -> Object:
    """An object that goes with the cluster."""
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
